import json
import math
from dataclasses import asdict

import msgspec
import pytest

from regard.training.progress import Progress, is_better
from tests.training.toy import settings


def test_progress_survives_json_exactly() -> None:
    progress = Progress(
        step=3,
        seconds=0.1 + 0.2,
        recent_validations=[1, 3],
        best={"nll": 1 / 3},
        log_sums=[1e-30, 0.1, 7.0],
    )
    assert msgspec.convert(json.loads(json.dumps(asdict(progress))), Progress) == progress


def test_completed_fraction_of_each_limit() -> None:
    progress = Progress(step=30, epoch=2, position=3, seconds=90.0)
    config = settings(steps=40, epochs=5, minutes=3.0)
    assert progress.fractions(config, batches=4) == pytest.approx(
        {"steps": 0.75, "epochs": 0.55, "minutes": 0.5}
    )
    assert progress.completed_fraction(config, batches=4) == 0.75
    assert progress.completed_fraction(
        settings(steps=None, epochs=5, minutes=3.0), batches=4
    ) == pytest.approx(0.55)
    assert progress.completed_fraction(settings(steps=None), batches=4) == 0.0
    assert progress.completed_fraction(settings(steps=400, epochs=5), batches=4) == 0.55


def test_first_limit_reached_is_named() -> None:
    config = settings(steps=9, epochs=4, minutes=1.0, patience=2)
    none = Progress(step=8, epoch=3, seconds=59.0, validations_since_best=1)
    assert none.limit_reached(config) is None
    assert Progress(step=9, epoch=4).limit_reached(config) == "steps"
    assert Progress(step=8, epoch=4).limit_reached(config) == "epochs"
    assert Progress(seconds=60.0).limit_reached(config) == "minutes"
    assert Progress(validations_since_best=2).limit_reached(config) == "patience"
    assert Progress(validations_since_best=2).limit_reached(settings(patience=0)) is None


def test_step_that_uses_the_last_batches_ends_the_epoch() -> None:
    progress, config = Progress(), settings(warmup=2, steps=8)
    for count in (2, 2, 1):
        progress.advance(config, used=count, batches=5, count=0, seconds=progress.seconds)
    assert (progress.step, progress.epoch, progress.position) == (3, 1, 0)
    assert progress.warmup_end == 0.25


def test_step_adds_its_tokens_and_its_time_counts_after_the_warmup() -> None:
    progress = Progress(seconds=6.0, tokens=2)
    config = settings(warmup=1, minutes=1)
    progress.advance(config, used=1, batches=5, count=4, seconds=30.0)
    assert (progress.seconds, progress.tokens) == (30.0, 6)
    assert progress.warmup_end == 0.1  # of the minute, before the step


def test_a_warmup_that_fits_is_kept() -> None:
    config = settings(steps=1000, minutes=2.0, warmup=10, average=0, validate_every=0)
    progress = Progress(step=8, seconds=10.0, warmup_end=0.7)
    progress.plan_steps(2.0, step_seconds=2.0)
    assert progress.planned_steps == 8 + int(0.95 * 110 / 2)
    assert progress.fit_warmup(settings(steps=20, minutes=2.0, warmup=10), batches=3) is None
    longer = Progress(step=12, planned_steps=48, warmup_end=0.7)
    assert longer.fit_warmup(config, batches=3) is None
    assert longer.warmup_end == 10 / 48
    fraction = settings(minutes=1.0, warmup=0.9)
    assert Progress(planned_steps=3).fit_warmup(fraction, batches=3) is None


def test_a_warmup_has_a_tenth_of_a_run_without_steps_and_at_most_a_quarter() -> None:
    for steps, expected in ((None, 10), (2000, 20), (500, 25)):
        progress = Progress(step=8, planned_steps=100)
        config = settings(steps=steps, minutes=1.0, warmup=400)
        assert progress.fit_warmup(config, batches=3) == expected
        assert (progress.warmup_start, progress.warmup_factor) == (8, 8 / 400)
        assert progress.warmup_steps == 8 + expected


def test_later_of_equal_scores_is_the_best_but_patience_is_not_reset() -> None:
    progress, history = Progress(), []
    scores = (0.5, 0.7, 0.7, math.nan, 0.6, 0.7, 0.7)
    losses = (9.0, 3.0, 2.0, 1.0, 1.0, 2.5, 2.0)
    for step, (score, nll) in enumerate(zip(scores, losses, strict=True), start=1):
        progress.step = step
        metrics = {"bleu": score, "nll": nll}
        is_best = progress.record_validation(metrics, metric="bleu", maximize=True, window=2)
        since, recent = progress.validations_since_best, progress.recent_validations
        history.append((is_best, progress.best_step, since, recent))
    assert history == [
        (True, 1, 0, [1]),
        (True, 2, 0, [1, 2]),
        (True, 3, 1, [2, 3]),
        (False, 3, 2, [3, 4]),
        (False, 3, 3, [4, 5]),
        (False, 3, 4, [5, 6]),  # of equal scores, a higher loss is not the best
        (True, 7, 5, [6, 7]),
    ]


def test_score_is_better() -> None:
    assert is_better(2.0, 1.0, maximize=True)
    assert not is_better(2.0, 1.0, maximize=False)
    assert not is_better(1.0, 1.0, maximize=True)
    assert is_better(1.0, None, maximize=False)
    assert not is_better(math.nan, None, maximize=True)
    assert not is_better(math.nan, 1.0, maximize=False)
