"""`regard COMMAND ...`: dispatch to a command, and conversion of errors into one line and an exit
code.

The module of a command parses its options; the code that loads torch is imported only after that.
"""

import contextlib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import partial

from regard import __version__
from regard.errors import (
    BROKEN_PIPE,
    DEFECT,
    DONE,
    INTERRUPTED,
    UNUSABLE,
    UserError,
    is_from_own_code,
    is_out_of_memory,
)
from regard.settings.help import two_columns
from regard.system.interrupt import interrupted_by_signals
from regard.system.terminal import one_line, usable_streams
from regard.system.verbosity import set_verbosity, take_verbosity

COMMANDS = {
    "train": "train the model of a recipe, or resume a run that was stopped",
    "evaluate": "evaluate a trained model on test data",
    "predict": "run a trained model on a text, a file, or lines of standard input",
    "look": "show the attention weights of a trained model",
    "bench": "measure training and inference speed on this machine, with a profile",
    "recipes": "list the recipes",
    "presets": "list models of papers that `train --preset` builds",
    "new": "write a recipe of your own to start from",
    "completion": "print the completion script of a shell",
}
"""Summary of each command; its module is regard.cli.COMMAND."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; sys.argv if not given) and return its exit
    code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--"]:  # torchrun may pass it on
        words = words[1:]
    words, level = take_verbosity(words)
    # numba's colors, which nothing here shows, would write a control sequence to standard output at
    # exit.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    with usable_streams(), interrupted_by_signals():
        try:
            with warnings.catch_warnings():
                warnings.showwarning = partial(_show_warning, set())
                with set_verbosity(level):
                    code = _dispatch(words)
                sys.stdout.flush()
                return code
        except (KeyboardInterrupt, BrokenPipeError) as error:
            return _handle_stop(error)
        except SystemExit:
            raise
        except BaseException as error:
            # Not only Exception: panics of libraries in Rust derive from BaseException.
            message, code = _describe(error)
            if code == DEFECT and is_from_own_code(error):
                raise
            if level == "verbose" or os.environ.get("REGARD_TRACEBACK"):
                traceback.print_exc()
            else:
                print(f"regard: {one_line(message)}", file=sys.stderr)
            return code


def _handle_stop(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        print("regard: interrupted", file=sys.stderr)
        return INTERRUPTED
    with contextlib.suppress(OSError):  # no descriptor if it was closed from the beginning
        # Python flushes stdout again at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _describe(error: BaseException) -> tuple[str, int]:
    """Return the message of an error and the exit code."""
    if is_out_of_memory(error):
        return f"not enough memory: {str(error) or 'an allocation failed'}", UNUSABLE
    if isinstance(error, ValueError | OSError):
        return _message(error), UNUSABLE
    name = type(error).__name__
    return (
        f"{name}: {one_line(str(error), longest=400)} -- this is a defect of regard: please report "
        f"it, with the "
        "traceback that the option -v shows in place of this line",
        DEFECT,
    )


def _dispatch(words: list[str]) -> int:
    if len(words) > 1 and words[0] == "help":
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return DONE
    command, *rest = words
    if command in ("-V", "--version"):
        print(f"regard {__version__}")
        return DONE
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}; the commands are {', '.join(COMMANDS)}")
    return importlib.import_module(f"regard.cli.{command}").run(rest)


def _overview() -> str:
    return "\n".join(
        [
            "usage: regard COMMAND ...",
            "",
            "Train attention models, use them, and look at their attention weights.",
            "",
            two_columns(list(COMMANDS.items())),
            "",
            "`regard help COMMAND` explains a command, `regard help train RECIPE` every setting of "
            "a recipe.",
            "",
            "-q, --quiet hides notices and progress bars, but not warnings and errors. -v, "
            "--verbose prints what is",
            "done, with times. An error prints one line to standard error and exits with code 2; "
            "with -v, or with",
            "REGARD_TRACEBACK=1 in the environment, it prints the traceback instead.",
        ]
    )


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _show_warning(
    shown: set[str], message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    """Print a warning to standard error, unless it is among those shown."""
    if issubclass(category, UserWarning) and str(message) not in shown:
        shown.add(str(message))
        print(f"regard: warning: {one_line(str(message))}", file=sys.stderr)
