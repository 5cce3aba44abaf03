import threading

from regard.digests import edited, note, recorded, summary


def test_record_holds_what_was_read_inside_it_and_nothing_else() -> None:
    note("before", b"1")
    with recorded() as seen:
        note("train.tsv", b"1")
        with recorded() as test:
            note("test.tsv", b"2")
    note("after", b"3")
    assert set(seen) == {"train.tsv"}
    assert set(test) == {"test.tsv"}


def test_edited_names_what_differs_came_or_went() -> None:
    with recorded() as before:
        for name in ("a", "b", "c"):
            note(name, name.encode())
    with recorded() as now:
        note("a", b"a")
        note("b", b"B")
        note("d", b"d")
    assert edited(summary(before), summary(now)) == ["b", "c", "d"]


def test_summary_of_many_files_is_one_entry_a_folder_and_changes_with_each_content_and_name() -> None:
    def record(change: tuple[str, bytes] | None = None, rename: str = "cat/0.png") -> dict[str, str]:
        with recorded() as seen:
            for number in range(300):
                name = f"{'cat' if number % 2 == 0 else 'dog'}/{number}.png"
                note(rename if name == "cat/0.png" else name, str(number).encode())
            note("list.tsv", b"list")
            if change:
                note(*change)
        return summary(seen)

    assert set(record()) == {"cat/*.png", "dog/*.png", "list.tsv"}
    assert edited(record(), record()) == []
    assert edited(record(), record(("dog/17.png", b"other"))) == ["dog/*.png"]
    assert edited(record(), record(rename="cat/zero.png")) == ["cat/*.png"]


def test_summary_of_many_folders_is_one_entry() -> None:
    seen = {f"{number}/{which}.png": str(number) for number in range(300) for which in "ab"}
    assert list(summary(seen)) == ["600 files"]
    assert summary(seen) != summary(seen | {"7/a.png": "8"})


def test_other_threads_are_not_recorded() -> None:
    with recorded() as seen:
        other = threading.Thread(target=lambda: note("elsewhere", b""))
        other.start()
        other.join()
    assert seen == {}
