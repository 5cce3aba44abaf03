"""Whatever a recipe reads to train is in the record of what was read, and a change of any byte of it is noticed."""

from pathlib import Path

import pytest

from regard.cli.options import parse
from regard.cli.train import Options
from regard.digests import Content, edited, recorded, summary
from regard.recipes.folder import Run, sources
from regard.recipes.registry import entry
from regard.recipes.task import task_of
from tests.campaigns.files_specimens import SPECIMENS, specimen


def record(folder: Path, words: str) -> dict[str, Content]:
    recipe, *options = words.replace("{}", str(folder)).split()
    found = parse(options, Options(), entry(recipe).config(), most_positionals=0, what="")
    run = Run(recipe=recipe, seed=1, config=found.config)
    with recorded() as seen:
        task_of(run, lambda _: None).check()
    return summary(seen, sources(run))


def digests(found: dict[str, Content]) -> dict[str, str]:
    """As learned.json holds them."""
    return {key: content.digest for key, content in found.items()}


@pytest.mark.parametrize("name", SPECIMENS)
def test_every_file_that_is_trained_on_is_recorded(tmp_path: Path, name: str) -> None:
    good = specimen(name)
    for file, content in good.files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    found = record(tmp_path, good.words)
    for file in good.files:
        # Of a tar, its members.
        names = [content.path for content in found.values() if content.path.startswith(str(tmp_path / file))]
        assert names, file
    assert edited(digests(found), record(tmp_path, good.words)) == []


def test_edit_is_noticed_and_test_data_is_no_part_of_the_record(tmp_path: Path) -> None:
    good = specimen("reviews tsv")
    for file, content in good.files.items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / "test.tsv").write_bytes(good.files["val.tsv"])
    words = f"{good.words} --data.test {{}}/test.tsv"
    before = record(tmp_path, words)
    assert {Path(content.path).name for content in before.values()} == set(good.files)
    (tmp_path / "test.tsv").write_bytes(good.files["reviews.tsv"])
    assert edited(digests(before), record(tmp_path, words)) == []
    (tmp_path / "val.tsv").write_bytes(good.files["val.tsv"].replace(b"Hund", b"Hand"))
    assert edited(digests(before), record(tmp_path, words)) == ["data.val:"]
