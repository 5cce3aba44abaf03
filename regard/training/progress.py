"""Progress of a run: the part of a checkpoint without tensors, and decisions that follow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from regard.training.config import TrainConfig

_VALIDATION_PART = 0.05
"""Part of the minutes of a run that is left for validations and checkpoints."""


@dataclass(kw_only=True)
class Progress:
    """Progress of a run. The loop updates it in place; every checkpoint contains it."""

    step: int = 0
    """Completed steps."""
    epoch: int = 0
    """Completed epochs."""
    position: int = 0
    """Completed batches of the current epoch."""
    seconds: float = 0.0
    """Training time, including that before the run was resumed."""
    tokens: int = 0
    """Number of target tokens trained on."""
    warmup_end: float = 0.0
    """Completed fraction of the run at the end of the warm-up."""
    planned_steps: int = 0
    """Number of steps that fit into the minutes of the run; 0 before their speed is measured."""
    planned_minutes: float = 0.0
    """Minutes that `planned_steps` fit into."""
    warmup_start: int = 0
    """Step at which a shortened warm-up begins."""
    warmup_factor: float = 0.0
    """Factor of the learning rate at that step."""
    warmup_steps: int = 0
    """Last step of a shortened warm-up; 0: that of the settings."""
    last_validation: int = 0
    """Step of the last validation; 0 before the first."""
    recent_validations: list[int] = field(default_factory=list)
    """Steps of the last validations, oldest first, whose weights are saved."""
    best_step: int = 0
    """Step of the best validation; 0 before the first."""
    best: dict[str, float] = field(default_factory=dict)
    """Metrics of the best validation."""
    validations_since_best: int = 0
    """Number of validations since the best one."""
    log_sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Sums of loss and negative log-likelihood, and number of tokens, since the log's last line."""

    def fractions(self, config: TrainConfig, *, batches: int) -> dict[str, float]:
        """Return the completed fraction of each limit that is set (steps, epochs, minutes).

        `batches` is the number of batches of the current epoch.
        """
        fractions = {}
        if config.steps:
            fractions["steps"] = self.step / config.steps
        if config.epochs:
            fractions["epochs"] = (self.epoch + self.position / batches) / config.epochs
        if config.minutes:
            elapsed = self.seconds / (60 * config.minutes)
            planned = self.planned_steps
            fractions["minutes"] = self.step / planned if planned else elapsed
        return fractions

    def completed_fraction(self, config: TrainConfig, *, batches: int) -> float:
        """Return the largest of `fractions`, of the limit that comes first; 0.0 if none is set.

        The learning rate schedule depends on it, and so on the clock only with a limit in minutes
        whose steps are not planned yet.
        """
        return max(self.fractions(config, batches=batches).values(), default=0.0)

    def plan_steps(self, minutes: float, *, step_seconds: float) -> None:
        """Fix the number of steps that fit into the minutes of the run, but for a part of the rest
        that is left for validations, whose time is not known.
        """
        left = (1 - _VALIDATION_PART) * (60 * minutes - self.seconds)
        self.planned_steps = self.step + max(int(left / step_seconds), 1)
        self.planned_minutes = minutes

    def fit_warmup(self, config: TrainConfig, *, batches: int) -> int | None:
        """Shorten a warm-up of more than a quarter of the run, if epochs or minutes end it.

        The rest of it then has the part of the run that it has of `steps`, at most a quarter, and a
        tenth of the run without `steps`. Return its number of steps; None if it is as before.
        """
        ends = [self.planned_steps] if config.minutes and self.planned_steps else []
        if config.epochs:
            ends.append(config.epochs * steps_per_epoch(config, batches=batches))
        end = self.warmup_steps or config.warmup
        if 0 < end <= self.step:  # the decay, which followed the clock, now follows the steps
            done = self.completed_fraction(config, batches=batches)
            self.warmup_end = done * end / self.step
        total = min(ends)
        is_ending = config.steps is None or total < config.steps
        if config.warmup < 1 or not is_ending or not self.step < end > total / 4:
            return None
        part = min(config.warmup / config.steps, 0.25) if config.steps else 0.1
        self.warmup_factor = self.warmup_rate(self.step, end)
        self.warmup_start = self.step
        self.warmup_steps = self.step + max(round(part * total), 1)
        return self.warmup_steps - self.step

    def warmup_rate(self, now: float, end: float) -> float:
        """Return the factor of the learning rate at `now` in a warm-up that lasts until `end`."""
        start, factor = self.warmup_start, self.warmup_factor
        return factor + (1 - factor) * (now - start) / (end - start)

    def advance(
        self, config: TrainConfig, *, used: int, batches: int, count: int, seconds: float
    ) -> None:
        """Count a step of the next `used` of the epoch's `batches` and `count` target tokens, which
        ended after `seconds`.
        """
        self.step += 1
        self.position += used
        if self.position >= batches:
            self.epoch, self.position = self.epoch + 1, 0
        if self.step == (self.warmup_steps or config.warmup):
            self.warmup_end = self.completed_fraction(config, batches=batches)
        self.seconds, self.tokens = seconds, self.tokens + count

    def limit_reached(self, config: TrainConfig) -> str | None:
        """Return the limit that is reached, "steps", "epochs", "minutes" or "patience", or None."""
        reached = {
            "steps": config.steps is not None and self.step >= config.steps,
            "epochs": config.epochs is not None and self.epoch >= config.epochs,
            "minutes": config.minutes is not None and self._is_time_up(config.minutes),
            "patience": config.patience > 0 and self.validations_since_best >= config.patience,
        }
        return next((name for name, is_reached in reached.items() if is_reached), None)

    def _is_time_up(self, minutes: float) -> bool:
        return self.seconds >= 60 * minutes or 0 < self.planned_steps <= self.step

    def is_validation_due(self, config: TrainConfig) -> bool:
        """Return True if a validation is due before the next step."""
        if self.step == self.last_validation:
            return False
        every = config.validate_every
        return self.step % every == 0 if every else self.position == 0

    def is_checkpoint_due(self, config: TrainConfig, *, saved: tuple[int, float]) -> bool:
        """Return True if a checkpoint is due by steps or minutes since `saved` (step, seconds)."""
        step, seconds = saved
        if step == self.step:
            return False
        if config.checkpoint_every and self.step % config.checkpoint_every == 0:
            return True
        return 0 < 60 * config.checkpoint_minutes <= self.seconds - seconds

    def is_pause_due(self, config: TrainConfig, until: float) -> bool:
        """Return True after a validation from a fraction of the run on; never for a whole run."""
        done = fraction_of_limit(config, step=self.step, epoch=self.epoch)
        return until < 1 and self.last_validation == self.step > 0 and done >= until

    def record_validation(
        self, metrics: dict[str, float], *, metric: str, maximize: bool, window: int
    ) -> bool:
        """Record a validation of the current weights; return True for the best so far (NaN: never).

        Of equal scores the later weights are the best (trained longer) unless their nll is higher,
        but patience is not reset.
        The steps of the last `window` validations stay in `recent_validations`.
        """
        self.last_validation = self.step
        self.recent_validations = [*self.recent_validations, self.step][-window:]
        improved = is_better(metrics[metric], self.best.get(metric), maximize=maximize)
        self.validations_since_best = 0 if improved else self.validations_since_best + 1
        if is_at_least(metrics, self.best, metric=metric, maximize=maximize):
            self.best_step, self.best = self.step, dict(metrics)
        return self.best_step == self.step


def steps_per_epoch(config: TrainConfig, *, batches: int) -> int:
    """Return the number of optimizer steps of an epoch with so many batches."""
    return math.ceil(batches / config.accumulate)


def fraction_of_limit(config: TrainConfig, *, step: int, epoch: int) -> float:
    """Return the completed fraction of a run by steps or whole epochs, the larger one."""
    by_steps = step / config.steps if config.steps is not None else 0.0
    return max(by_steps, epoch / config.epochs if config.epochs is not None else 0.0)


def is_at_least(
    metrics: Mapping[str, float], other: Mapping[str, float], *, metric: str, maximize: bool
) -> bool:
    """Return True if metrics are at least as good as others; any but NaN is better than none.

    Of equal metrics, those with the lower loss (`nll`) are better.
    """
    value, other_value = metrics[metric], other.get(metric)
    if value == other_value:
        return metrics.get("nll", 0.0) <= other.get("nll", 0.0)
    return is_better(value, other_value, maximize=maximize)


def is_better(value: float, than: float | None, *, maximize: bool) -> bool:
    """Return True if a score is better than another; any score except NaN is better than None."""
    if math.isnan(value) or than is None:
        return not math.isnan(value)
    return value > than if maximize else value < than
