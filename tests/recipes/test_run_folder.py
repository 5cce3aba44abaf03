"""Ownership of run folders, and errors of damaged ones."""

import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.recipes import run_folder
from regard.recipes.base.run import Run
from regard.recipes.dates.config import DatesRunConfig
from regard.recipes.run_folder import (
    FORMAT_VERSION,
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


def fit_nothing(_folder: Path) -> None:
    pass


def claim(folder: Path, run: Run, fit: Callable[[Path], object] = fit_nothing) -> bool:
    """Open and start a run as training does; return True if the folder already held it."""
    with open_run_folder(
        folder, run, resolve=lambda: run.config.train.precision, notify=print
    ) as opened:
        opened.start(lambda stage: fit(stage) and None)
        return opened.is_resumed


def test_saved_run_is_read_unchanged(tmp_path: Path) -> None:
    run = make_run(
        model={"core": {"name": "recurrent", "cell": "lstm"}}, data={"locales": ["nl", "pl"]}
    )
    assert claim(tmp_path / "a" / "b", run) is False
    assert read_run(tmp_path / "a" / "b") == run


def test_files_of_a_run_are_not_those_of_one_that_starts_from_it(tmp_path: Path) -> None:
    changes = {
        "train": "a.en",
        "train_target": "a.de",
        "val": "b.en",
        "val_target": "b.de",
        "val_share": 0.3,
    }
    config = apply_changes(TranslateRunConfig(), {"data": changes}, called=str)
    claim(tmp_path / "run", Run(recipe="translate", seed=1, config=config))
    (tmp_path / "run" / "model.safetensors").write_bytes(b"")
    _, taken = read_init(tmp_path / "run", "translate")
    assert taken.data.val_share == 0.3
    assert (
        dataclasses.replace(taken.data, val_share=TranslateRunConfig().data.val_share)
        == TranslateRunConfig().data
    )


def test_claim_recognizes_its_run(tmp_path: Path) -> None:
    run = make_run()
    claim(tmp_path, run)
    begin(tmp_path)
    (tmp_path / "anything.txt").touch()
    assert claim(tmp_path, dataclasses.replace(run, created="later")) is True
    assert read_run(tmp_path).created == run.created


def begin(folder: Path) -> None:
    """Create a checkpoint folder, as if the run had saved one."""
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000001" / "state.json").touch()


FREE = [{"train": {"steps": 9000, "log_every": 7, "validate_every": 9}}, {"decode": {"beam": 4}}]
DECISIVE = [
    ({"train": {"lr": 0.5}}, "--train.lr is 0.002 there and 0.5 here"),
    ({"model": {"core": {"width": 32}}}, "--model.core.width is 128 there and 32 here"),
    ({"model": {"core": "recurrent"}}, "--model.core is 'transformer' there and 'recurrent' here"),
    ({"data": {"first_year": 1950}}, "--data.first-year is 1900 there and 1950 here"),
]


@pytest.mark.parametrize("changes", FREE)
def test_claim_accepts_settings_that_do_not_affect_the_parameters(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    claim(tmp_path, make_run())
    begin(tmp_path)
    assert claim(tmp_path, make_run(**changes)) is True
    assert read_run(tmp_path).config == make_run(**changes).config


@pytest.mark.parametrize(("changes", "message"), DECISIVE)
def test_claim_refuses_another_run_naming_the_difference(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    claim(tmp_path, make_run())
    begin(tmp_path)
    content = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UserError, match=message):
        claim(tmp_path, make_run(**changes))
    assert (tmp_path / "run.json").read_bytes() == content


def test_claim_refuses_another_seed_and_recipe(tmp_path: Path) -> None:
    claim(tmp_path, make_run())
    begin(tmp_path)
    with pytest.raises(UserError, match="seed is 3 there and 4 here"):
        claim(tmp_path, dataclasses.replace(make_run(), seed=4))
    with pytest.raises(UserError, match="holds a run of recipe dates, not translate"):
        claim(tmp_path, Run(recipe="translate", seed=3, config=TranslateRunConfig()))


def test_claim_replaces_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    claim(tmp_path, make_run(), lambda stage: (stage / "tokenizer.json").write_text("{}"))
    (tmp_path / "log.jsonl").touch()
    assert (tmp_path / "artifacts" / "tokenizer.json").exists()
    other = make_run(train={"lr": 0.5})
    assert claim(tmp_path, other) is False
    assert read_run(tmp_path) == other
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "artifacts",
        "log.jsonl",
        "run.json",
    ]
    assert not list((tmp_path / "artifacts").iterdir())


def test_artifacts_that_fail_leave_no_folder(tmp_path: Path) -> None:
    def fail(stage: Path) -> None:
        (stage / "half").touch()
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        claim(tmp_path / "a" / "run", make_run(), fail)
    assert list(tmp_path.iterdir()) == []


def test_claim_refuses_files_of_something_else(tmp_path: Path) -> None:
    for name in ("thesis.tex", ".run.json.new"):
        (tmp_path / name).write_text("long", encoding="utf-8")
    with pytest.raises(UserError, match=r"files of something else \(thesis.tex\)"):
        claim(tmp_path, make_run())
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        claim(tmp_path / "thesis.tex", make_run())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run.json.new", "thesis.tex"]


def damage(content: dict[str, Any], *path: str, value: Any) -> dict[str, Any]:
    node = content
    for name in path[:-1]:
        node = node[name]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return content


DAMAGE = [
    (("recipe",), "poems", "recipe must be one of dates, translate, .*got 'poems'"),
    (("recipe",), None, "damaged: .*missing required field `recipe`"),
    (("seed",), "one", "damaged: Expected `int`, got `str` - at `\\$.seed`"),
    (("config", "model", "core", "layers"), None, "config.model.core.layers is missing"),
    (("config", "model", "core", "layers"), "x", "config.model.core.layers must be a whole number"),
    (
        ("config", "model", "core", "layers"),
        0,
        "config.model.core.layers must be from 1 to 1,000, got 0",
    ),
    (
        ("config", "model", "core", "name"),
        "os.system",
        "config.model.core must be transformer, recurrent or self-attentive",
    ),
    (("config", "extra"), 1, "config.extra is not a setting"),
    (("config", "max_length"), 0, "config.max_length must be from 1"),
    (
        ("format_version",),
        FORMAT_VERSION - 1,
        rf"by another version of regard \(format {FORMAT_VERSION - 1}, this one reads",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGE)
def test_read_run_refuses_a_damaged_file_naming_it(
    tmp_path: Path, path: tuple[str, ...], value: Any, message: str
) -> None:
    claim(tmp_path, make_run())
    file = tmp_path / "run.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(damage(content, *path, value=value)), encoding="utf-8")
    with pytest.raises(UserError, match=rf"(run\.json: |was written ).*{message}"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_read_run_refuses_files_that_are_not_a_json_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UserError, match=r"run\.json: damaged"):
        read_run(tmp_path)


def test_read_run_reports_a_missing_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"is not a run folder: it has no run\.json"):
            read_run(folder)


def test_run_without_a_checkpoint_keeps_its_precision(tmp_path: Path) -> None:
    run = make_run(train={"precision": "auto"})
    for measured, expected in (("bfloat16", "bfloat16"), ("float32", "bfloat16")):
        with open_run_folder(tmp_path, run, resolve=lambda m=measured: m, notify=print) as opened:
            opened.start(fit_nothing)
        assert read_run(tmp_path).config.train.precision == expected
    other = make_run(train={"precision": "auto", "lr": 0.5})
    with open_run_folder(tmp_path, other, resolve=lambda: "float32", notify=print) as opened:
        assert opened.run.config.train.precision == "float32"


def test_unfinished_checkpoint_is_none(tmp_path: Path) -> None:
    claim(tmp_path, make_run())
    (tmp_path / "checkpoints" / "step-00000001.new").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000001.new" / "state.json").touch()
    assert find_unfinished_step(tmp_path) is None
    assert claim(tmp_path, make_run(train={"lr": 0.5})) is False


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").touch()
    assert claim(tmp_path, make_run()) is False
    assert claim(tmp_path, make_run(train={"lr": 0.5})) is False
    assert (tmp_path / ".gitignore").exists()


def test_opened_folder_is_sent_to_other_processes(tmp_path: Path) -> None:
    with open_run_folder(
        tmp_path / "run", make_run(), resolve=lambda: "float32", notify=print
    ) as opened:
        assert copy.deepcopy(opened) == opened  # as if pickled


def test_run_that_never_started_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with open_run_folder(folder, make_run(), resolve=lambda: "float32", notify=print):
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


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
