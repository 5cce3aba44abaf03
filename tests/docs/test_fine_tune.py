"""The page "Fine-tune a run": its code runs, and asserts what it states."""

import re
from pathlib import Path

import pytest

from regard.recipes.registry import get_entry
from tests.shapes import without_checks

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "fine-tune.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(BLOCKS) == 3
    monkeypatch.chdir(tmp_path)
    with without_checks():
        exec(compile("\n".join(BLOCKS), str(PAGE), "exec"), {"__name__": "page"})


def test_rates_of_the_table_are_those_of_the_rule() -> None:
    rows = re.findall(r"^\| (`.*`) \| (\S+) \| (\S+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 2
    for names, narrow, wide in rows:
        for name in re.findall(r"`(\w+)`", names):
            config = get_entry(name).config()
            assert config.model.core.width == 128
            assert float(narrow) == pytest.approx(config.train.lr / 5)
            assert float(wide) == pytest.approx(config.train.lr / 5 / 6, rel=0.01)
