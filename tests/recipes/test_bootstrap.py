"""The paired bootstrap, against sacrebleu's and computed by hand."""

import numpy as np
import pytest
from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest

from regard.recipes.metrics.bootstrap import SEED, paired_bootstrap
from regard.recipes.metrics.config import BleuConfig
from regard.recipes.metrics.text import chrf, paired_test

REFERENCES = [[f"the {word} sat on the mat"] for word in ("cat", "dog", "hen", "fox", "cow", "ape")]
FIRST = ["the cat sat on a mat", "a dog", "the hen sat on the mat", "fox", "cow sat", "an ape mat"]
SECOND = ["the cat sat on the mat", "the dog sat", "a hen", "the fox sat on", "cow sat", "ape on"]


def test_it_gives_the_interval_and_p_value_of_sacrebleu() -> None:
    def rescore(outputs):
        return lambda rows: {
            "chrf": chrf([outputs[i] for i in rows], [REFERENCES[i] for i in rows])
        }

    ours = paired_bootstrap([rescore(FIRST), rescore(SECOND)], 6, samples=100)["chrf"][1]
    streams = [[text for (text,) in REFERENCES]]
    systems, metrics = [("a", FIRST), ("b", SECOND)], {"chrf": CHRF()}
    theirs = PairedTest(systems, metrics, streams, test_type="bs", n_samples=100)()[1]["chrF2"][1]
    assert ours.score == pytest.approx(theirs.score)
    assert ours.p == theirs.p_value
    assert (ours.high - ours.low) / 2 == pytest.approx(theirs.ci, rel=1e-5)
    found = paired_test(
        [FIRST, SECOND], REFERENCES, BleuConfig(), names=["bleu", "chrf"], samples=100
    )
    assert (found["chrf"][1].p, found["chrf"][0].p) == (theirs.p_value, None)
    assert found["chrf"][1].low == pytest.approx(theirs.mean - theirs.ci)
    assert found["bleu"][0].score < found["bleu"][1].score


def test_means_are_those_computed_by_hand() -> None:
    first, second = np.array([0.0, 1, 0, 1, 1]), np.array([1.0, 1, 0, 1, 1])
    rescores = [lambda rows, own=own: {"mean": own[rows].mean().item()} for own in (first, second)]
    a, b = paired_bootstrap(rescores, 5, samples=200)["mean"]
    draws = np.random.default_rng(SEED).choice(5, size=(200, 5))
    means = np.sort(first[draws].mean(1))
    assert (a.score, a.low, a.high, a.p) == (0.6, means[5], means[194], None)
    gains = (draws == 0).sum(1) / 5  # only the first example differs
    assert b.p == (1 + (gains - gains.mean() > 0.2).sum()) / 201
