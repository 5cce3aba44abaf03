"""Two recipes of one's own: parts in place of those of the settings, runs that are compared."""

import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

import regard
from regard.models.build import build_language_model
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.recipes.language.config import ENTRY
from tests.recipes.commands import run_file
from tests.shapes import without_checks

FILE = Path(__file__).parents[2] / "docs" / "howto" / "examples" / "own_recipes.py"
TRAIN = (
    "--data.train text.txt --data.val text.txt --context 8 --batch 4 --train.steps 2 "
    "--train.precision float32 --train.tensorboard false --model.embedding-dim 6 "
    "--model.core.layers 1 --model.core.width 8 --model.core.heads 2 --model.core.feedforward 8"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with a run of each recipe."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patched, without_checks():
        patched.chdir(folder)
        (folder / "text.txt").write_text("ab" * 50, encoding="utf-8")
        assert run_file(FILE, f"train --run a {TRAIN}") == 0  # the first recipe
        assert run_file(FILE, f"train differential --run b {TRAIN}") == 0
        yield folder


@pytest.mark.filterwarnings("default:engine 'torch' is used, which is slower")
@pytest.mark.usefixtures("no_shape_checks")
def test_runs_of_two_recipes_are_compared_on_one_page(folder: Path) -> None:
    assert run_file(FILE, "look a abab --compare b --out page.html") == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert run_file(FILE, "look a abab --out alone.html") == 0
    assert len(page) > (folder / "alone.html").stat().st_size + 1000


def test_parts_replace_those_of_the_settings_and_options_stay(folder: Path) -> None:
    with patch.object(sys, "path", [str(FILE.parent), *sys.path]):
        names = runpy.run_path(str(FILE))
    for run, entry, kind in (
        ("a", names["FORGETTING"], "ForgettingAttention"),
        ("b", names["DIFFERENTIAL"], "DifferentialAttention"),
    ):
        model = regard.load(folder / run, recipe=entry)._model
        assert type(model.core.decoder[0].attention).__name__ == kind
        assert model.writer.inputs.table.embedding_dim == 6
        has_positions = not isinstance(model.core.positions, regard.NoPositions)
        assert has_positions == (run == "b")


def test_settings_of_replaced_parts_are_refused(folder: Path) -> None:
    with patch.object(sys, "path", [str(FILE.parent), *sys.path]):
        recipe = runpy.run_path(str(FILE))["ForgettingRecipe"]
    entry = replace(ENTRY, name="replaced", recipe=recipe)
    sizes = {"layers": 1, "width": 8, "heads": 2, "feedforward": 8}
    with pytest.raises(
        regard.UserError, match=r"--model\.core\.positions has no effect in replaced"
    ):
        regard.train(
            entry,
            folder / "c",
            data={"train": str(folder / "text.txt")},
            model={"core": {**sizes, "positions": "alibi"}},
            train={"steps": 2},
            quiet=True,
        )


@pytest.mark.parametrize(
    ("parts", "core", "message"),
    [
        ({"scores": regard.Dot}, "transformer", "`parts` .* must be among score, .*, got 'scores'"),
        ({"score": regard.Dot}, "recurrent", "core must be transformer for the parts score"),
    ],
)
def test_parts_that_no_core_takes_are_refused(parts, core: str, message: str) -> None:
    cores = {"transformer": TransformerConfig, "recurrent": RecurrentConfig}
    with pytest.raises(regard.UserError, match=message):
        build_language_model(LanguageModelConfig(core=cores[core]()), vocab=5, parts=parts)


def test_writer_of_the_parts_is_called_as_that_of_the_recipe() -> None:
    class OwnWriter(regard.TokenWriter):
        pass

    model = build_language_model(LanguageModelConfig(), vocab=5, parts={"writer": OwnWriter})
    assert type(model.writer) is OwnWriter
