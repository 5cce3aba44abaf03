"""Children of campaigns leave no files behind."""

from pathlib import Path

from tests.campaigns.child import run_forked


def test_what_a_child_writes_where_it_stands_is_removed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def work() -> int:
        print(*Path.cwd().iterdir())
        return Path("left.png").write_bytes(b"1234")

    ended = run_forked(work)
    assert (ended.code, ended.out, ended.err) == (4, "\n", "")
    assert not list(tmp_path.iterdir())
