"""How-to pages: their examples train, are saved, loaded and recorded; the files on them make parts of the package."""

import contextlib
import io
import runpy
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
    "own_score": r"core\.decoder\.0\.self_attention\.read\.score.*Manhattan",
    "own_norm": "ScaleNorm",
    "own_positions": "LearnedRates",
    "own_reader": "its writes is a ClassWriter",
    "own_writer": "its writes is a CountWriter",
}
"""Why the compiled engine refuses the model of each example."""


def run_example(name: str, command: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    monkeypatch.setattr(sys, "argv", [name, command, str(path)])
    out = io.StringIO()
    with contextlib.redirect_stdout(out), without_checks():
        names = runpy.run_path(str(HOWTO / "examples" / f"{name}.py"), run_name="__main__")
    return names, out.getvalue()


@pytest.mark.parametrize("name", REFUSALS)
def test_example_trains_is_loaded_and_recorded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert len(capture.recording)
    for read in capture.recording:
        for weights in capture.recording[read]:
            close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    with pytest.raises(UserError, match=f"engine 'compiled' does not support this model: .*{REFUSALS[name]}"):
        prepare("compiled", model)


@pytest.mark.parametrize("name", ["own_score", "own_norm", "own_positions"])
def test_example_decodes_as_it_reads_all_positions(name: str) -> None:
    example = runpy.run_path(str(HOWTO / "examples" / f"{name}.py"))
    model, batch = example["build"]().double().eval(), example["batch"](3)
    expected, state = model(batch.source, batch.target), model.start(batch.source, rows=3)
    for time in range(expected.shape[1]):
        logits, state = model.step(batch.target.items[:, time], state)
        close(logits, expected[:, time])
