"""Settings of the training loop. Imports no torch: the command line makes its options and help from this."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from regard.errors import UserError
from regard.ranges import Count, Range, ShareBelowOne, check_device, check_ranges

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

    steps: Count | None = None
    """Stop after this many steps (updates of the weights)."""

    epochs: Count | None = None
    """Stop after this many passes over the training data."""

    minutes: Annotated[float, Range(1e-6, 1e7)] | None = None
    """Stop after this much time, validations included; time before an interruption counts. The result then
    depends on the machine's speed, not on the seed alone."""

    patience: Annotated[int, Range(0, 1_000_000_000)] = 10
    """Stop after this many validations in a row without a new best score; 0: never."""

    batch_tokens: Annotated[int, Range(1, 10_000_000)] = 4096
    """Size of a batch in tokens, padding included, of the longer side."""

    accumulate: Annotated[int, Range(1, 100_000)] = 1
    """Batches whose gradients are added up for one step; the loss is their mean over target tokens, as if
    they were one batch."""

    optimizer: Literal["adamw", "adam"] = "adamw"
    """adamw: weight decay apart from the gradient; adam: weight decay added to the gradient."""

    lr: Annotated[float, Range(1e-12, 100)] = 1e-3
    """Learning rate at its peak, which the schedule reaches at the end of the warm-up."""

    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.98)
    """Decay a step of Adam's running means of the gradient and of its square."""

    eps: Annotated[float, Range(1e-20, 1)] = 1e-9
    """Added to the root in Adam's denominator."""

    weight_decay: Annotated[float, Range(0, 1_000)] = 0.0
    """Weight decay of matrices; embeddings, biases and norms have none."""

    clip: Annotated[float, Range(0, 1e9)] = 1.0
    """Longest gradient, as the norm over all weights; a longer one is scaled down. 0: no limit."""

    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """What the learning rate does after the warm-up: fall as 1 / sqrt(step), fall to zero at the end of the
    run (cosine, linear), or stay. The end is that of steps, else of epochs, else of minutes."""

    warmup: Annotated[int, Range(0, 1_000_000_000)] = 400
    """Steps in which the learning rate rises from zero to its peak."""

    label_smoothing: ShareBelowOne = 0.1
    """Share of each target's probability that is spread over the whole vocabulary."""

    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """bfloat16: matrix products in bfloat16 (autocast), weights and sums in float32; auto: whichever is faster, so that
    results differ between machines. On a CPU that has instructions for bfloat16 a product of each is timed, once per
    machine (under 0.2 s); on CUDA it is bfloat16 where that is native; elsewhere it is float32. A run records its
    precision and continues in it."""

    compile: bool = False
    """Compile the loss with torch.compile: minutes at the start, faster steps on some machines."""

    shard: Literal["ddp", "fsdp", "none"] = "ddp"
    """What several processes (torchrun) share: ddp: each holds the whole model; fsdp: each holds a part of
    every weight; none: nothing, several processes are refused."""

    device: str = "auto"
    """Where to compute: auto (an accelerator if there is one), cpu, cuda, cuda:1, mps, xpu."""

    validate_every: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Steps between validations; 0: one after each epoch."""

    average: Annotated[int, Range(0, 1_000)] = 5
    """Weights of this many last validations are averaged at the end, and kept if that scores at least as well
    as the best; 0: no average."""

    ema: ShareBelowOne = 0.0
    """Decay a step of a moving average of the weights, which is then what is validated and kept; 0: none,
    0.999 is usual."""

    log_every: Count = 50
    """Steps between lines of the log."""

    tensorboard: bool = True
    """Write curves for TensorBoard into the run's folder tb."""

    checkpoint_every: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Steps between checkpoints, beside those after each validation; 0: none beside."""

    checkpoint_minutes: Annotated[float, Range(0, 1e7)] = 5.0
    """Most minutes of training between two checkpoints; 0: no limit."""

    keep: Annotated[int, Range(1, 1_000)] = 2
    """Checkpoints kept: the last ones."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_device(self.device)
        ends = [self.steps, self.epochs, self.minutes]
        if not any(ends) and self.schedule in ("cosine", "linear"):
            raise UserError(f"schedule {self.schedule} needs an end to fall to: steps, epochs or minutes.")
        if not any(ends) and not self.patience:
            raise UserError("nothing ends the training: give steps, epochs, minutes or patience.")

    def decisive(self) -> dict[str, Any]:
        """The settings that decide the weights, as JSON holds them: what a resumed run must not change."""
        values = {name: value for name, value in asdict(self).items() if name not in _FREE}
        return values | {"betas": list(self.betas)}
