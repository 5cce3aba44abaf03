"""Answers that are read again have the attention with which they were computed."""

from pathlib import Path

import pytest

from regard.errors import UserError
from regard.recipes.base.trained import TrainedRun
from tests.recipes.capture_checks import check_again
from tests.recipes.tiny import quick_options
from tests.recipes.untrained import untrained

CORES = {
    "transformer": "--model.core transformer --model.core.width 8 --model.core.heads 2 "
    "--model.core.positions rotary",
    "self-attentive": "--model.core self-attentive --model.core.width 8 --model.core.hidden 8",
    "recurrent": "--model.core recurrent --model.core.width 8 --model.core.hidden 8",
}


def load(name: str, folder: Path, core: str = "transformer") -> TrainedRun:
    """Return a quick run with random weights and a core."""
    options, words = CORES[core].split(), quick_options(name)
    for option, value in zip(words[::2], words[1::2], strict=True):
        if not option.startswith("--model.core"):
            options += [option, value]
    return TrainedRun(*untrained(name, folder, *options), folder)


@pytest.mark.parametrize("core", ["transformer", "self-attentive"])
@pytest.mark.parametrize("context", ["restart", "last", "slide"])
def test_continuations(core: str, context: str, tmp_path: Path) -> None:
    run = load("language", tmp_path, core)
    check_again(run, ["b", "a b"], context=context, length=6)
    if context == "slide":
        with pytest.raises(UserError, match="input 1 and its continuation slid out of the context"):
            check_again(run, ["a b c"], context=context)
    else:
        check_again(run, ["a b c a", "b"], context=context)


@pytest.mark.parametrize("core", CORES)
def test_outputs_of_a_search(core: str, tmp_path: Path) -> None:
    run = load("dates", tmp_path, core)
    inputs = [run.test_input(0), run.test_input(1)]
    for options in ({"beam": 1}, {"beam": 3, "n_best": 2}):
        check_again(run, inputs, **options)
    with pytest.raises(UserError, match="n_best must be 1 for them"):
        run.look(inputs, gradients=True, beam=3, n_best=2)
