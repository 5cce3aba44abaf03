"""How-to pages: examples train, are saved, loaded, recorded; their files make parts."""

import contextlib
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.engines.registry import prepare
from regard.errors import UserError
from tests.helpers import close
from tests.shapes import without_checks

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
REFUSALS = {
    "own_score": r"its core\.decoder\.0\.attention\.read\.score is a Manhattan",
    "own_norm": "ScaleNorm",
    "own_positions": "LearnedRates",
    "own_reader": "its writer ClassWriter",
    "own_relations": "its writer ClassWriter",
    "own_writer": "its writer CountWriter",
}
"""Why the compiled engine refuses the model of each example."""


def run_example(
    name: str, command: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], str]:
    monkeypatch.setattr(sys, "argv", [name, command, str(path)])
    out = io.StringIO()
    with contextlib.redirect_stdout(out), without_checks():
        names = runpy.run_path(str(HOWTO / "examples" / f"{name}.py"), run_name="__main__")
    return names, out.getvalue()


@pytest.mark.parametrize("name", REFUSALS)
def test_example_trains_is_loaded_and_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    torch.manual_seed(1)
    example, printed = run_example(name, "train", path, monkeypatch)
    model, answer = example["model"], example["answer"]
    torch.manual_seed(2)
    untrained, batch = example["build"]().eval(), example["batch"](50)
    assert float(model.loss(batch).nll) < 0.7 * float(untrained.loss(batch).nll)
    loaded, printed_again = run_example(name, "load", path, monkeypatch)
    assert printed_again == printed
    expected = answer(model)
    assert torch.equal(answer(loaded["model"]), expected)
    with regard.record(model) as capture:
        assert torch.equal(answer(model), expected)
    for read in capture.recording:  # raises if there is none
        for weights in capture.recording[read]:
            close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    with pytest.raises(
        UserError, match=f"engine 'compiled' does not support this model: .*{REFUSALS[name]}"
    ):
        prepare("compiled", model)


@pytest.mark.parametrize("name", ["own_score", "own_norm", "own_positions"])
def test_example_decodes_as_it_reads_all_positions(name: str) -> None:
    example = runpy.run_path(str(HOWTO / "examples" / f"{name}.py"))
    model, batch = example["build"]().double().eval(), example["batch"](3)
    expected, state = model(batch.source, batch.target), model.start(batch.source, rows=3)
    for time in range(expected.shape[1]):
        logits, state = model.step(batch.target.items[:, time], state)
        close(logits, expected[:, time])


PAGES = {"score": 2, "positions": 2, "writer": 2, "recipe": 3}
"""Number of files of the package on each page."""
SMALL = (
    "--model.core.layers 1 --model.core.width 8 --model.core.heads 2 --model.core.feedforward 8 "
    "--context 8 --batch 4 --sample.length 8"
)
TRAIN = (
    f"train language --data.train text.txt --data.val text.txt {SMALL} --train.steps 2 "
    f"--train.precision float32 --train.tensorboard false"
)
RUN_TESTS = """
import pathlib, pytest, regard
from regard.cli.main import main
assert pathlib.Path(regard.__file__).parents[1] == pathlib.Path.cwd(), regard.__file__
assert pytest.main(["-q", "-p", "no:cacheprovider", "tests"]) == 0
for run, options in (("score", "--model.core.score manhattan"),
                     ("positions", "--model.core.positions fourier "
                      "--model.core.positions.period 64")):
    assert main(f"TRAIN --run {run} {options}".split()) == 0
    assert main(["predict", run, "abab"]) == 0
"""


def blocks_of(page: str) -> list[tuple[str, str, str]]:
    """Return (language, path, text) of each code block of a page that begins with a path."""
    text = (HOWTO / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```(python|diff)\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def apply_diff(text: str, diff: str) -> str:
    lines = diff.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
    assert text.count(old) == 1, old
    return text.replace(old, new)


def test_files_of_the_pages_add_parts_to_a_copy_of_the_package(tmp_path: Path) -> None:
    # With bytecode, which is valid for files of the same time and size.
    shutil.copytree(HOWTO.parents[1] / "regard", tmp_path / "regard")
    for page, count in PAGES.items():
        blocks = blocks_of(page)
        assert len([path for _, path, _ in blocks if path.startswith("regard/")]) == count
        for language, name, block in blocks:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if language == "diff":
                path.write_text(
                    apply_diff(path.read_text(encoding="utf-8"), block), encoding="utf-8"
                )
            else:
                assert not path.exists()
                path.write_text(block, encoding="utf-8")
    (tmp_path / "text.txt").write_text("ab" * 50, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "REGARD_NATIVE": "0",
    }  # compiles nothing
    command = [sys.executable, "-c", RUN_TESTS.replace("TRAIN", TRAIN)]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert f"{len(PAGES)} passed" in result.stdout
