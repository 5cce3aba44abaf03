"""The options -q and -v of every command."""

import logging

import pytest

from regard.cli.main import main
from regard.system.verbosity import print_notice, set_verbosity, take_verbosity, verbosity


def test_options_are_taken_from_anywhere_before_the_end_of_options() -> None:
    assert take_verbosity(["-q", "predict", "run"]) == (["predict", "run"], "quiet")
    assert take_verbosity(["predict", "run", "--verbose"]) == (["predict", "run"], "verbose")
    assert take_verbosity(["predict", "-q", "-v"]) == (["predict"], "verbose")
    assert take_verbosity(["predict", "run", "--", "-q"]) == (
        ["predict", "run", "--", "-q"],
        "normal",
    )


def test_quiet_hides_notices(capsys: pytest.CaptureFixture[str]) -> None:
    with set_verbosity("quiet"):
        print_notice("a notice")
    print_notice("another")
    assert capsys.readouterr().err == "another\n"
    assert verbosity() == "normal"


def test_verbose_prints_log_records(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("regard.test")
    log.debug("before")
    with set_verbosity("verbose"):
        log.debug("within")
    log.debug("after")
    log.warning("later")
    error = capsys.readouterr().err
    assert "regard.test: within" in error
    assert "before" not in error
    assert "after" not in error
    assert "regard.test: later" not in error


def test_errors_are_not_hidden_and_have_a_traceback_with_verbose(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-q", "predict", "nowhere"]) == 2
    assert "nowhere is not a run folder" in capsys.readouterr().err
    assert main(["predict", "nowhere", "-v"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err
