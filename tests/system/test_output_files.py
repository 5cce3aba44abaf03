"""Files of a run: no links among them, linked folders that belong to the run, and no output beside
them."""

import json
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.system.output_files import check_no_link, check_output, claim_folder


def run_in(folder: Path) -> Path:
    """Create a folder that looks like a run folder."""
    for name in ("checkpoints/step-00000002", "snapshots", "looks", "pictures"):
        (folder / name).mkdir(parents=True)
    (folder / "run.json").write_text('{"recipe": "dates"}')
    (folder / "model.safetensors").write_text("weights")
    (folder / "checkpoints/step-00000002/optimizer.safetensors").touch()
    return folder


def test_link_is_refused_anywhere_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "sub").symlink_to("real")
    (tmp_path / "link").symlink_to("nothing")
    check_no_link(tmp_path, "real/file")
    check_no_link(tmp_path, "not there")
    for name in ("link", "sub/file"):
        with pytest.raises(
            UserError, match=r"is a symbolic link to (nothing|real), and training writes"
        ):
            check_no_link(tmp_path, name)


def test_empty_linked_folder_becomes_the_runs_own(tmp_path: Path) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk"
    run.mkdir()
    disk.mkdir()
    (disk / ".DS_Store").touch()
    claim_folder(run / "checkpoints")
    (run / "checkpoints").symlink_to(disk)
    claim_folder(run / "checkpoints")
    (disk / "step-00000002").mkdir()
    claim_folder(run / "checkpoints")
    assert json.loads((disk / ".regard-run.json").read_text()) == {"run": str(run)}
    run.rename(tmp_path / "moved")
    claim_folder(tmp_path / "moved" / "checkpoints")
    assert json.loads((disk / ".regard-run.json").read_text()) == {"run": str(tmp_path / "moved")}
    run.mkdir()
    (run / "checkpoints").symlink_to(disk)
    with pytest.raises(
        UserError,
        match=f"checkpoints is a symbolic link to {disk}, which belongs to the run in .*moved",
    ):
        claim_folder(run / "checkpoints")


def test_linked_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tb").symlink_to("other")
    with pytest.raises(UserError, match="tb is a symbolic link to other, which is not a folder"):
        claim_folder(tmp_path / "tb")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(
        UserError, match="tb is a symbolic link to other, which holds files that may not belong to"
    ):
        claim_folder(tmp_path / "tb")
    (tmp_path / "tb" / ".regard-run.json").touch()
    claim_folder(tmp_path / "tb")
    assert json.loads((tmp_path / "other" / ".regard-run.json").read_text()) == {
        "run": str(tmp_path)
    }
    for content in ("[]", "{", '{"run": 3}', '{"run": "a\\u0000b"}'):
        (tmp_path / "other" / ".regard-run.json").write_text(content)
        with pytest.raises(UserError, match=r"\.regard-run\.json: damaged"):
            claim_folder(tmp_path / "tb")
    assert len(list((tmp_path / "other").iterdir())) == 2


def test_output_never_lies_among_the_files_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "weights.safetensors").symlink_to("run/model.safetensors")
    (run / "looks" / "up").symlink_to("../checkpoints")
    inside = (
        "run/model.safetensors",
        "run/x.html",
        "run/../run/model.safetensors",
        "run/looks/../model.safetensors",
        "run/checkpoints/x.html",
        "run/checkpoints/step-00000002/optimizer.safetensors",
        "run/snapshots/step-00000002.safetensors",
        "run/looks/up/x.html",
        "link/model.safetensors",
        "weights.safetensors",
    )
    for name in inside:
        with pytest.raises(
            UserError, match=r"would lie among the files of the run in .*run: choose another"
        ):
            check_output(tmp_path / name)
    monkeypatch.chdir(run)
    with pytest.raises(UserError, match="would lie among"):
        check_output(Path("x.html"))
    for name in (
        "x.html",
        "run/looks/x.html",
        "run/pictures/x.html",
        "nowhere/x.html",
        "link/looks/x.html",
    ):
        check_output(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "is_run"),
    [('{"recipe": "dates"}', True), ("{", True), ('{"scripts": {}}', False), ("[]", False)],
)
def test_run_json_of_another_program_makes_no_run(
    tmp_path: Path, content: str, is_run: bool
) -> None:
    (tmp_path / "run.json").write_text(content)
    if is_run:
        with pytest.raises(UserError, match="would lie among the files of the run"):
            check_output(tmp_path / "x.html")
    else:
        check_output(tmp_path / "x.html")


def test_output_never_lies_in_a_linked_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / ".regard-run.json").write_text('{"run": "/somewhere"}')
    with pytest.raises(UserError, match="would lie among"):
        check_output(tmp_path / "step-00000002" / "model.safetensors")
