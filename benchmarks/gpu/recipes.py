"""Every recipe by the command line: trains 20 steps on the device, evaluates and predicts there and
continues on the CPU, with the data that comes with the package (translate: Multi30k).

--quick trains two steps of two recipes.
"""

import contextlib
import io
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from benchmarks.gpu.measure import Setting
from regard.cli.main import main

RECIPES = {
    "dates": (
        "3 maart 2019",
        "--data.epoch-size 2000 --data.val-size 50 --data.test-size 50 --val-sample 50",
    ),
    "reviews": ("the plot was never dull", ""),
    "tags": ("we met on 5 March 2019", ""),
    "images": ("FOLDER/digit.png", ""),
    "boxes": ("FOLDER/photo.png", ""),
    "points": ("FOLDER/cloud.npz", ""),
    "events": (
        "FOLDER/sound.wav",
        "--data.epoch-size 400 --data.val-size 20 --data.test-size 20",
    ),
    "tracks": ("FOLDER/tracks.txt", ""),
    "caption": (
        "FOLDER/photo.png",
        "--data.epoch-size 200 --data.test-size 20 --val-sample 10",
    ),
    "draw": (
        "two",
        "--data.epoch-size 200 --data.test-size 20 --autoencoder-steps 20 --classifier-steps 20",
    ),
    "rebuild": ("FOLDER/digit.png", ""),
    "language": ("Once", "--sample.length 20"),
    "translate": (
        "a man in a blue shirt",
        "--data.val-share 0.002 --decode.max-length 20 "
        "--data.train DATA/multi30k/train.lc.norm.tok.en.gz "
        "--data.train-target DATA/multi30k/train.lc.norm.tok.de.gz "
        "--data.test DATA/multi30k/test_2016_flickr.lc.norm.tok.en.gz "
        "--data.test-target DATA/multi30k/test_2016_flickr.lc.norm.tok.de.gz",
    ),
}
"""The input of `predict`, and options that name data and shorten validation."""
SHARED = (
    "--train.average 0 --train.keep-finished checkpoints --train.no-tensorboard --threads 2 --run"
)
ACTIONS = ("trains", "evaluates", "predicts", "resumes on the CPU")


def write_inputs(folder: Path) -> None:
    """Write a file of each kind, for `predict`."""
    draw = np.random.default_rng(1)
    for name, size in (("digit", 8), ("photo", 96)):
        pixels = draw.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    np.savez(folder / "cloud.npz", points=draw.uniform(0, 2, (500, 3)))
    soundfile.write(folder / "sound.wav", draw.normal(0, 0.1, 16000), 8000)
    lines = [f"{t}\t{n}\t{0.1 * t + n:.2f}\t0.2\n" for t in range(26) for n in (1, 2)]
    (folder / "tracks.txt").write_text("".join(lines), encoding="utf-8")


def check(name: str, folder: Path, setting: Setting) -> str:
    """Return a line about a recipe: seconds, and the first command that failed, if one did."""
    source, own = RECIPES[name]
    device, steps = setting.device.type, 2 if setting.quick else 20
    run, start = str(folder / name), time.monotonic()
    train = ["train", name, *f"{own} {SHARED} {run}".replace("DATA", str(setting.data)).split()]
    predict = ["predict", run, source.replace("FOLDER", str(folder)), "--device", device]
    predict += ["--out", str(folder / "drawn.png")] if name == "draw" else []
    commands = (
        [*train, "--train.steps", str(steps), "--train.device", device],
        ["evaluate", run, "--device", device],
        predict,
        [*train, "--train.steps", str(steps + 2), "--train.device", "cpu"],
    )
    for action, command in zip(ACTIONS, commands, strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                code = main(command)
            except Exception as error:  # noqa: BLE001  # the result of this recipe
                code = f"{type(error).__name__}: {error}"
        if code != 0:
            last = (printed.getvalue().strip().splitlines() or [""])[-1]
            return f"{name:<12} FAILED: {action}: {code} {last[:200]}"
    return f"{name:<12} {', '.join(ACTIONS)}; {time.monotonic() - start:.0f} s"


def run(setting: Setting) -> None:
    names = ["tags", "rebuild"] if setting.quick else list(RECIPES)
    if "translate" in names and setting.data is None:
        print("    translate is left out: it needs --data FOLDER")
        names.remove("translate")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_inputs(folder)
        jobs = [(name, folder, setting) for name in names]
        with multiprocessing.get_context("spawn").Pool(1 if setting.quick else 8) as pool:
            for line in pool.starmap(check, jobs, chunksize=1):
                print(line, flush=True)
