import math

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from regard.training.config import TrainConfig
from regard.training.optimizer import learning_rate
from regard.training.progress import Progress
from tests.training.toy import settings


def rates(config: TrainConfig) -> list[float]:
    """Return the learning rate of each step of a run with seven batches per epoch."""
    progress, values = Progress(), []
    for _ in range(config.steps or 14):
        values.append(learning_rate(config, progress, batches=7))
        progress.advance(config, used=1, batches=7, count=0, seconds=progress.seconds)
    return values


def test_inverse_sqrt_rises_then_decays_with_the_root() -> None:
    # The peak is at step 4; step 1 has a quarter of it, step 16 sqrt(4 / 16) of it.
    values = rates(settings(schedule="inverse_sqrt", lr=0.6, warmup=4, steps=16))
    assert values[0] == pytest.approx(0.15)
    assert values[3] == 0.6
    assert values[8] == pytest.approx(0.4)
    assert values[15] == pytest.approx(0.3)


def test_inverse_sqrt_without_warmup_starts_at_the_peak() -> None:
    values = rates(settings(schedule="inverse_sqrt", lr=0.6, warmup=0, steps=9))
    assert values[0] == 0.6
    assert values[8] == pytest.approx(0.2)


def test_linear_decays_from_the_end_of_the_warmup_to_the_end_of_the_run() -> None:
    values = rates(settings(schedule="linear", lr=0.8, warmup=2, steps=10))
    assert values == pytest.approx([0.4, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_cosine_is_at_half_after_half_of_the_decay() -> None:
    values = rates(settings(schedule="cosine", lr=0.8, warmup=2, steps=10))
    assert values[6] == pytest.approx(0.4)
    assert values[4] == pytest.approx(0.4 * (1 + math.cos(math.pi / 4)))
    assert values[9] == pytest.approx(0.4 * (1 + math.cos(math.pi * 7 / 8)))


def test_constant_stays_at_the_peak() -> None:
    values = rates(settings(schedule="constant", lr=0.3, warmup=2, steps=5))
    assert values == [0.15, 0.3, 0.3, 0.3, 0.3]


def test_a_warmup_below_one_is_a_fraction_of_the_run() -> None:
    for limits in ({"steps": 10}, {"steps": None, "epochs": 2}):
        values = rates(settings(schedule="linear", lr=0.8, warmup=0.2, **limits))
        length = len(values)
        for step, rate in enumerate(values):
            done = step / length
            expected = 0.8 * done / 0.2 if done < 0.2 else 0.8 * (1 - done) / 0.8
            assert rate == pytest.approx(expected)
    values = rates(settings(schedule="inverse_sqrt", lr=0.8, warmup=0.25, steps=8))
    assert values[:3] == pytest.approx([0, 0.4, 0.8])
    assert values[4] == pytest.approx(0.8 * math.sqrt(0.25 / 0.5))


def test_linear_by_epochs_equals_linear_by_steps() -> None:
    by_epochs = rates(settings(schedule="linear", lr=0.7, warmup=3, steps=None, epochs=2))
    by_steps = rates(settings(schedule="linear", lr=0.7, warmup=3, steps=14))
    assert by_epochs == pytest.approx(by_steps)


def test_linear_by_minutes_follows_the_time_before_its_steps_are_planned() -> None:
    config = settings(schedule="linear", lr=0.5, warmup=1, steps=None, minutes=2.0)
    progress = Progress(step=40, seconds=66.0, warmup_end=0.1)
    # 66 of 120 seconds are 0.55; half of the decay from 0.1 to 1.
    assert learning_rate(config, progress, batches=7) == pytest.approx(0.25)


@examples(max_examples=40)
@given(
    schedule=st.sampled_from(["inverse_sqrt", "cosine", "linear", "constant"]),
    warmup=st.integers(0, 40) | st.floats(0.01, 0.9),
    steps=st.integers(1, 60),
)
def test_rate_never_exceeds_its_peak_nor_falls_below_zero(
    schedule: str, warmup: float, steps: int
) -> None:
    values = rates(settings(schedule=schedule, lr=0.9, warmup=warmup, steps=steps))
    assert all(0 <= rate <= 0.9 for rate in values)
    if steps >= max(warmup, 1) and isinstance(warmup, int):
        assert max(values) == 0.9
