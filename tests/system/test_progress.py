"""Progress bars and notices of slow work."""

import io
import sys
import time

import pytest

from regard.system.progress import report_slow, show_progress, track
from regard.system.verbosity import print_notice, set_verbosity


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace standard error; in the body of a test, since pytest sets it anew after fixtures."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


PARTS = [range(3), range(3, 5)]


def test_parts_are_unchanged_and_shown_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with show_progress():
        assert list(track(PARTS, "images", 5)) == PARTS
    assert "images" in terminal.getvalue()
    assert "5" in terminal.getvalue()


def test_number_of_items_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with show_progress():
        for _ in track(PARTS, "images", 5):
            time.sleep(0.6)  # the bar is drawn twice a second
    assert "3/5" in terminal.getvalue()
    assert "/s" in terminal.getvalue()


@pytest.mark.parametrize("case", ["outside", "disabled", "quiet", "file"])
def test_nothing_is_shown_otherwise(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    if case == "file":
        monkeypatch.setattr(Terminal, "isatty", lambda _: False)
    if case == "outside":
        assert list(track(PARTS, "images")) == PARTS
    with (
        set_verbosity("quiet" if case == "quiet" else "normal"),
        show_progress(is_enabled=case != "disabled"),
    ):
        assert case == "outside" or list(track(PARTS, "images")) == PARTS
    assert "images" not in terminal.getvalue()


def test_slow_work_is_reported_and_fast_work_is_not() -> None:
    found: list[str] = []
    with report_slow(found.append, "reading", seconds=0.05):
        time.sleep(0.3)
    with report_slow(found.append, "writing", seconds=5):
        pass
    assert found == ["reading"]


def test_slow_work_of_a_quiet_command_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with set_verbosity("quiet"), report_slow(print_notice, "reading", seconds=0.05):
        time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_standard_output_is_not_redirected_while_a_bar_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with show_progress():
        for part in track([[1], [2]], "inputs", 2):
            print(f"answer {part[0]}")
    assert capsys.readouterr().out == "answer 1\nanswer 2\n"
