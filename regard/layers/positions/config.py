"""Configs of positional encodings. Importing them needs no torch."""

from typing import Annotated, ClassVar, Literal

from regard.settings.declare import check_unused, settings
from regard.settings.ranges import Length, Range, Width

_POSITIONS = "regard.layers.positions"
SCALINGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_length"),
    "yarn": (
        *("factor", "beta_slow", "beta_fast"),
        *("original_max_length", "attention_factor", "truncate"),
    ),
}
"""Fields of RotaryConfig that each scaling of the angles uses."""


@settings
class SinusoidalConfig:
    """Fixed sines and cosines, added to the items; any length."""

    name: ClassVar[str] = "sinusoidal"
    kind: ClassVar[str] = f"{_POSITIONS}.sinusoidal:Sinusoidal"


@settings
class LearnedConfig:
    """A learned vector for each position, added to the items. (gehring2017)"""

    name: ClassVar[str] = "learned"
    kind: ClassVar[str] = f"{_POSITIONS}.learned:Learned"

    max_length: Length = 1024
    """Maximum sequence length."""


@settings
class RotaryConfig:
    """Rotary positional encoding (RoPE): rotates queries and keys of self-attention. (su2024)"""

    name: ClassVar[str] = "rotary"
    kind: ClassVar[str] = f"{_POSITIONS}.rotary:Rotary"

    base: Annotated[float, Range(1, 1e12, is_open_below=True)] = 10_000.0
    """Pair j of a head of size d is rotated by base^(-2j/d) per position (rope_theta)."""
    window_base: Annotated[float, Range(1, 1e12, is_open_below=True)] | None = None
    """Base of the blocks with a window, where angles are not scaled; that of the others if not
    given. (warner2024)"""
    dim: Width | None = None
    """Numbers of each head that are rotated; all if not given."""
    interleaved: bool = False
    """Pairs of numbers 2j and 2j + 1 (GPT-J); otherwise j and j + d/2 (Llama)."""
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    """Angles for sequences longer than those of training: linear: all divided by factor (chen2023);
    llama3, yarn: those of pairs that turn slowly (dubey2024, peng2024)."""
    factor: Annotated[float, Range(1, 1e6)] = 8.0
    """Divisor of the angles (linear, llama3 and yarn)."""
    low_freq_factor: Annotated[float, Range(0, 1e6, is_open_below=True)] = 1.0
    """Pairs that turn at most so often in original_max_length: divided by factor (llama3)."""
    high_freq_factor: Annotated[float, Range(0, 1e6, is_open_below=True)] = 4.0
    """Pairs with at least as many turns are not scaled (llama3)."""
    original_max_length: Length = 8192
    """Length of sequences in the original training (llama3 and yarn)."""
    beta_slow: Annotated[float, Range(0, 1e6, is_open_below=True)] = 1.0
    """Pairs that turn at most so often in original_max_length: divided by factor (yarn)."""
    beta_fast: Annotated[float, Range(0, 1e6, is_open_below=True)] = 32.0
    """Pairs with at least as many turns are not scaled (yarn)."""
    attention_factor: Annotated[float, Range(0, 1e3, is_open_below=True)] | None = None
    """Factor of rotated queries and keys (yarn); 0.1 ln(factor) + 1 if not given."""
    truncate: bool = True
    """Ramp between slow and fast pairs from a whole number of a pair to another (yarn)."""

    def __post_init__(self) -> None:
        if self.dim is not None and self.dim % 2:
            raise ValueError(f"dim must be even, got {self.dim}")
        for slow, fast in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            low, high = getattr(self, slow), getattr(self, fast)
            if high <= low:
                raise ValueError(f"{fast} must be above {slow}={low}, got {high}")
        every = {name for names in SCALINGS.values() for name in names}
        unused = sorted(every - {*SCALINGS[self.scaling]})
        check_unused(self, unused, f"scaling={self.scaling}")


@settings
class GridRotaryConfig:
    """Rotary positions of rows and of columns, for the patches of images. (heo2024)"""

    name: ClassVar[str] = "rotary-2d"
    kind: ClassVar[str] = f"{_POSITIONS}.rotary:GridRotary"

    base: Annotated[float, Range(1, 1e12, is_open_below=True)] = 100.0
    """Pair j of the half of a head of size d that rows rotate, or columns: base^(-4j/d) a step."""


@settings
class AlibiConfig:
    """Bias of self-attention: a linear penalty on the distance, both ways. (press2022)"""

    name: ClassVar[str] = "alibi"
    kind: ClassVar[str] = f"{_POSITIONS}.base:AlibiPositions"


@settings
class RelativeConfig:
    """T5's bias of self-attention, learned for each head and range of distances. (raffel2020)"""

    name: ClassVar[str] = "relative"
    kind: ClassVar[str] = f"{_POSITIONS}.base:RelativePositions"

    buckets: Annotated[int, Range(4, 65_536)] = 32
    """Number of ranges of distances; half of them for later keys in an encoder."""
    max_distance: Length = 128
    """Distance from which all are in the last bucket."""

    def __post_init__(self) -> None:
        if self.buckets % 2:
            raise ValueError(f"buckets must be even, got {self.buckets}")
        half = self.buckets // 2
        if self.max_distance <= half:
            raise ValueError(f"max_distance must exceed {half}, got {self.max_distance}")


@settings
class NoPositionsConfig:
    """No positional encoding."""

    name: ClassVar[str] = "none"
    kind: ClassVar[str] = f"{_POSITIONS}.base:NoPositions"


PositionsConfig = (
    SinusoidalConfig
    | LearnedConfig
    | RotaryConfig
    | GridRotaryConfig
    | AlibiConfig
    | RelativeConfig
    | NoPositionsConfig
)
"""Config of any positional encoding; the method `create` of its `kind` takes it."""
