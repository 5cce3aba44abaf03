import threading
from collections.abc import Mapping
from pathlib import PurePath

from regard.system.fingerprints import add_digest, find_changes, record_digests, summarize


def test_record_holds_what_was_read_inside_it_and_nothing_else() -> None:
    add_digest("before", b"1")
    with record_digests() as seen:
        add_digest("train.tsv", b"1")
        with record_digests() as test:
            add_digest("test.tsv", b"2")
    add_digest("after", b"3")
    assert set(seen) == {"train.tsv"}
    assert set(test) == {"test.tsv"}


def record(contents: Mapping[str, str]) -> dict[str, str]:
    with record_digests() as seen:
        for name, content in contents.items():
            add_digest(name, content.encode())
    return seen


def edits(
    before: Mapping[str, str], places: Mapping[str, str], now: Mapping[str, str], moved: Mapping[str, str] | None = None
) -> list[str]:
    """The paths of what differs between two records, or the keys of what is no longer read."""
    then, here = summarize(record(before), places), summarize(record(now), moved or places)
    keys = find_changes({key: content.digest for key, content in then.items()}, here)
    return [here[key].path if key in here else key for key in keys]


def test_edited_names_what_differs_came_or_went() -> None:
    now = {"a": "a", "b": "B", "d": "d"}
    assert edits({"a": "a", "b": "b", "c": "c"}, {}, now) == ["b", "d"]
    places = {"data.train": "d"}
    assert edits({"d/a": "a", "d/b": "b"}, places, {"d/a": "A"}) == ["d/a", "data.train:b"]


def test_data_that_moved_with_the_same_content_is_the_same() -> None:
    before = {"d/train.tsv": "1", "val.tsv": "2"}
    places = {"data.train": "d/train.tsv", "data.val": "val.tsv"}
    for train in ("/else/train.tsv", "./t.tsv", "t.TSV.gz"):
        moved = {"data.train": train, "data.val": "val.tsv"}
        now = {str(PurePath(train)): "1", "val.tsv": "2"}
        assert edits(before, places, now, moved) == []
        assert edits(before, places, now | {str(PurePath(train)): "3"}, moved) == [str(PurePath(train))]
    swapped = {"data.train": "val.tsv", "data.val": "d/train.tsv"}
    assert edits(before, places, before, swapped) == ["val.tsv", "d/train.tsv"]


def test_ending_that_decides_how_a_file_is_read_is_part_of_its_role() -> None:
    before, now = {"data.train": "a.tsv"}, {"data.train": "a.jsonl"}
    assert edits({"a.tsv": "1"}, before, {"a.jsonl": "1"}, now) == ["a.jsonl"]
    assert edits({"a.jsonl": "1"}, now, {"a.tsv": "1"}, before) == ["a.tsv"]
    for same in ("a.ndjson", "a.jsonl.gz"):
        assert edits({"a.jsonl": "1"}, now, {same: "1"}, {"data.train": same}) == []


def test_endings_of_text_in_columns_and_of_pipes_are_one() -> None:
    for name in ("a.txt", "a.tab", "fd/63"):
        assert edits({"a.tsv": "1"}, {"data.train": "a.tsv"}, {name: "1"}, {"data.train": name}) == []


def test_ending_is_no_part_of_the_role_where_the_settings_give_the_format() -> None:
    keys = [
        set(summarize({name: "1"}, {"data.train": name}, by_ending=False)) for name in ("a.tsv", "a.jsonl", "fd/63")
    ]
    assert keys == [{"data.train:"}] * 3


def test_folder_that_moved_is_the_same_unless_a_name_below_it_differs() -> None:
    before = {"pets/cat/0.png": "0", "pets/dog/0.png": "1"}
    for place in ("/else/pets", ".", "x/y"):
        now = {str(PurePath(place) / name.removeprefix("pets/")): content for name, content in before.items()}
        assert edits(before, {"data.train": "pets"}, now, {"data.train": place}) == []
    now = {"x/cat/0.png": "1", "x/dog/0.png": "0"}
    assert edits(before, {"data.train": "pets"}, now, {"data.train": "x"}) == ["x/cat/0.png", "x/dog/0.png"]


def test_files_that_another_lists_are_known_by_their_order() -> None:
    before = {"d/list.csv": "a,b", "d/a.png": "0", "d/b.png": "1"}
    places, moved = {"data.train": "d/list.csv"}, {"data.train": "e/list.csv"}
    assert edits(before, places, {"e/list.csv": "a,b", "e/a.png": "0", "e/b.png": "1"}, moved) == []
    assert edits(before, places, {"e/list.csv": "a,b", "e/a.png": "1", "e/b.png": "0"}, moved) == ["e/a.png", "e/b.png"]
    assert edits(before, places, {"e/list.csv": "a", "e/a.png": "0"}, moved) == ["e/list.csv", "listed:000001"]


def test_file_of_two_roles_may_become_two_files() -> None:
    both = {"data.train": "a.tsv", "data.val": "a.tsv"}
    assert edits({"a.tsv": "1"}, both, {"a.tsv": "1", "b.tsv": "1"}, {"data.train": "a.tsv", "data.val": "b.tsv"}) == []


def test_summary_of_many_files_is_one_entry_a_folder_and_changes_with_each_content_and_name() -> None:
    def many(place: str, change: Mapping[str, str] | None = None) -> dict[str, str]:
        files = {f"{place}/{'cat' if i % 2 == 0 else 'dog'}/{i}.png": str(i) for i in range(300)}
        return {f"{place}/list.tsv": "list"} | files | dict(change or {})

    a, b = {"data.train": "a"}, {"data.train": "b"}
    assert set(summarize(record(many("a")), a)) == {
        "data.train:cat/*.png",
        "data.train:dog/*.png",
        "data.train:list.tsv",
    }
    assert edits(many("a"), a, many("b"), b) == []
    assert edits(many("a"), a, many("b", {"b/dog/17.png": "other"}), b) == ["b/dog/*.png"]
    renamed = {name.replace("cat/0.png", "cat/zero.png"): content for name, content in many("b").items()}
    assert edits(many("a"), a, renamed, b) == ["b/cat/*.png"]


def test_summary_of_many_folders_is_one_entry_a_role() -> None:
    seen = {f"a/{number}/{which}.png": str(number) for number in range(300) for which in "ab"}
    places = {"data.train": "a"}
    assert set(summarize(seen | {"b.png": "0"}, places)) == {"data.train:*", "listed:000000"}
    assert summarize(seen, places) != summarize(seen | {"a/7/a.png": "8"}, places)


def test_other_threads_are_not_recorded() -> None:
    with record_digests() as seen:
        other = threading.Thread(target=lambda: add_digest("elsewhere", b""))
        other.start()
        other.join()
    assert seen == {}
