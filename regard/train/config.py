"""Settings of the training loop. Imports no torch: the command line makes its options and help from this."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from regard.errors import UserError

__all__ = ["TrainConfig"]

# What may differ when a run is resumed: how long it goes on, what it writes, and where it computes.
_FREE = {"steps", "epochs", "minutes", "patience", "log_every", "tensorboard"} | {
    "checkpoint_every",
    "checkpoint_minutes",
    "keep",
    "compile",
    "shard",
    "device",
}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained: when to stop, what one step does, how often to look at it and to save it.

    Training stops at the first limit that is reached: steps, epochs, minutes, or patience.
    """

    steps: int | None = None
    """Stop after this many steps (updates of the weights)."""

    epochs: int | None = None
    """Stop after this many passes over the training data."""

    minutes: float | None = None
    """Stop after this much time, validations included; time before an interruption counts. The result then
    depends on the machine's speed, not on the seed alone."""

    patience: int = 10
    """Stop after this many validations in a row without a new best score; 0: never."""

    batch_tokens: int = 4096
    """Size of a batch in tokens, padding included, of the longer side."""

    accumulate: int = 1
    """Batches whose gradients are added up for one step; the loss is their mean over target tokens, as if
    they were one batch."""

    optimizer: Literal["adamw", "adam"] = "adamw"
    """adamw: weight decay apart from the gradient; adam: weight decay added to the gradient."""

    lr: float = 1e-3
    """Learning rate at its peak, which the schedule reaches at the end of the warm-up."""

    betas: tuple[float, float] = (0.9, 0.98)
    """Decay a step of Adam's running means of the gradient and of its square."""

    eps: float = 1e-9
    """Added to the root in Adam's denominator."""

    weight_decay: float = 0.0
    """Weight decay of matrices; embeddings, biases and norms have none."""

    clip: float = 1.0
    """Longest gradient, as the norm over all weights; a longer one is scaled down. 0: no limit."""

    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """What the learning rate does after the warm-up: fall as 1 / sqrt(step), fall to zero at the end of the
    run (cosine, linear), or stay. The end is that of steps, else of epochs, else of minutes."""

    warmup: int = 400
    """Steps in which the learning rate rises from zero to its peak."""

    label_smoothing: float = 0.1
    """Share of each target's probability that is spread over the whole vocabulary."""

    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """bfloat16: matrix products in bfloat16 (autocast), weights and sums in float32; auto: bfloat16 where the
    device multiplies it natively, float32 elsewhere, so that results differ between machines."""

    compile: bool = False
    """Compile the loss with torch.compile: minutes at the start, faster steps on some machines."""

    shard: Literal["ddp", "fsdp", "none"] = "ddp"
    """What several processes (torchrun) share: ddp: each holds the whole model; fsdp: each holds a part of
    every weight; none: nothing, several processes are refused."""

    device: str = "auto"
    """Where to compute: auto (an accelerator if there is one), cpu, cuda, cuda:1, mps ..."""

    validate_every: int = 0
    """Steps between validations; 0: one after each epoch."""

    average: int = 5
    """Weights of this many last validations are averaged at the end, and kept if that scores at least as well
    as the best; 0: no average."""

    ema: float = 0.0
    """Decay a step of a moving average of the weights, which is then what is validated and kept; 0: none,
    0.999 is usual."""

    log_every: int = 50
    """Steps between lines of the log."""

    tensorboard: bool = True
    """Write curves for TensorBoard into the run's folder tb."""

    checkpoint_every: int = 0
    """Steps between checkpoints, beside those after each validation; 0: none beside."""

    checkpoint_minutes: float = 5.0
    """Most minutes of training between two checkpoints; 0: no limit."""

    keep: int = 2
    """Checkpoints kept: the last ones."""

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "minutes"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, "above 0", value)
        for name in ("batch_tokens", "accumulate", "log_every", "keep"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("patience", "warmup", "validate_every", "average", "checkpoint_every"):
            _require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        for name in ("lr", "eps"):
            _require(0 < getattr(self, name) < math.inf, name, "above 0", getattr(self, name))
        for name in ("weight_decay", "clip", "checkpoint_minutes"):
            _require(0 <= getattr(self, name) < math.inf, name, "at least 0", getattr(self, name))
        for name in ("label_smoothing", "ema"):
            _require(0 <= getattr(self, name) < 1, name, "at least 0 and below 1", getattr(self, name))
        _require(all(0 <= beta < 1 for beta in self.betas), "betas", "at least 0 and below 1", self.betas)
        ends = [self.steps, self.epochs, self.minutes]
        if not any(ends) and self.schedule in ("cosine", "linear"):
            raise UserError(f"schedule {self.schedule} needs an end to fall to: steps, epochs or minutes.")
        if not any(ends) and not self.patience:
            raise UserError("nothing ends the training: give steps, epochs, minutes or patience.")

    def decisive(self) -> dict[str, Any]:
        """The settings that decide the weights, as JSON holds them: what a resumed run must not change."""
        values = {name: value for name, value in asdict(self).items() if name not in _FREE}
        return values | {"betas": list(self.betas)}


def _require(holds: bool, name: str, rule: str, got: object) -> None:
    if not holds:
        raise UserError(f"{name} must be {rule}, but is {got}.")
