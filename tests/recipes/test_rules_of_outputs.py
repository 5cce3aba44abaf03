"""Rules of outputs, glossaries and minimum Bayes risk of a recipe, with both engines."""

from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import CHRF

from regard.data.config import Tables
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.trained import TrainedRun
from regard.recipes.translate.glossary import find_terms
from tests.helpers import NEEDS_NATIVE
from tests.recipes.untrained import untrained

TEXTS = ["a b", "c", "a c b", "b c", "b"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe[Any], Any]:
    recipe, model = untrained("translate", tmp_path_factory.mktemp("run"))
    return recipe, model


def predict(recipe: Recipe[Any], inference: Any, **options: Any) -> list[list[str]]:
    answers = recipe.change(options).answers(inference, TEXTS)
    return [[ranked.text for ranked in answer.ranked] for answer in answers]


def test_words_of_settings_become_ids(translator: Any) -> None:
    recipe, model = translator
    inference = recipe.inference(model)
    plain = predict(recipe, inference, n_best=2)
    assert any("a" in text for found in plain for text in found)
    for found in predict(recipe, inference, bad_words=["a", "b c"], n_best=2):
        assert all("a" not in text and "b c" not in text for text in found)
    for found in predict(recipe, inference, target_prefix="b b", min_length=4, n_best=2):
        assert all(text.startswith("b b") and len(text.split()) >= 4 for text in found)
    with pytest.raises(UserError, match="bad_words: 'zoo' is never written"):
        predict(recipe, inference, bad_words=["zoo"])


@NEEDS_NATIVE
@pytest.mark.filterwarnings("ignore:engine 'torch' is used, which is slower.*decode.glossary")
def test_a_term_of_a_glossary_applies_where_the_source_contains_it(
    translator: Any, tmp_path: Path
) -> None:
    recipe, model = translator
    path = tmp_path / "terms.tsv"
    path.write_text("b\tc b c\na c\ta a a\nx\ta c\n", encoding="utf-8")
    required = [["c b c"], [], ["a a a", "c b c"], ["c b c"], ["c b c"]]
    inference = recipe.inference(model)
    plain = predict(recipe, inference, beam=4)
    for engine in ("torch", "compiled"):
        inference.compile((engine, None, None))
        found = predict(recipe, inference, glossary=str(path), beam=4)
        for (text,), terms in zip(found, required, strict=True):
            assert all(f" {term} " in f" {text} " for term in terms)
        assert found[1] == plain[1]
        assert found != plain
    inference.compile(("compiled", "int8", None))
    with pytest.raises(UserError, match=r"decode\.glossary is followed by .* computes in int8"):
        predict(recipe, inference, glossary=str(path))


def test_a_term_is_whole_words_and_the_first_of_those_that_overlap(
    translator: Any, tmp_path: Path
) -> None:
    recipe, _ = translator
    path, texts = tmp_path / "terms.csv", ["c a b c", "xa b. a", "(A)", "a.b", "a b c"]
    path.write_text("of,into\na b,c\nb c,a\na,b\n(a),c b\na.b,a a\n", encoding="utf-8-sig")
    sides = {"source": recipe.source_tokenizer, "target": recipe.tokenizer}
    with pytest.warns(UserWarning, match="by position: 'of' is the source and 'into' the target"):
        found = find_terms(path, Tables(), texts, **sides)
    spoken = [[recipe.tokenizer.decode(term) for term in own] for own in found]
    assert spoken == [["c"], ["b"], [], ["a a"], ["c"]]
    path = path.with_suffix(".tsv")
    path.write_text("source\ttarget\r\na\tb\r\n", encoding="utf-16")
    tables = Tables(header="yes", encoding="utf-16")
    assert [len(own) for own in find_terms(path, tables, texts, **sides)] == [1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("b\tc\nb\ta\n", r"terms\.tsv: the term 'b' must have one target, got two$"),
        ("b\tzoo\n", r"terms\.tsv: glossary: 'zoo' is never written, .* lacks 'zoo'$"),
        ("b\tc\nb c\n", r"terms\.tsv, line 2: expected 2 cells, got 1 \('b c'\)\.$"),
        ("b\t\n", r"terms\.tsv, line 1: the target is empty\.$"),
        ("", r"terms\.tsv: contains no pair$"),
    ],
)
def test_bad_rows_of_a_glossary_are_errors_without_an_option_that_skips_them(
    translator: Any, tmp_path: Path, content: str, message: str
) -> None:
    recipe, model = translator
    path = tmp_path / "terms.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        predict(recipe, recipe.inference(model), glossary=str(path))


def test_an_input_without_an_output_that_obeys_is_named(translator: Any, tmp_path: Path) -> None:
    recipe, model = translator
    path = tmp_path / "terms.tsv"
    path.write_text("a c\tc\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"got none in input 3; relax .*: bad_words, glossary"):
        predict(recipe, recipe.inference(model), glossary=str(path), bad_words=["c"])


def test_samples_are_not_shown_and_not_read_while_they_are_drawn(translator: Any) -> None:
    recipe, model = translator
    with pytest.raises(UserError, match=r"decode\.method beam, got mbr"):
        TrainedRun(recipe, model, Path()).look(["a b", "c"], method="mbr")
    for options in ({"method": "mbr"}, {"glossary": "terms.tsv"}):
        with pytest.raises(UserError, match="only without glossary and mbr"):
            recipe.change({"beam": 1, **options}).check_progress()


def test_minimum_bayes_risk_chooses_by_the_mean_chrf(translator: Any) -> None:
    recipe, model = translator
    inference, options = recipe.inference(model), {"method": "mbr", "num_samples": 12}
    changed = recipe.change(options | {"beam": 3, "n_best": 3})
    answers = changed.answers(inference, TEXTS)
    chrf = CHRF()
    ids = recipe.preprocess("a c b", 1)[0].ids
    samples: list[str] = []

    class Recorder(TorchEngine):
        def search(self, sentences: Any, **settings: Any) -> Any:
            found = super().search(sentences, **settings)
            samples.extend(recipe.tokenizer.decode(best.tokens) for (best,) in found)
            return found

    inference._engine = Recorder(model)
    (answer,) = recipe.change(options).answers(inference, ["a c b"])
    assert ids
    assert len(samples) == 12
    mean = {}
    for text in samples:
        scores = [chrf.sentence_score(text, [other]).score for other in samples]
        mean[text] = sum(scores) / len(scores)
    assert answer.ranked[0].score == pytest.approx(max(mean.values()))
    assert mean[answer.value] == pytest.approx(max(mean.values()))
    assert answer.value == answers[2].ranked[0].text  # whatever is asked beside it
    found = recipe.change(options).score_outputs(["a"], [["b"]], 1.0, is_test=True).scores
    assert "minimum Bayes risk of 12 samples" in found["signature"]
    assert not {"beam", "length_penalty"} & found.keys()  # which it does not have
    scores = [ranked.score for ranked in answers[2].ranked]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
