"""Files are replaced by whole files with their permissions; anything else is refused."""

import os
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.system.writing import open_text_atomically, valid_text, write_atomically


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "."])
def test_what_is_no_file_is_not_replaced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    Path("folder").mkdir()
    before = os.lstat(kind).st_mode
    with pytest.raises(UserError, match="is a folder, a pipe or a device, expected the name"):
        write_atomically(Path(kind), "text")
    with pytest.raises(UserError, match=f"{kind}: is a"), open_text_atomically(Path(kind)):
        pytest.fail("opened")
    assert os.lstat(kind).st_mode == before
    assert sorted(os.listdir()) == ["folder", "link", "pipe"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_is_replaced_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(mode)
    with open_text_atomically(path) as file:
        file.write("new")
        assert (tmp_path / ".a.txt.new").stat().st_mode & 0o777 == mode  # also while it is written
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", mode)


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(FileExistsError):
        write_atomically(path, "new", overwrite=False)
    with pytest.raises(UnicodeEncodeError), open_text_atomically(path) as file:
        file.write("new\ud83d")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_of_names_are_written_as_they_are_and_escaped_in_json(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    with open_text_atomically(tmp_path / "a.txt") as file:
        file.write(name)
    write_atomically(tmp_path / "a.json", f'"{name}"')
    assert (tmp_path / "a.txt").read_bytes() == b"caf\xe9"
    assert (tmp_path / "a.json").read_bytes() == b'"caf\\udce9"'
    assert valid_text("caf\xe9") == "caf\xe9"
