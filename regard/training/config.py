"""Settings of the training loop. Imports no torch, so that the command line's help is fast."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from regard.errors import UserError
from regard.settings.declare import settings
from regard.settings.ranges import Count, FractionBelowOne, Range, check_device

# Settings that may change when a run is resumed: its limits, when it validates, what it writes, and
# where it computes.
_CHANGEABLE = {
    *("steps", "epochs", "minutes", "patience", "compile", "shard", "device"),
    *("validate_every", "log_every", "tensorboard", "checkpoint_every", "checkpoint_minutes"),
    *("keep", "keep_finished"),
}


@settings
class TrainConfig:
    """Settings of training: limits, optimizer, schedule, validation and checkpoints.

    Training stops at the first limit that is reached: steps, epochs, minutes or patience.
    """

    steps: Count | None = None
    """Stop after this many optimizer steps."""
    epochs: Count | None = None
    """Stop after this many epochs, to which the schedule is fitted."""
    minutes: Annotated[float, Range(1e-6, 1e7)] | None = None
    """Stop after this many minutes, including validations and the time before interruptions. The
    speed of the first 10 to 35 steps fixes the number of steps that fit, and the schedule is fitted
    to it; so the result depends on the machine, not only on the seed."""
    patience: Annotated[int, Range(0, 1_000_000_000)] = 10
    """Stop after this many validations in a row without a new best score; 0: no limit."""
    batch_tokens: Annotated[int, Range(1, 10_000_000)] = 4096
    """Batch size in tokens of the longer side, including padding."""
    accumulate: Annotated[int, Range(1, 100_000)] = 1
    """Number of batches per optimizer step (gradient accumulation); the loss is the mean over their
    target tokens, as if they were one batch."""
    optimizer: Literal["adamw", "adam", "muon", "auto"] = "adamw"
    """Optimizer. adamw: decoupled weight decay; adam: weight decay in the gradient (L2 penalty);
    muon: orthogonalized momentum for the matrices of a Transformer's blocks, at 4 times the rate,
    and adamw for the rest; auto: muon for a Transformer, else adamw."""
    lr: Annotated[float, Range(1e-12, 100)] = 1e-3
    """Peak learning rate, reached at the end of the warm-up."""
    betas: tuple[FractionBelowOne, FractionBelowOne] = (0.9, 0.98)
    """Decay rates of Adam's running averages of the gradient and of its square."""
    eps: Annotated[float, Range(1e-20, 1)] = 1e-9
    """Term added to the denominator of Adam for numerical stability."""
    weight_decay: Annotated[float, Range(0, 1_000)] = 0.0
    """Weight decay, for matrices only; embeddings, biases and norms are not decayed."""
    clip: Annotated[float, Range(0, 1e9)] = 1.0
    """Maximum norm of the gradient over all parameters (gradient clipping); 0: no clipping."""
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """Learning rate schedule after the warm-up: proportional to 1 / sqrt(step), decay to zero at
    the end of the run (cosine, linear), or constant. The end of the run is the first of steps,
    epochs and minutes."""
    warmup: Annotated[int, Range(0, 1_000_000_000)] | Annotated[float, Range(0, 1)] = 400
    """Number of warm-up steps, or below 1 the fraction of the run: the learning rate increases
    linearly from zero to its peak. If epochs or minutes end the run before `steps`, and it is more
    than a quarter of the run, it becomes the part of the run that it is of `steps`, at most a
    quarter, and a tenth if `steps` is none."""
    layer_decay: Annotated[float, Range(0, 1, is_open_below=True)] = 1.0
    """Layer-wise decay of the learning rate of a Transformer: factor for each block of distance
    from the output, embeddings lowest; 1: off; 0.65 to 0.9 is usual in fine-tuning."""
    freeze: Annotated[int, Range(0, 1_000)] | str | None = None
    """Part that is not trained. reader: embeddings or patches of the input, and their positions; a
    number N: also the first N blocks of the encoder, or of a decoder without one. A table that the
    output shares is frozen, too."""
    lora: Annotated[int, Range(1, 65_536)] | None = None
    """Rank of low-rank adapters (LoRA) of the projections of multi-head attention, with --init:
    only they, at 10 times the rate, and heads other than those of tokens are trained. The finished
    run holds their sums with the weights."""
    label_smoothing: FractionBelowOne = 0.1
    """Label smoothing: fraction of each target's probability spread over the vocabulary."""
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "float32"
    """Precision. bfloat16: matrix products in bfloat16 (autocast), parameters and sums in float32;
    tf32: matrix products of float32 with inputs rounded to 10 bits, on GPUs only;
    auto: the faster of bfloat16 and float32, so results differ between machines. On a CPU with
    bfloat16 instructions both are timed when a run begins (under 0.2 s), so that a busy machine may
    choose the other; on CUDA it is bfloat16 if that is native; elsewhere it is float32. A run
    records its precision and resumes with it; one of tf32 goes on in float32 on a CPU."""
    compile: bool = False
    """Compile the blocks of a Transformer with torch.compile, one code for all layers and lengths:
    a minute at the start, faster steps on some machines. Models without such blocks are refused."""
    shard: Literal["ddp", "fsdp", "none"] = "ddp"
    """Distributed training with torchrun. ddp: each process holds the whole model; fsdp: each holds
    a shard of every parameter; none: only one process is allowed."""
    device: str = "auto"
    """Device: cpu, cuda, cuda:1, mps, xpu, or auto (an accelerator if there is one)."""
    validate_every: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Steps between validations; 0: after each epoch."""
    average: Annotated[int, Range(0, 1_000)] = 5
    """Number of last validations whose parameters are averaged at the end; the average is used if
    it scores at least as well as the best parameters, and with equal scores has no higher loss. 0:
    no average."""
    ema: FractionBelowOne = 0.0
    """Decay of an exponential moving average (EMA) of the parameters, which is then validated and
    saved; 0: no EMA; 0.999 is usual."""
    log_every: Count = 50
    """Steps between lines of the log."""
    tensorboard: bool = True
    """Write curves for TensorBoard to the folder tb of the run."""
    checkpoint_every: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Steps between checkpoints, besides one after each validation; 0: no additional ones."""
    checkpoint_minutes: Annotated[float, Range(0, 1e7)] = 5.0
    """Maximum minutes of training between two checkpoints; 0: no limit."""
    keep: Annotated[int, Range(1, 1_000)] = 2
    """Number of last checkpoints to keep."""
    keep_finished: Literal["model", "checkpoints"] = "model"
    """What a finished run keeps: model: its parameters, report and logs; checkpoints: its last
    checkpoints, too, which take several times the memory of the model, so that it can be trained
    longer."""

    def __post_init__(self) -> None:
        check_device(self.device)
        ends = [self.steps, self.epochs, self.minutes]
        if not any(ends) and self.schedule in ("cosine", "linear"):
            raise UserError(
                f"schedule {self.schedule} needs an end of the run: set steps, epochs or minutes."
            )
        if not any(ends) and 0 < self.warmup < 1:
            raise UserError(
                f"warmup {self.warmup} needs an end of the run: set steps, epochs or minutes."
            )
        if isinstance(self.freeze, str) and self.freeze != "reader":
            raise UserError(f"freeze must be reader or a number of blocks, got {self.freeze!r}")
        if not any(ends) and not self.patience:
            raise UserError("training must have a limit: set steps, epochs, minutes or patience.")

    def training_fingerprint(self) -> dict[str, Any]:
        """Return the settings that determine the weights, as JSON; resumed runs keep them."""
        values = {name: value for name, value in asdict(self).items() if name not in _CHANGEABLE}
        return values | {"betas": list(self.betas)}
