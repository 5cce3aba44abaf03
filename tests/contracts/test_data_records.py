"""All training files of a recipe are in its data record, and a change of any byte is detected."""

from pathlib import Path

import pytest

from regard.cli.train import TrainOptions
from regard.recipes.base.run import Run, data_paths
from regard.recipes.load import create_recipe
from regard.recipes.registry import get_entry
from regard.settings.options import parse
from regard.system.fingerprints import Content, find_changes, record_digests, summarize
from tests.campaigns.files_specimens import SPECIMENS, specimen


def record(folder: Path, words: str) -> dict[str, Content]:
    recipe, *options = words.replace("{}", str(folder)).split()
    parsed = parse(
        options, TrainOptions(), get_entry(recipe).config(), max_positionals=0, expected=""
    )
    run = Run(recipe=recipe, seed=1, config=parsed.config)
    with record_digests() as records:
        create_recipe(run, lambda _: None).check()
    return summarize(records, data_paths(run))


def digests(contents: dict[str, Content]) -> dict[str, str]:
    """Return the digests as learned.json stores them."""
    return {key: content.digest for key, content in contents.items()}


@pytest.mark.parametrize("name", SPECIMENS)
def test_every_file_that_is_trained_on_is_recorded(tmp_path: Path, name: str) -> None:
    good = specimen(name)
    for file, content in good.files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    contents = record(tmp_path, good.words)
    for file in good.files:
        # The members of a tar archive.
        names = [
            content.path
            for content in contents.values()
            if content.path.startswith(str(tmp_path / file))
        ]
        assert names, file
    assert find_changes(digests(contents), record(tmp_path, good.words)) == []


def test_edits_are_detected_and_test_data_is_not_recorded(tmp_path: Path) -> None:
    good = specimen("reviews tsv")
    for file, content in good.files.items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / "test.tsv").write_bytes(good.files["val.tsv"])
    words = f"{good.words} --data.test {{}}/test.tsv"
    before = record(tmp_path, words)
    assert {Path(content.path).name for content in before.values()} == set(good.files)
    (tmp_path / "test.tsv").write_bytes(good.files["reviews.tsv"])
    assert find_changes(digests(before), record(tmp_path, words)) == []
    (tmp_path / "val.tsv").write_bytes(good.files["val.tsv"].replace(b"Hund", b"Hand"))
    assert find_changes(digests(before), record(tmp_path, words)) == ["data.val:"]
