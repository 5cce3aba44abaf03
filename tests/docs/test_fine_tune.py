"""The page "Fine-tune a run": its code runs, and asserts what it states."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from regard.recipes.registry import get_entry
from tests.exchange.small import save_gpt2, save_opus
from tests.shapes import without_checks

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "fine-tune.md"
TEXT = PAGE.read_text(encoding="utf-8")
WORDS = ("nice", "foggy", "quite warm", "very cold")
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


def commands(model: str) -> list[list[str]]:
    """Return the commands with public weights, from the import of a folder to its export."""
    (block,) = [block for block in TEXT.split("\n\n") if f"regard import {model} " in block]
    lines = [shlex.split(line) for line in block.splitlines()]
    return [words[1:] for words in lines if words[0] == "regard"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [pytest.param("opus-mt-nl-en", marks=pytest.mark.peers), "gpt2"])
def test_commands_with_public_weights_run(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"The weather on day {n} was {word}, I think." for n in range(200) for word in WORDS]
    save = save_gpt2 if model == "gpt2" else save_opus
    save(Path(model), texts)
    Path("book.txt").write_text("\n".join(texts), encoding="utf-8")
    pairs = "".join(f"{text}\t{text}\n" for text in texts)
    Path("pairs.tsv").write_text(pairs, encoding="utf-8")
    for words in commands(model):
        short = ["2" if word == "300" else word for word in words]  # steps
        command = [sys.executable, "-m", "regard", *short]  # torch cannot export checks of shapes
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
