"""Ownership of run folders, and errors of damaged ones."""

import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.recipes import run_folder
from regard.recipes.base.run import Run
from regard.recipes.dates.config import DatesRunConfig
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import (
    FORMAT_VERSION,
    RunFolder,
    find_source,
    find_unfinished_step,
    open_run_folder,
    read_init,
    read_run,
)
from regard.recipes.translate.config import TranslateRunConfig
from regard.settings.tree import apply_changes


def make_run(**changes: Any) -> Run:
    config = apply_changes(DatesRunConfig(), changes, called=str)
    return Run(recipe="dates", seed=3, config=config)


class Note:
    """Artifact that is a text; the text `fail` cannot be saved."""

    def __init__(self, text: str):
        self.text = text

    def save(self, path: Path) -> None:
        path.write_text(self.text)
        if self.text == "fail":
            raise UserError("no")


@contextmanager
def opening(folder: Path, run: Run, precision: Any = "float32") -> Iterator[RunFolder]:
    with open_run_folder(folder, run, resolve=lambda: precision, notify=print) as opened:
        yield opened


def claim(folder: Path, run: Run, **artifacts: Note) -> bool:
    """Open and start a run as training does; return True if the folder already held it."""
    with opening(folder, run, run.config.train.precision) as opened:
        opened.start(lambda: artifacts)
        return opened.is_resumed


def begin(folder: Path, run: Run | None = None) -> None:
    """Claim a folder and create a checkpoint folder, as if the run had saved one."""
    claim(folder, run or make_run())
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000001" / "state.json").touch()


def test_saved_run_is_read_unchanged(tmp_path: Path) -> None:
    core = {"name": "recurrent", "cell": "lstm"}
    run = make_run(model={"core": core}, data={"locales": ["nl", "pl"]})
    assert claim(tmp_path / "a" / "b", run) is False
    assert read_run(tmp_path / "a" / "b") == run


def test_files_of_a_run_are_not_those_of_one_that_starts_from_it(tmp_path: Path) -> None:
    files = {"train": "a.en", "train_target": "a.de", "val": "b.en", "val_target": "b.de"}
    default = TranslateRunConfig()
    config = apply_changes(default, {"data": files | {"val_share": 0.3}}, called=str)
    claim(tmp_path, Run(recipe="translate", seed=1, config=config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    taken, _ = read_init(tmp_path, get_entry("translate"))
    assert taken.data == dataclasses.replace(default.data, val_share=0.3)


def test_refusal_of_other_data_shows_the_paths_as_they_are_given(tmp_path: Path) -> None:
    def run(data: dict[str, str]) -> Run:
        config = apply_changes(TranslateRunConfig(), {"data": data}, called=str)
        return Run(recipe="translate", seed=1, config=config)

    begin(tmp_path, run({"train": "a.tsv"}))
    with pytest.raises(UserError, match=r"--data.val is None there and \['b.tsv'\] here"):
        claim(tmp_path, run({"train": "a.tsv", "val": "b.tsv"}))


FREE = [{"train": {"steps": 9000, "log_every": 7, "validate_every": 9}}, {"decode": {"beam": 4}}]
DECISIVE = [
    ({"train": {"lr": 0.5}}, "--train.lr is 0.002 there and 0.5 here"),
    ({"model": {"core": "recurrent"}}, "--model.core is 'transformer' there and 'recurrent' here"),
    ({"data": {"first_year": 1950}}, "--data.first-year is 1900 there and 1950 here"),
]


def test_claim_accepts_settings_that_do_not_affect_the_parameters(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "anything.txt").touch()
    created = read_run(tmp_path).created
    for changes in FREE:
        assert claim(tmp_path, dataclasses.replace(make_run(**changes), created="later")) is True
        assert read_run(tmp_path).config == make_run(**changes).config
        assert read_run(tmp_path).created == created


def test_claim_refuses_another_run_naming_the_difference(tmp_path: Path) -> None:
    begin(tmp_path)
    content = (tmp_path / "run.json").read_bytes()
    for changes, message in DECISIVE:
        with pytest.raises(UserError, match=message):
            claim(tmp_path, make_run(**changes))
    with pytest.raises(UserError, match="seed is 3 there and 4 here"):
        claim(tmp_path, dataclasses.replace(make_run(), seed=4))
    with pytest.raises(UserError, match="holds a run of recipe dates, not translate"):
        claim(tmp_path, Run(recipe="translate", seed=3, config=TranslateRunConfig()))
    assert (tmp_path / "run.json").read_bytes() == content


def test_claim_replaces_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").touch()  # hidden files are ignored
    claim(tmp_path, make_run(), note=Note("a"))
    assert (tmp_path / "artifacts" / "note").read_text() == "a"
    (tmp_path / "log.jsonl").touch()
    (tmp_path / "checkpoints" / "step-00000001.new").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000001.new" / "state.json").touch()
    assert find_unfinished_step(tmp_path) is None
    other = make_run(train={"lr": 0.5})
    assert claim(tmp_path, other) is False
    assert read_run(tmp_path) == other
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".gitignore", "artifacts", "checkpoints", "log.jsonl", "run.json"}
    assert not list((tmp_path / "artifacts").iterdir())


def test_run_that_fails_or_never_starts_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no"):
        claim(tmp_path / "a" / "run", make_run(), note=Note("fail"))
    assert list(tmp_path.iterdir()) == []
    with opening(tmp_path / "a" / "b", make_run()) as opened:
        assert (tmp_path / "a" / "b").is_dir()
        assert copy.deepcopy(opened) == opened  # as if pickled for other processes
    assert list(tmp_path.iterdir()) == []


def test_claim_refuses_files_of_something_else(tmp_path: Path) -> None:
    for name in ("thesis.tex", ".run.json.new"):
        (tmp_path / name).write_text("long", encoding="utf-8")
    with pytest.raises(UserError, match=r"files of something else \(thesis.tex\)"):
        claim(tmp_path, make_run())
    with pytest.raises(UserError, match="must be UTF-8, as safetensors requires"):
        claim(tmp_path / os.fsdecode(b"caf\xe9"), make_run())
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        claim(tmp_path / "thesis.tex", make_run())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run.json.new", "thesis.tex"]


LAYERS = ("config", "model", "core", "layers")
DAMAGE = [
    (("recipe",), "poems", "recipe must be one of dates, translate, .*got 'poems'"),
    (("recipe",), None, "damaged: .*missing required field `recipe`"),
    (("seed",), "one", "damaged: Expected `int`, got `str` - at `\\$.seed`"),
    (LAYERS, None, "config.model.core.layers is missing"),
    (LAYERS, 0, "config.model.core.layers must be from 1 to 1,000, got 0"),
    (("config", "model", "core", "name"), "os.system", "config.model.core must be transformer"),
    (("config", "extra"), 1, "config.extra is not a setting"),
    (("format_version",), FORMAT_VERSION - 1, r"by another version of regard \(format"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGE)
def test_read_run_refuses_a_damaged_file_naming_it(
    tmp_path: Path, path: tuple[str, ...], value: Any, message: str
) -> None:
    claim(tmp_path, make_run())
    file = tmp_path / "run.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    node = content
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    if value is None:
        del node[path[-1]]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=rf"(run\.json: |was written ).*{message}"):
        read_run(tmp_path)


def test_read_run_refuses_other_files_and_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"is not a run folder: it has no run\.json"):
            read_run(folder)
    for content in (b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(UserError, match=r"run\.json: damaged"):
            read_run(tmp_path)


def test_run_without_a_checkpoint_keeps_its_precision(tmp_path: Path) -> None:
    run = make_run(train={"precision": "auto"})
    for measured in ("bfloat16", "float32"):
        with opening(tmp_path, run, measured) as opened:
            opened.start(dict)
        assert read_run(tmp_path).config.train.precision == "bfloat16"
    with opening(tmp_path, make_run(train={"precision": "auto", "lr": 0.5})) as opened:
        assert opened.run.config.train.precision == "float32"


def test_data_is_identified_by_size_time_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("a b\n")
    before = find_source(str(path), None)
    assert (before.size, before.sha256) == (4, hashlib.sha256(b"a b\n").hexdigest())
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "hash_file", lambda _: pytest.fail("read again"))
        assert find_source(str(path), before) == before
    os.utime(path, ns=(1, 1))
    assert find_source(str(path), before).sha256 == before.sha256
    path.write_text("b a\n")
    assert find_source(str(path), before).sha256 != before.sha256


def test_folder_of_data_is_identified_by_the_names_and_content_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_text("a")
    before = find_source(str(tmp_path), None)
    (tmp_path / "a" / ".hidden").write_text("b")
    assert find_source(str(tmp_path), None).sha256 == before.sha256
    (tmp_path / "a" / "1.png").rename(tmp_path / "a" / "2.png")
    assert find_source(str(tmp_path), None).sha256 != before.sha256


def test_other_names_identify_themselves() -> None:
    names = ["hf:user/films", "hf:user/films#validation"]
    assert len({find_source(name, None).sha256 for name in names}) == 2
