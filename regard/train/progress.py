"""Where a run stands: all that a checkpoint must know beside tensors, and what follows from it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from regard.train.config import TrainConfig


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and 0 <= value < math.inf


_COUNTS = ("step", "epoch", "position", "tokens", "validated", "best_step", "stale")
_RULES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_COUNTS, _is_count),
    "seconds": _is_time,
    "warm_at": _is_time,
    "recent": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "best": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "unlogged": lambda value: isinstance(value, list) and len(value) == 3 and all(map(_is_number, value)),
}
"""What each value may be, as JSON holds it."""


@dataclass(kw_only=True)
class Progress:
    """How far a run has come. Changed in place by the loop; saved with every checkpoint."""

    step: int = 0
    """Steps done."""
    epoch: int = 0
    """Passes done."""
    position: int = 0
    """Batches done of the present pass."""
    seconds: float = 0.0
    """Time trained, over all resumed parts."""
    tokens: int = 0
    """Target tokens seen."""
    warm_at: float = 0.0
    """Share of the run that was done when the warm-up ended."""
    validated: int = 0
    """Step of the last validation; 0 before any."""
    recent: list[int] = field(default_factory=list)
    """Steps of the last validations, oldest first: their weights are kept."""
    best_step: int = 0
    """Step of the best validation; 0 before any."""
    best: dict[str, float] = field(default_factory=dict)
    """What the best validation measured."""
    stale: int = 0
    """Validations since the best one."""
    unlogged: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Sums of loss and of negative log-likelihood, and tokens, since the last line of the log."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Progress":
        """What `asdict` made of it. Raises ValueError for anything else."""
        names = [entry.name for entry in fields(cls)]
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise ValueError(f"progress must hold {', '.join(names)}")
        for name, holds in _RULES.items():
            if not holds(values[name]):
                raise ValueError(f"progress.{name} cannot be {str(values[name])[:60]}")
        steps = [*values["recent"], values["best_step"], values["validated"]]
        if max(steps) > values["step"] or values["recent"] != sorted(set(values["recent"])):
            raise ValueError("progress names validations of later steps, or not in order")
        return cls(**{name: values[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """The values as JSON holds them; floats survive exactly."""
        return asdict(self)

    def shares(self, config: TrainConfig, *, batches: int) -> dict[str, float]:
        """Of each limit that is given (steps, epochs, minutes) the share that lies behind.

        `batches` is the number of batches of the present epoch.
        """
        shares = {}
        if config.steps:
            shares["steps"] = self.step / config.steps
        if config.epochs:
            shares["epochs"] = (self.epoch + self.position / batches) / config.epochs
        if config.minutes:
            shares["minutes"] = self.seconds / (60 * config.minutes)
        return shares

    def done(self, config: TrainConfig, *, batches: int) -> float:
        """The share of the run that lies behind, by steps, else epochs, else minutes; 0.0 if none of them is
        given.

        The schedule falls by it; only by minutes does it follow the clock.
        """
        return next(iter(self.shares(config, batches=batches).values()), 0.0)

    def advance(self, config: TrainConfig, *, used: int, batches: int) -> None:
        """One more step is done, of the next `used` of the epoch's `batches` batches."""
        self.step += 1
        self.position += used
        if self.position >= batches:
            self.epoch, self.position = self.epoch + 1, 0
        if self.step == config.warmup:
            self.warm_at = self.done(config, batches=batches)

    def limit(self, config: TrainConfig) -> str | None:
        """Which limit of the run is reached: "steps", "epochs", "minutes", "patience", or None."""
        reached = {
            "steps": config.steps is not None and self.step >= config.steps,
            "epochs": config.epochs is not None and self.epoch >= config.epochs,
            "minutes": config.minutes is not None and self.seconds >= 60 * config.minutes,
            "patience": config.patience > 0 and self.stale >= config.patience,
        }
        return next((name for name, holds in reached.items() if holds), None)

    def is_validation_due(self, config: TrainConfig) -> bool:
        """Whether the weights are to be validated before the next step."""
        if self.step == self.validated:
            return False
        return self.step % config.validate_every == 0 if config.validate_every else self.position == 0

    def judge(self, metrics: dict[str, float], *, metric: str, maximize: bool, window: int) -> bool:
        """Take in a validation of the present weights; whether they are the best so far. NaN never is.

        Of equal scores the later weights are kept (they saw more), but patience does not start anew.
        The steps of the last `window` validations stay in `recent`.
        """
        self.validated = self.step
        self.recent = [*self.recent, self.step][-window:]
        score, best = metrics[metric], self.best.get(metric)
        improved = is_better(score, best, maximize=maximize)
        self.stale = 0 if improved else self.stale + 1
        if improved or score == best:
            self.best_step, self.best = self.step, dict(metrics)
        return self.best_step == self.step


def is_better(value: float, than: float | None, *, maximize: bool) -> bool:
    """Whether a score beats another; one that is there beats None, NaN beats nothing."""
    if math.isnan(value) or than is None:
        return not math.isnan(value)
    return value > than if maximize else value < than
