"""An input of a run for documentation and for warming up; none of one's own data is given away."""

import base64
import io
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from regard.recipes.base.pictures import InputShape
from regard.recipes.base.run import ARTIFACTS, data_paths
from regard.recipes.base.trained import TrainedRun
from regard.recipes.registry import NAMES


def example_input(trained: TrainedRun) -> Any:
    """Return an input as JSON: a synthetic text, a gray image, silence, points, people who walk.

    None if a recipe of one's own reads files.
    """
    kind, data = trained.input, trained.config.data
    if kind == "text":
        text: Any = "a text"
        if trained.recipe.has_test() and not data_paths(trained.run):
            text = trained.test_input(0)
        return text if isinstance(text, str) else " ".join(text)
    if trained.recipe.entry.name not in NAMES:
        return None
    if kind == "points":
        size = 32, 3 + len(data.features)
        return np.random.default_rng(1).uniform(0, 2, size).round(2).tolist()
    if kind == "tracks":
        times = range(data.observed)
        return [[[round(0.4 * time, 1), side] for time in times] for side in (0.0, 1.0)]
    if kind == "vector":
        (size,) = InputShape.load(trained.folder / ARTIFACTS / InputShape.file).shape
        return [0.5] * size
    return base64.b64encode(_example_file(trained)).decode()


def _example_file(trained: TrainedRun) -> bytes:
    """Return a gray image in PNG, or a tenth of a second of silence in WAV."""
    data, content = trained.config.data, io.BytesIO()
    if trained.input == "sound":
        silence = np.zeros(data.sample_rate // 10, np.int16)
        soundfile.write(content, silence, data.sample_rate, format="WAV")
        return content.getvalue()
    path = trained.folder / ARTIFACTS / InputShape.file
    shape = InputShape.load(path).shape if path.exists() else (3, data.height, data.width)
    channels, height, width = shape
    Image.new("RGB" if channels == 3 else "L", (width, height), "gray").save(content, "PNG")
    return content.getvalue()
