"""Progress of a run: the part of a checkpoint without tensors, and decisions that follow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from regard.training.config import TrainConfig


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
            fractions["minutes"] = self.seconds / (60 * config.minutes)
        return fractions

    def completed_fraction(self, config: TrainConfig, *, batches: int) -> float:
        """Return the completed fraction by steps, else epochs, else minutes; 0.0 if none is set.

        The learning rate schedule depends on it, and so on the clock only if minutes is the only
        limit.
        """
        return next(iter(self.fractions(config, batches=batches).values()), 0.0)

    def advance(
        self,
        config: TrainConfig,
        *,
        used: int,
        batches: int,
        count: int,
        seconds: float,
    ) -> None:
        """Count a step of the next `used` of the epoch's `batches` and `count` target tokens, which
        ended after `seconds`.
        """
        self.step += 1
        self.position += used
        if self.position >= batches:
            self.epoch, self.position = self.epoch + 1, 0
        if self.step == config.warmup:
            self.warmup_end = self.completed_fraction(config, batches=batches)
        self.seconds, self.tokens = seconds, self.tokens + count

    def limit_reached(self, config: TrainConfig) -> str | None:
        """Return the limit that is reached, "steps", "epochs", "minutes" or "patience", or None."""
        reached = {
            "steps": config.steps is not None and self.step >= config.steps,
            "epochs": config.epochs is not None and self.epoch >= config.epochs,
            "minutes": config.minutes is not None and self.seconds >= 60 * config.minutes,
            "patience": config.patience > 0 and self.validations_since_best >= config.patience,
        }
        return next((name for name, is_reached in reached.items() if is_reached), None)

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

    def record_validation(
        self, metrics: dict[str, float], *, metric: str, maximize: bool, window: int
    ) -> bool:
        """Record a validation of the current weights; return True for the best so far (NaN: never).

        Of equal scores the later weights are the best (trained longer), but patience is not reset.
        The steps of the last `window` validations stay in `recent_validations`.
        """
        self.last_validation = self.step
        self.recent_validations = [*self.recent_validations, self.step][-window:]
        score, best = metrics[metric], self.best.get(metric)
        improved = is_better(score, best, maximize=maximize)
        self.validations_since_best = 0 if improved else self.validations_since_best + 1
        if improved or score == best:
            self.best_step, self.best = self.step, dict(metrics)
        return self.best_step == self.step


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
