"""Every recipe holds out validation data if none is given, and says how much."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data.config import VectorsConfig
from regard.recipes.base.run import Run
from regard.recipes.load import create_recipe
from regard.recipes.registry import get_entry

COUNT = 20


def write_data(folder: Path) -> dict[str, tuple[str, dict[str, object]]]:
    """Write training data of each recipe; return the noun of its items and the settings."""
    for i in range(COUNT):
        Image.new("L", (4, 4), i).save(folder / f"{i}.png")
        soundfile.write(folder / f"{i}.wav", np.full(800, i, np.int16), 8000)
        np.savez(folder / f"{i}.npz", points=np.random.default_rng(i).normal(size=(20, 3)))
    names = [f"{'ab'[i % 2]}" for i in range(COUNT)]
    boxes = "".join(f"{i}.png,0,0,2,2,{name}\n" for i, name in enumerate(names))
    clouds = "".join(f"{i}.npz,0,0,0,1,1,1,{name}\n" for i, name in enumerate(names))
    events = "".join(f"{i}.wav,0,0.05,{name}\n" for i, name in enumerate(names))
    tracks = "".join(
        f"{frame} {agent} {frame} {agent}\n" for frame in range(60) for agent in (1, 2)
    )
    contents = {
        "pairs.tsv": "".join(f"text {i}\tTEXT {i}\n" for i in range(COUNT)),
        "labels.csv": "text,label\n"
        + "".join(f"text {i},{name}\n" for i, name in enumerate(names)),
        "tags.conll": "".join(f"word{i} {name}\n\n" for i, name in enumerate(names)),
        "text.txt": "a line of text\n" * COUNT,
        "tracks.txt": tracks,
        "images.tsv": "".join(f"{i}.png\t{name}\n" for i, name in enumerate(names)),
        "captions.tsv": "".join(f"{i}.png\ta {name} {i}\n" for i, name in enumerate(names)),
        "boxes.csv": "file,x,y,width,height,label\n" + boxes,
        "clouds.csv": "file,x,y,z,dx,dy,dz,label\n" + clouds,
        "events.csv": "file,onset,duration,label\n" + events,
        "vectors.csv": "x,y\n" + "".join(f"{i},1.5\n" for i in range(COUNT)),
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return {
        "translate": ("pairs", {"train": "pairs.tsv"}),
        "reviews": ("texts", {"train": "labels.csv"}),
        "tags": ("sentences", {"train": "tags.conll"}),
        "language": ("characters", {"train": "text.txt"}),
        "tracks": ("windows", {"train": ("tracks.txt",)}),
        "images": ("images", {"train": "images.tsv"}),
        "draw": ("images", {"train": "captions.tsv"}),
        "caption": ("images", {"train": "captions.tsv"}),
        "boxes": ("images", {"train": "boxes.csv"}),
        "points": ("clouds", {"train": "clouds.csv"}),
        "events": ("segments", {"train": "events.csv", "seconds": 0.1}),
        "rebuild": ("vectors", {"train": "vectors.csv"}),
    }


RECIPES = [
    *("translate", "reviews", "tags", "language", "tracks", "images", "draw", "caption"),
    *("boxes", "points", "events", "rebuild"),
]


@pytest.mark.parametrize("name", RECIPES)
def test_validation_data_is_held_out(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    noun, data = write_data(tmp_path)[name]
    entry, notices = get_entry(name), []
    config = entry.config()
    own = VectorsConfig() if name == "rebuild" else config.data
    config = dataclasses.replace(config, data=dataclasses.replace(own, val_share=0.2, **data))
    recipe = create_recipe(Run(recipe=name, config=config, seed=1), notices.append)
    train, val = recipe.train, recipe.val
    assert len(notices) == 1
    assert f" {noun}" in notices[0]
    assert "held out for validation (data.val_share 0.2); --data.val names other data" in notices[0]
    if name not in ("language", "tracks"):
        assert f": 4 of 20 {noun} are" in notices[0]
    if name == "language":
        assert train.data.text() + val.data.text() == "a line of text\n" * COUNT
        return
    inputs = [
        [json.dumps(np.asarray(value).tolist()) for value in part.inputs] for part in (train, val)
    ]
    assert not set(inputs[0]) & set(inputs[1])
    assert len(inputs[0]) > len(inputs[1]) > 0
