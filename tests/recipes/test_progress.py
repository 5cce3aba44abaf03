"""Tokens are read while a run decodes; the texts of more and more tokens grow to the answer."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.tokenizer import EOS, Specials
from regard.decode.progress import DecodingProgress
from regard.errors import UserError
from regard.recipes.base.trained import TrainedRun
from tests.recipes.tiny import quick_options
from tests.recipes.untrained import untrained

RECIPES = {
    "dates": ("--target-tokenizer.kind", "char"),
    "translate": ("--decode.beam", "1", "--decode.n-best", "1"),
    "caption": ("--decode.beam", "1", "--tokenizer.kind", "bpe"),
    "language": ("--sample.temperature", "0.9"),
}


def make_run(name: str, folder: Path, *options: str) -> TrainedRun:
    recipe, model = untrained(name, folder, *quick_options(name), *options)
    if name != "reviews":
        with torch.no_grad():
            model.writer.output_table.weight[EOS] *= -1  # else the first token of an output
    return TrainedRun(recipe, model, folder)


def check_partial_texts(run: TrainedRun, inputs: list[Any]) -> list[str]:
    """Check the tokens and texts of all outputs; return the texts of the answers."""
    progress, recipe = DecodingProgress(), run.recipe
    examples = run.prepare(inputs, recipe)
    answers = run.compute(examples, recipe, progress)
    expected = run.compute(run.prepare(inputs, recipe), recipe)
    assert [answer.value for answer in answers] == [answer.value for answer in expected]
    rows = [(row, answer.value) for example, answer in zip(examples, answers, strict=True)
            for row in example.rows]  # fmt: skip
    for number, (row, text) in enumerate(rows):
        tokens, last = progress.tokens(number), ""
        for count in range(len(tokens) + 1):
            partial = recipe.partial_text(row, tokens[:count])
            assert partial.startswith(last)
            last = partial
        assert last == text
    assert progress.tokens(len(rows)) == []
    return [text for _, text in rows]


@pytest.mark.parametrize("name", RECIPES)
def test_partial_texts_grow_to_the_answer(name, tmp_path):
    run = make_run(name, tmp_path, *RECIPES[name])
    inputs = [*islice(run.recipe.load("test").inputs, 3)]
    if name == "dates":
        inputs.insert(1, "")  # an answer without a row
    assert any(check_partial_texts(run, inputs))
    run.recipe.batch_rows = 2
    assert any(check_partial_texts(run, inputs))


def test_the_text_of_a_language_model_ends_at_eos(tmp_path):
    run = make_run("language", tmp_path, "--sample.temperature", "0", "--sample.length", "12")
    tokenizer = run.recipe.tokenizer
    (text,) = check_partial_texts(run, ["a b"])
    tokenizer.specials = Specials(eos=tokenizer.encode(text)[5])
    (shorter,) = check_partial_texts(run, ["a b"])
    assert len(shorter) < len(text)
    (row,) = run.recipe.preprocess("a b", 1)
    assert run.recipe.partial_text(row, tokenizer.encode(text)) == shorter


def test_other_decoding_is_refused(tmp_path):
    run = make_run("translate", tmp_path)
    examples = run.prepare(["a"], run.recipe)
    with pytest.raises(UserError, match="only with beam 1, got beam 2"):
        run.compute(examples, run.recipe, DecodingProgress())
    recipe = run.recipe.change({"beam": 1})
    assert run.compute(examples, recipe, DecodingProgress())
    other = tmp_path / "reviews"
    other.mkdir()
    run = make_run("reviews", other)
    with pytest.raises(UserError, match="the recipe reviews does not decode tokens"):
        run.compute(run.prepare(["a"], run.recipe), run.recipe, DecodingProgress())
