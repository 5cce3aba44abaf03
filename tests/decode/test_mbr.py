"""Minimum Bayes risk: samples by their probabilities, and the expected utility by hand."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.decode.config import DecodeConfig, TranslationDecodeConfig
from regard.decode.hypothesis import Hypothesis
from regard.decode.mbr import SamplingRules, rank_by_utility
from regard.decode.search import search
from regard.errors import UserError
from tests.decode.toys import BOS, EOS, PAD, TreeStepper


@pytest.mark.parametrize("banned", [PAD, 5])
def test_samples_follow_the_probabilities_and_the_rules(banned: int) -> None:
    tree = {(): {4: 0.6, 5: 0.3, EOS: 0.1}, (4,): {5: 0.5, EOS: 0.5}}
    words = ((banned,),) if banned == 5 else ()
    rules = SamplingRules(generator=torch.Generator().manual_seed(1), bad_words=words)
    options: Any = {"config": DecodeConfig(beam=1, max_length=9), "rules": rules}
    ids = {"bos": BOS, "eos": EOS, "pad": PAD}
    found = search(TreeStepper(tree, vocab=6), [[4]] * 4000, **options, **ids)
    shares = Counter(tuple(best.tokens) for (best,) in found)
    expected = {(): 0.1, (4,): 0.3, (5,): 0.3, (4, 5): 0.3}
    log_probs = {(): 0.1, (4,): 0.3, (5,): 0.3, (4, 5): 0.3}
    if banned == 5:
        expected = {(): 1 / 7, (4,): 6 / 7}
    assert shares.keys() == expected.keys()
    for tokens, share in expected.items():
        assert shares[tokens] / 4000 == pytest.approx(share, abs=0.03)
    for (best,) in found[:20]:  # of the model
        assert best.log_prob == pytest.approx(math.log(log_probs[tuple(best.tokens)]), rel=1e-5)


def test_rules_that_leave_no_token_to_draw_are_named() -> None:
    generator = torch.Generator().manual_seed(1)
    rules = SamplingRules(generator=generator, names=("input 7",), bad_words=((4,),))
    options: Any = {"config": DecodeConfig(beam=1), "rules": rules, "bos": BOS, "eos": EOS}
    with pytest.raises(UserError, match=r"at step 1 of input 7; .*: bad_words, method mbr$"):
        search(TreeStepper({(): {4: 1.0}}, vocab=6), [[4]], pad=PAD, **options)


def test_the_best_sample_has_the_highest_mean_utility() -> None:
    utilities = {"aa": 1.0, "bb": 1.0, "cc": 1.0, "ab": 0.4, "ac": 0.1, "ba": 0.8, "bc": 0.7}
    texts = ["a", "b", "c", "a"]
    samples = []
    for number, _ in enumerate(texts):
        samples.append(Hypothesis(tokens=[number], score=0.0, log_prob=-1.0, finished=True))
    ranked = rank_by_utility(samples, texts, lambda one, other: utilities.get(one + other, 0.0))
    assert [(best.tokens, best.score) for best in ranked] == [
        ([1], pytest.approx((0.8 * 2 + 1.0 + 0.7) / 4)),
        ([3], pytest.approx((1.0 * 2 + 0.4 + 0.1) / 4)),
        ([2], pytest.approx(0.25)),
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 8}, "num_samples has no effect with method beam"),
        ({"method": "mbr", "glossary": Path("g.tsv")}, "glossary has no effect with method mbr"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TranslationDecodeConfig(**settings)
