"""`regard COMMAND ...`: dispatch to a command, and errors as one line with an exit code.

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
from regard.errors import BROKEN_PIPE, DONE, INTERRUPTED, UNUSABLE, UserError, is_out_of_memory
from regard.settings.help import HelpShown, two_columns
from regard.system.extras import EXTRAS, missing
from regard.system.interrupt import interrupted_by_signals
from regard.system.terminal import one_line, usable_streams
from regard.system.verbosity import set_verbosity, take_verbosity

COMMANDS = {
    "train": "train the model of a recipe, or resume a run that was stopped",
    "evaluate": "evaluate a trained model on test data",
    "compare": "compare runs: settings, test metrics with intervals, answers",
    "sweep": "train a recipe over a grid of settings and seeds, and compare the runs",
    "predict": "run a trained model on a text, a file, or lines of standard input",
    "score": "compute the log-probability of given texts",
    "embed": "compute vectors of texts, images or sounds",
    "look": "show the attention weights of a trained model",
    "serve": "answer requests over HTTP with trained runs, with a page",
    "import": "make a run of public weights, of a folder of Transformers",
    "export": "write a trained model for other libraries",
    "bench": "measure training and inference speed on this machine, with a profile",
    "lab": "test the claims of the lectures by experiments",
    "recipes": "list the recipes",
    "presets": "list models of papers that `train --preset` builds",
    "new": "write a recipe of your own to start from",
    "completion": "print the completion script of a shell",
}
"""Summary of each command; its function is `run` of regard.cli.COMMAND, but for some."""
_FUNCTIONS = {
    "compare": "experiments.compare:run",
    "sweep": "experiments.sweep:run",
    "score": "outputs.score:run",
    "embed": "outputs.embed:run",
    "new": "own_recipe:write_recipe",
    "import": "exchange:run_import",
    "export": "exchange:run_export",
    "recipes": "lists:list_recipes",
    "presets": "lists:list_presets",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (sys.argv without the program's name if not given)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--"]:  # torchrun may pass it on
        words = words[1:]
    words, level = take_verbosity(words)
    # numba's colors, which nothing here shows, would write a control sequence to standard output at
    # exit.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    with usable_streams(), interrupted_by_signals(), warnings.catch_warnings():
        warnings.showwarning = partial(_show_warning, set())
        try:
            code = DONE
            with set_verbosity(level), contextlib.suppress(HelpShown):
                code = _dispatch(words)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            print("regard: interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            with contextlib.suppress(OSError):  # no descriptor if it was closed from the beginning
                # Python flushes stdout again at exit, which would fail again.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            if level == "verbose":
                traceback.print_exc()
            print(f"regard: {one_line(_describe(error))}", file=sys.stderr)
            return UNUSABLE


def _dispatch(words: list[str]) -> int:
    if len(words) > 1 and words[0] == "help":
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(
            f"""usage: regard COMMAND ...

Train attention models, use them, and look at their attention weights.

{two_columns(list(COMMANDS.items()))}

`regard help COMMAND` explains a command, `regard help train RECIPE` every setting of a recipe.

-q, --quiet hides notices and progress bars, but not warnings and errors. -v, --verbose prints
what is done, with times. A wrong option, input or file prints one line to standard error and exits
with code 2; with -v, the traceback, too."""
        )
        return DONE
    command, *rest = words
    if command in ("-V", "--version"):
        print(f"regard {__version__}")
        return DONE
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}; the commands are {', '.join(COMMANDS)}")
    module, _, function = _FUNCTIONS.get(command, f"{command}:run").partition(":")
    try:
        return getattr(importlib.import_module(f"regard.cli.{module}"), function)(rest)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise missing(package, f"regard {command}") from error


def _describe(error: Exception) -> str:
    if is_out_of_memory(error):
        return f"not enough memory: {str(error) or 'an allocation failed'}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _show_warning(
    shown: set[str], message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    if issubclass(category, UserWarning) and str(message) not in shown:
        shown.add(str(message))
        print(f"regard: warning: {one_line(str(message))}", file=sys.stderr)
