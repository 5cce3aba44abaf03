"""Rules of outputs, glossaries and minimum Bayes risk of a recipe, with both engines."""

from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import CHRF

from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.trained import TrainedRun
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
    path.write_text("b\tc\nb\ta\n", encoding="utf-8")
    with pytest.raises(UserError, match="the term 'b' must have one target, got two"):
        predict(recipe, inference, glossary=str(path))
    path.write_text("b\tzoo\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"terms\.tsv: glossary: 'zoo' is never written"):
        predict(recipe, inference, glossary=str(path))


def test_samples_are_not_shown_and_not_read_while_they_are_drawn(translator: Any) -> None:
    recipe, model = translator
    with pytest.raises(UserError, match=r"decode\.method beam, got mbr"):
        TrainedRun(recipe, model, Path()).look(["a b", "c"], method="mbr")
    with pytest.raises(UserError, match="only with method beam, got mbr"):
        recipe.change({"method": "mbr", "beam": 1}).check_progress()


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
    scores = [ranked.score for ranked in answers[2].ranked]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
