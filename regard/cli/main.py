"""`regard VERB ...`: finds the verb, and turns what went wrong into one line and an exit code.

A verb's module reads the options; what does the work, and loads torch, is imported when they are read.
"""

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from regard import __version__
from regard.cli.exits import BROKEN_PIPE, DEFECT, DONE, INTERRUPTED, UNUSABLE
from regard.cli.help import two_columns
from regard.cli.streams import usable_streams
from regard.display import one_line
from regard.errors import UserError, is_out_of_memory
from regard.recipes.kinds import nearest

VERBS = {
    "train": "train a recipe's model, or go on with a run that was stopped",
    "evaluate": "score a trained model on test data",
    "predict": "what a trained model says to a text, a file, or lines on standard input",
    "look": "draw where a trained model looked",
    "bench": "what this machine reaches for a trained model, and where the time goes",
    "recipes": "list what can be trained",
    "new": "write a recipe of your own to begin with",
}
"""Each verb's purpose; its module is regard.cli.VERB."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name; sys.argv if not given) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--"]:  # as torchrun may hand it on
        words = words[1:]
    with usable_streams():
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                code = _dispatch(words)
                sys.stdout.flush()
                return code
        except (KeyboardInterrupt, BrokenPipeError) as error:
            return _stopped(error)
        except SystemExit:
            raise
        except BaseException as error:
            # Not only Exception: a library in Rust reports a defect of its own by an exception that is none.
            if os.environ.get("REGARD_TRACEBACK"):
                raise
            message, code = _explained(error)
            print(f"regard: {one_line(message)}", file=sys.stderr)
            return code


def _stopped(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        print("regard: interrupted", file=sys.stderr)
        return INTERRUPTED
    with contextlib.suppress(OSError):  # where it was closed from the beginning, there is no descriptor
        # Python flushes stdout at exit once more, which would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _explained(error: BaseException) -> tuple[str, int]:
    """The message for an error, and the exit code."""
    if is_out_of_memory(error):
        return f"not enough memory: {str(error) or 'an allocation failed'}", UNUSABLE
    if isinstance(error, ValueError | OSError):
        return _in_words(error), UNUSABLE
    what = type(error).__name__
    return (
        f"{what}: {one_line(str(error), longest=400)} -- this is a defect of regard: please report it, with the "
        "traceback that REGARD_TRACEBACK=1 in the environment shows in place of this line",
        DEFECT,
    )


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return DONE
    verb, *rest = words
    if verb == "--version":
        print(f"regard {__version__}")
        return DONE
    if verb not in VERBS:
        kind = "option" if verb.startswith("-") else "command"
        hint = nearest(verb, VERBS) or f"; there are {', '.join(VERBS)}"
        raise UserError(f"unknown {kind} {verb!r}{hint}")
    return importlib.import_module(f"regard.cli.{verb}").run(rest)


def _overview() -> str:
    return "\n".join(
        [
            "usage: regard VERB ...",
            "",
            "Train models that attend, use them, see where they looked.",
            "",
            two_columns(list(VERBS.items())),
            "",
            "`regard VERB --help` explains a verb, `regard train RECIPE --help` every setting of a recipe.",
            "",
            "An error is one line on standard error and the exit code 2; with REGARD_TRACEBACK=1 in the environment,",
            "Python's traceback comes in its place.",
        ]
    )


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, UserWarning):
        print(f"regard: warning: {one_line(str(message))}", file=sys.stderr)
