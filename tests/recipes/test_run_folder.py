"""Ownership of run folders, and errors of damaged ones."""

import copy
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.recipes.base.run import Run
from regard.recipes.dates.config import DatesRunConfig
from regard.recipes.learned_files import discard
from regard.recipes.run_folder import FORMAT_VERSION, open_run_folder, read_init, read_run
from regard.recipes.translate.config import TranslateRunConfig
from regard.settings.tree import apply_changes
from regard.system.fingerprints import add_checksum, file_fingerprint


def make_run(**changes: Any) -> Run:
    config = apply_changes(DatesRunConfig(), changes, called=str)
    return Run(recipe="dates", seed=3, config=config)


def learn_nothing(_stage: Path) -> None:
    pass


def claim(folder: Path, run: Run, learn: Callable[[Path], object] = learn_nothing) -> bool:
    """Claim a folder as training does; return True if it already held the run."""
    with open_run_folder(
        folder, run, resolve=lambda: (run.config.train.precision, ""), notify=print
    ) as own:
        own.claim(lambda stage: learn(stage) and None, {}, print)
        return own.is_resumed


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
    (tmp_path / "anything.txt").touch()
    assert claim(tmp_path, dataclasses.replace(run, created="later")) is True
    assert read_run(tmp_path).created == run.created


def begin(folder: Path) -> None:
    """Create a checkpoint folder, as if the run had saved one."""
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)


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
    other = make_run(train={"lr": 0.5})
    assert claim(tmp_path, other) is False
    assert read_run(tmp_path) == other
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "learned.json",
        "log.jsonl",
        "run.json",
    ]


def test_claim_refuses_another_run_beside_files_that_are_not_its_own(tmp_path: Path) -> None:
    claim(tmp_path, make_run())
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"train.lr is 0\.002 there and 0\.5 here"):
        claim(tmp_path, make_run(train={"lr": 0.5}))


def test_read_run_refuses_a_setting_that_was_altered(tmp_path: Path) -> None:
    claim(tmp_path, make_run())
    path = tmp_path / "run.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["config"]["decode"]["beam"] = 7
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(
        UserError, match=r"run\.json: damaged, or edited by hand.*set 'checksum' to"
    ) as error:
        read_run(tmp_path)
    content["checksum"] = str(error.value).split("'")[-2]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert read_run(tmp_path).config == make_run(decode={"beam": 7}).config


def test_claim_refuses_files_of_something_else(tmp_path: Path) -> None:
    for name in ("thesis.tex", ".run.json.new"):
        (tmp_path / name).write_text("long", encoding="utf-8")
    with pytest.raises(UserError, match=r"files of something else \(thesis.tex\)"):
        claim(tmp_path, make_run())
    with pytest.raises(UserError, match="is a file, not a folder"):
        claim(tmp_path / "thesis.tex", make_run())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run.json.new", "thesis.tex"]


def test_claim_accepts_a_folder_in_which_it_was_killed_while_writing(tmp_path: Path) -> None:
    (tmp_path / ".run.json.new").write_text("{", encoding="utf-8")
    assert claim(tmp_path, make_run()) is False


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
    (("recipe",), None, "damaged: recipe must be str, got None"),
    (("seed",), "one", "damaged: seed must be int"),
    (("seed",), True, "damaged: seed must be int, got True"),
    (("config",), [], "damaged: config must be dict"),
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
        FORMAT_VERSION + 1,
        rf"by a newer version of regard \(format {FORMAT_VERSION + 1}, this one reads "
        rf"{FORMAT_VERSION}\): update",
    ),
    (
        ("format_version",),
        1,
        rf"by an older version of regard \(format 1, this one reads {FORMAT_VERSION}\): train it "
        rf"again",
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
    with pytest.raises(UserError, match=r"is not a run folder: it has no run\.json"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read_run(tmp_path / "nowhere")


def test_read_run_suggests_the_runs_in_a_folder_and_those_of_similar_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for time, name in enumerate(("runs/old", "runs/new")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").touch()
        os.utime(tmp_path / name / "run.json", (time, time))
    (tmp_path / "runs/olds").mkdir()
    for name, near in (
        ("runs", "runs/new or runs/old"),
        ("olds", "runs/old"),
        ("runs/olds", "runs/old"),
    ):
        with pytest.raises(UserError, match=rf"^{name} .*\. Did you mean {near}\?$"):
            read_run(name)


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").touch()
    (tmp_path / ".DS_Store").touch()
    assert claim(tmp_path, make_run()) is False
    assert claim(tmp_path, make_run(train={"lr": 0.5})) is False
    names = [".DS_Store", ".gitignore", "learned.json", "run.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_folder_that_is_a_broken_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to("gone")
    for folder in (tmp_path / "current", tmp_path / "current" / "run"):
        with pytest.raises(
            UserError, match="current is a symbolic link to gone, which does not exist"
        ):
            claim(folder, make_run())


@pytest.mark.parametrize(
    "name", ["run.json", "learned.json", "report.json", "model.safetensors", "log.jsonl", "a.json"]
)
def test_file_of_a_run_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    claim(run, make_run(), lambda stage: (stage / "a.json").write_text("{}"))
    victim.write_bytes((run / name).read_bytes() if (run / name).exists() else b"dear")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    content = victim.read_bytes()
    with pytest.raises(UserError, match=rf"{name} is a symbolic link to .*victim"):
        claim(run, make_run())
    assert victim.read_bytes() == content


def test_foreign_files_are_never_removed(tmp_path: Path) -> None:
    claim(tmp_path / "run", make_run())
    (tmp_path / "victim").mkdir()
    names = ("notes.txt", "sub/log.jsonl", "kept.json")
    (tmp_path / "run" / "sub").symlink_to("../victim")
    for name in names:
        (tmp_path / "run" / name).write_text("dear")
    files = {name: file_fingerprint(tmp_path / "run" / name) for name in names}
    (tmp_path / "run" / "notes.txt").write_text("dear, but changed")
    content = {"format": "regard-learned", "version": 2, "files": files, "data": {}}
    (tmp_path / "run" / "learned.json").write_text(json.dumps(add_checksum(content)))
    with pytest.raises(UserError, match="seed is 3 there and 4 here"):
        claim(tmp_path / "run", dataclasses.replace(make_run(), seed=4))
    discard(tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").exists()
    assert (tmp_path / "victim" / "log.jsonl").exists()
    assert not (tmp_path / "run" / "kept.json").exists()


def test_folder_with_links_to_another_disk_is_accepted(tmp_path: Path) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk"
    run.mkdir()
    disk.mkdir()
    (run / "checkpoints").symlink_to(disk)
    assert claim(run, make_run()) is False
    (disk / ".regard-run.json").unlink()
    (disk / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds files that may not belong to this run"):
        claim(run, make_run())


def test_folder_is_read_once_under_the_lock(tmp_path: Path) -> None:
    def open_folder(run: Run) -> Any:
        return open_run_folder(tmp_path / "run", run, resolve=lambda: ("float32", ""), notify=print)

    with open_folder(make_run()) as own:
        assert not own.is_resumed
        own.claim(learn_nothing, {}, print)
        with (
            pytest.raises(UserError, match="trains in this folder"),
            open_folder(make_run(train={"lr": 0.5})),
        ):
            pass
        other = copy.deepcopy(own)  # as sent to the other processes
        assert (other.run, other.fingerprint) == (own.run, own.fingerprint)
        assert other.directory.path == own.directory.path
        other.directory.close()
    assert read_run(tmp_path / "run").config.train.lr == make_run().config.train.lr
    with open_folder(make_run()) as own:
        assert own.is_resumed


def test_run_that_never_claimed_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with open_run_folder(folder, make_run(), resolve=lambda: ("float32", ""), notify=print):
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []
