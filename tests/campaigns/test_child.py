"""Children of campaigns leave no files behind."""

from pathlib import Path

from tests.campaigns.child import run_forked


def test_files_in_the_working_directory_of_a_child_are_removed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def work() -> int:
        print(*Path.cwd().iterdir())
        return Path("left.png").write_bytes(b"1234")

    result = run_forked(work)
    assert (result.code, result.out, result.err) == (4, "\n", "")
    assert not list(tmp_path.iterdir())
