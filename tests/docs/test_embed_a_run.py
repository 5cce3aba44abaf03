"""The page "Embed a run": its code runs, and asserts what it states."""

import re
from pathlib import Path

import pytest
import torch

from tests.shapes import without_checks

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "embed-a-run.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def test_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    assert len(BLOCKS) == 8
    monkeypatch.chdir(tmp_path)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        with without_checks():
            exec(compile("\n".join(BLOCKS), str(PAGE), "exec"), {"__name__": "page"})
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr().out == ""
    assert (tmp_path / "look.html").stat().st_size > 10_000
