import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path, PurePath

import pytest

from regard.system.fingerprints import (
    add_digest,
    digest,
    file_fingerprint,
    find_changes,
    fingerprint,
    is_fingerprint,
    is_unchanged,
    record_digests,
    summarize,
)


def test_fingerprint_is_the_length_and_the_first_digits_of_sha256(tmp_path: Path) -> None:
    content = bytes(range(251)) * 9_001  # more than one block
    (tmp_path / "file").write_bytes(content)
    expected = f"{len(content)}:{hashlib.sha256(content).hexdigest()[:32]}"
    assert file_fingerprint(tmp_path / "file") == expected
    assert fingerprint([content[:5], memoryview(content)[5:]]) == expected
    assert digest([content]) == expected.partition(":")[2]
    assert is_fingerprint(expected)


@pytest.mark.parametrize("change", [b"", b"ab", b"abd", b"abcd"])
def test_change_of_a_file_is_found(tmp_path: Path, change: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    before = file_fingerprint(path)
    assert is_unchanged(path, before)
    path.write_bytes(change)
    assert not is_unchanged(path, before)


def test_record_has_only_files_that_were_read_in_its_block() -> None:
    add_digest("before", b"1")
    with record_digests() as digests:
        add_digest("train.tsv", b"1")
        with record_digests() as test:
            add_digest("test.tsv", b"2")
    add_digest("after", b"3")
    assert set(digests) == {"train.tsv"}
    assert set(test) == {"test.tsv"}


def record(contents: Mapping[str, str]) -> dict[str, str]:
    with record_digests() as digests:
        for name, content in contents.items():
            add_digest(name, content.encode())
    return digests


def find_edits(
    saved: Mapping[str, str],
    roles: Mapping[str, str],
    current: Mapping[str, str],
    moved_roles: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the paths of contents that differ between two records, or the keys of those that are
    no longer read."""
    saved_contents, contents = (
        summarize(record(saved), roles),
        summarize(record(current), moved_roles or roles),
    )
    keys = find_changes({key: content.digest for key, content in saved_contents.items()}, contents)
    return [contents[key].path if key in contents else key for key in keys]


def test_find_changes_names_changed_added_and_removed_files() -> None:
    current = {"a": "a", "b": "B", "d": "d"}
    assert find_edits({"a": "a", "b": "b", "c": "c"}, {}, current) == ["b", "d"]
    roles = {"data.train": "d"}
    assert find_edits({"d/a": "a", "d/b": "b"}, roles, {"d/a": "A"}) == ["d/a", "data.train:b"]


def test_data_that_moved_with_the_same_content_is_the_same() -> None:
    saved = {"d/train.tsv": "1", "val.tsv": "2"}
    roles = {"data.train": "d/train.tsv", "data.val": "val.tsv"}
    for train in ("/else/train.tsv", "./t.tsv", "t.TSV.gz"):
        moved_roles = {"data.train": train, "data.val": "val.tsv"}
        current = {str(PurePath(train)): "1", "val.tsv": "2"}
        assert find_edits(saved, roles, current, moved_roles) == []
        assert find_edits(saved, roles, current | {str(PurePath(train)): "3"}, moved_roles) == [
            str(PurePath(train))
        ]
    swapped = {"data.train": "val.tsv", "data.val": "d/train.tsv"}
    assert find_edits(saved, roles, saved, swapped) == ["val.tsv", "d/train.tsv"]


def test_ending_that_decides_how_a_file_is_read_is_part_of_its_role() -> None:
    tsv, jsonl = {"data.train": "a.tsv"}, {"data.train": "a.jsonl"}
    assert find_edits({"a.tsv": "1"}, tsv, {"a.jsonl": "1"}, jsonl) == ["a.jsonl"]
    assert find_edits({"a.jsonl": "1"}, jsonl, {"a.tsv": "1"}, tsv) == ["a.tsv"]
    for same in ("a.ndjson", "a.jsonl.gz"):
        assert find_edits({"a.jsonl": "1"}, jsonl, {same: "1"}, {"data.train": same}) == []


def test_endings_of_text_in_columns_and_of_pipes_are_one() -> None:
    for name in ("a.txt", "a.tab", "fd/63"):
        assert (
            find_edits({"a.tsv": "1"}, {"data.train": "a.tsv"}, {name: "1"}, {"data.train": name})
            == []
        )


def test_ending_is_no_part_of_the_role_where_the_settings_give_the_format() -> None:
    keys = [
        set(summarize({name: "1"}, {"data.train": name}, by_ending=False))
        for name in ("a.tsv", "a.jsonl", "fd/63")
    ]
    assert keys == [{"data.train:"}] * 3


def test_folder_that_moved_is_the_same_unless_a_name_below_it_differs() -> None:
    saved = {"pets/cat/0.png": "0", "pets/dog/0.png": "1"}
    for folder in ("/else/pets", ".", "x/y"):
        current = {
            str(PurePath(folder) / name.removeprefix("pets/")): content
            for name, content in saved.items()
        }
        assert find_edits(saved, {"data.train": "pets"}, current, {"data.train": folder}) == []
    current = {"x/cat/0.png": "1", "x/dog/0.png": "0"}
    assert find_edits(saved, {"data.train": "pets"}, current, {"data.train": "x"}) == [
        "x/cat/0.png",
        "x/dog/0.png",
    ]


def test_files_that_another_lists_are_known_by_their_order() -> None:
    saved = {"d/list.csv": "a,b", "d/a.png": "0", "d/b.png": "1"}
    roles, moved_roles = {"data.train": "d/list.csv"}, {"data.train": "e/list.csv"}
    assert (
        find_edits(saved, roles, {"e/list.csv": "a,b", "e/a.png": "0", "e/b.png": "1"}, moved_roles)
        == []
    )
    assert find_edits(
        saved, roles, {"e/list.csv": "a,b", "e/a.png": "1", "e/b.png": "0"}, moved_roles
    ) == [
        "e/a.png",
        "e/b.png",
    ]
    assert find_edits(saved, roles, {"e/list.csv": "a", "e/a.png": "0"}, moved_roles) == [
        "e/list.csv",
        "listed:000001",
    ]


def test_file_of_two_roles_may_become_two_files() -> None:
    both = {"data.train": "a.tsv", "data.val": "a.tsv"}
    assert (
        find_edits(
            {"a.tsv": "1"},
            both,
            {"a.tsv": "1", "b.tsv": "1"},
            {"data.train": "a.tsv", "data.val": "b.tsv"},
        )
        == []
    )


def test_summary_of_many_files_is_one_entry_a_folder_and_changes_with_each_content_and_name() -> (
    None
):
    def many_files(folder: str, change: Mapping[str, str] | None = None) -> dict[str, str]:
        files = {f"{folder}/{'cat' if i % 2 == 0 else 'dog'}/{i}.png": str(i) for i in range(300)}
        return {f"{folder}/list.tsv": "list"} | files | dict(change or {})

    a, b = {"data.train": "a"}, {"data.train": "b"}
    assert set(summarize(record(many_files("a")), a)) == {
        "data.train:cat/*.png",
        "data.train:dog/*.png",
        "data.train:list.tsv",
    }
    assert find_edits(many_files("a"), a, many_files("b"), b) == []
    assert find_edits(many_files("a"), a, many_files("b", {"b/dog/17.png": "other"}), b) == [
        "b/dog/*.png"
    ]
    renamed = {
        name.replace("cat/0.png", "cat/zero.png"): content
        for name, content in many_files("b").items()
    }
    assert find_edits(many_files("a"), a, renamed, b) == ["b/cat/*.png"]


def test_summary_of_many_folders_is_one_entry_a_role() -> None:
    digests = {f"a/{number}/{which}.png": str(number) for number in range(300) for which in "ab"}
    roles = {"data.train": "a"}
    assert set(summarize(digests | {"b.png": "0"}, roles)) == {"data.train:*", "listed:000000"}
    assert summarize(digests, roles) != summarize(digests | {"a/7/a.png": "8"}, roles)


def test_other_threads_are_not_recorded() -> None:
    with record_digests() as digests:
        other = threading.Thread(target=lambda: add_digest("elsewhere", b""))
        other.start()
        other.join()
    assert digests == {}
