"""benchmarks.gpu without a GPU: parts run with tiny sizes, and finished ones are skipped."""

from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from benchmarks.gpu.__main__ import main, read_sections, write_sections
from benchmarks.gpu.correct import error
from benchmarks.gpu.measure import Setting, medians, ratio, verdict

CPU = torch.device("cpu")


def test_quick_part_runs_on_a_cpu_and_is_skipped_when_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = ["--device", "cpu", "--quick", "--only", "correct", "--out", str(tmp_path)]
    assert main(options) == 0, capsys.readouterr().err
    sections = read_sections(tmp_path / "cpu-quick.txt")
    assert list(sections) == ["correct"]
    assert sections["correct"][0].startswith(f"CPU, torch {torch.__version__}")
    assert sections["correct"][-2] == "72 reads, 0 beyond the bound"
    capsys.readouterr()
    assert main(options) == 0
    out, err = capsys.readouterr()
    assert (out, err.count("--force runs it again")) == ("", 1)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("part", "line", "count"),
    [("additive", "(2, 5, 7, 16)", 4), ("gpt", "    regard, compiled", 1)],
)
def test_quick_parts_compare_all_contestants(
    part: str, line: str, count: int, capsys: pytest.CaptureFixture
) -> None:
    try:
        assert main(["--device", "cpu", "--quick", "--part", part]) == 0
    finally:
        torch.compiler.set_stance("default")
    lines = capsys.readouterr().out.splitlines()
    assert sum(text.startswith(line) for text in lines) == count
    assert not any("failed" in text for text in lines)


def test_sections_are_kept_in_the_order_of_the_parts(tmp_path: Path) -> None:
    sections = {"dot": ["card", "a  1"], "correct": ["card", "b", "", "c"]}
    write_sections(tmp_path / "CARD.txt", sections)
    assert list(read_sections(tmp_path / "CARD.txt")) == ["correct", "dot"]
    assert read_sections(tmp_path / "CARD.txt") == sections


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "benchmarks.gpu needs a GPU; --device cpu --quick tests that its parts run"),
        (["--device", "cpu"], "--device cpu needs --quick"),
        (["--only", "dots"], "--only must be some of correct, additive"),
        (["--data", "no-folder"], "--data must be a folder with multi30k/ in it, got no-folder"),
    ],
)
def test_refusals_are_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(options)
    assert message in f"{refused.value} {capsys.readouterr().err.strip()}".splitlines()[-1]


@pytest.mark.parametrize("share", [0.0, 1e-3])
def test_error_is_that_of_the_worst_tensor(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    attend = regard.attend

    def wrong(query: Any, memory: Any, *, kernel: str = "auto", **read: Any) -> torch.Tensor:
        off = 0.0 if kernel == "reference" else share
        keys, values = memory
        return attend(query, (keys * (1 + off), values), kernel=kernel, **read)

    monkeypatch.setattr(regard, "attend", wrong)
    shapes = [(2, 5, 4), (2, 7, 4), (2, 7, 3)]
    relative = error(CPU, torch.float64, shapes, score=regard.Dot(), choice=regard.Soft())
    assert (1e-4 < relative < 1e-2) == bool(share)
    assert relative < (1e-2 if share else 1e-12)


def test_contestant_that_fails_is_left_out(capsys: pytest.CaptureFixture) -> None:
    def fails() -> None:
        raise RuntimeError("no such kernel\nsecond line")

    times = medians({"a": lambda: None, "b": fails}, Setting(CPU, True, None))
    assert set(times) == {"a"}
    assert capsys.readouterr().out == "    b failed: RuntimeError: no such kernel\n"
    assert ratio(times, "b", "a") is None


@pytest.mark.parametrize(
    ("value", "word", "result"),
    [
        (2.0, "least", "reached"),
        (1.9, "least", "MISSED"),
        (2.0, "most", "reached"),
        (2.1, "most", "MISSED"),
    ],
)
def test_verdict_compares_with_the_target(value: float, word: str, result: str) -> None:
    assert verdict("x", value, word, 2.0) == f"  -> x: {value:.2f}, target at {word} 2.0: {result}"
