"""Every recipe holds out validation data if none is given, and says how much."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data.config import VectorsConfig
from regard.errors import UserError
from regard.recipes.base.run import Run
from regard.recipes.load import create_recipe
from regard.recipes.registry import NAMES, RECIPES, get_entry
from regard.settings.tree import apply_changes

COUNT = 20


def write_data(folder: Path) -> dict[str, tuple[str, dict[str, object]]]:
    """Write training data of each recipe; return the noun of its items and the settings."""
    for i in range(COUNT):
        Image.new("L", (4, 4), i).save(folder / f"{i}.png")
        soundfile.write(folder / f"{i}.wav", np.full(800, i, np.int16), 8000)
        np.savez(folder / f"{i}.npz", points=np.random.default_rng(i).normal(size=(20, 3)))
    forms = {
        "pairs.tsv": "text {i}\tTEXT {i}\n",
        "labels.csv": "text {i},{name}\n",
        "tags.conll": "word{i} {name}\n\n",
        "text.txt": "a line of text\n",
        "tracks.txt": "{i} 1 {i} 1\n{i} 2 {i} 2\n",
        "images.tsv": "{i}.png\t{name}\n",
        "captions.tsv": "{i}.png\ta {name} {i}\n",
        "boxes.csv": "{i}.png,0,0,2,2,{name}\n",
        "clouds.csv": "{i}.npz,0,0,0,1,1,1,{name}\n",
        "events.csv": "{i}.wav,0,0.05,{name}\n",
        "vectors.csv": "{i},1.5\n",
    }
    headers = {
        "labels.csv": "text,label\n",
        "boxes.csv": "file,x,y,width,height,label\n",
        "clouds.csv": "file,x,y,z,dx,dy,dz,label\n",
        "events.csv": "file,onset,duration,label\n",
        "vectors.csv": "x,y\n",
    }
    for file, form in forms.items():
        count = 60 if file == "tracks.txt" else COUNT
        rows = [form.format(i=i, name="ab"[i % 2]) for i in range(count)]
        (folder / file).write_text(headers.get(file, "") + "".join(rows), encoding="utf-8")
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
        "events": ("sounds", {"train": "events.csv", "seconds": 0.1}),
        "rebuild": ("vectors", {"train": "vectors.csv"}),
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dates"])
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
        assert "".join([*train.data, *val.data]) == "a line of text\n" * COUNT
        return
    inputs = [
        [json.dumps(np.asarray(value).tolist()) for value in part.inputs] for part in (train, val)
    ]
    assert not set(inputs[0]) & set(inputs[1])
    assert len(inputs[0]) > len(inputs[1]) > 0


@pytest.mark.parametrize("recipe", sorted(RECIPES.keys() - {"dates"}))  # whose data are made
def test_validation_data_need_training_data(recipe: str) -> None:
    config, changes = RECIPES[recipe].config(), {"data": {"val": "val.csv"}}
    with pytest.raises(UserError, match=r"data.train must be given together with data.val"):
        apply_changes(config, changes, called=str)
