"""Interface of cores: encode a source, then decode targets, all in parallel or one at a time.

    items            = encode(source)                encoder pass
    state            = begin(items)                  projected keys and values
    state            = begin(None, rows=n)           without a source
    state            = start(source)                 begin(encode(source))
    hidden           = forward(targets, state)       all targets in parallel (training)
    hidden_t, state  = step(target_t, state)         one target (decoding)
    hidden_t, state  = steps(targets, state)         several targets, h_t of the last one
    hidden_1 ..      = decode_set(queries, items)    a set of queries; after every decoder block

`forward(targets, start(source))`, `steps` and repeated `step` are equal up to rounding, which is
tested for every core. A core is constructed for targets in order or for sets of queries
(`in_order`): a set needs neither masks nor positions.
"""

import importlib
from abc import ABC, abstractmethod
from typing import Any, Literal, Protocol, Self, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.choices import Choice, Hard, Sigmoid, SinkSoft, Soft, Sparse, TopK
from regard.attention.masks import Padded
from regard.attention.scores.base import Score
from regard.models.cores.config import ChoiceConfig

ConfigT = TypeVar("ConfigT")
Items = Float[Tensor, "batch time model"]
"""Items, or hidden states, of all targets in order, or of a set of queries."""
Item = Float[Tensor, "rows model"]
"""Item, or hidden state, of one target per row."""


@runtime_checkable
class CoreState(Protocol):
    """State of a core between two decoding steps; immutable."""

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Return rows of the batch, in this order, source memory included."""

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        """Return rows permuted within each sentence (beams); the source memory is unchanged."""


class Core(nn.Module, ABC):
    """Base class of cores; input items and hidden states have size `width`.

    memory_dim: size of the items that `encode` returns; `width` if not given.
    encodes:    False for a decoder alone, which reads no source.
    decodes:    False for an encoder alone.
    in_order:   True if the decoder decodes targets in order, False for sets of queries.
    set_outputs: number of hidden states that `decode_set` returns, one for each decoder block.
    """

    reads_relations: bool = False
    """True if `encode` takes the relations of a batch (Related)."""
    unsupported_slide_reason: str | None = "its state does not define `slide`"
    """Reason why the state cannot drop keys and values of old targets; None if it can."""

    def __init__(
        self,
        width: int,
        *,
        memory_dim: int | None = None,
        encodes: bool = True,
        decodes: bool = True,
        in_order: bool = True,
        set_outputs: int = 1,
    ):
        super().__init__()
        self.width, self.memory_dim = width, memory_dim or width
        self.encodes, self.decodes, self.in_order = encodes, decodes, in_order
        self.set_outputs = set_outputs

    def blocks(self) -> list[nn.Module]:
        """Return the modules whose weights are used only inside their own forward (FSDP)."""
        return []

    def num_layers(self, stack: Literal["encoder", "decoder"]) -> int:
        """Return the number of layers of the encoder or the decoder; 0 if it is not known."""
        return 0

    def slide(self, state: Any, window: int) -> Any:
        """Return the state with the keys and values of the last `window` targets only.

        Raises: ValueError with `unsupported_slide_reason`, or before a target.
        """
        if self.unsupported_slide_reason is not None:
            raise ValueError(f"cannot drop keys and values: {self.unsupported_slide_reason}")
        return state.slide(window)

    @abstractmethod
    def encode(self, source: Padded) -> Padded:
        """Encode the source items: (batch, source, memory_dim), lengths unchanged."""

    @abstractmethod
    def decode_set(self, queries: Items, encoded: Padded) -> list[Items]:
        """Return hidden states of a set after each block. Raises: ValueError if in_order."""

    @abstractmethod
    def begin(self, encoded: Padded | None, *, rows: int = 1) -> CoreState:
        """Return the state before the first target.

        encoded: what `encode` returned; None without a source: the state then has `rows` rows.
        """

    def start(self, source: Padded | None, *, rows: int = 1) -> CoreState:
        """Encode source items (batch, source, width); return the state before the first target."""
        return self.begin(None if source is None else self.encode(source), rows=rows)

    @abstractmethod
    def forward(self, targets: Items, state: CoreState) -> Items:
        """Return hidden states of all targets; each depends on itself and those before it."""

    @abstractmethod
    def step(self, target: Item, state: CoreState) -> tuple[Item, CoreState]:
        """Return hidden states of one more target per row, and the next state."""

    def steps(self, targets: Items, state: Any) -> tuple[Item, Any]:
        """Return the hidden states of the last of more targets, and the next state."""
        *first, last = targets.unbind(1)
        for target in first:
            _, state = self.step(target, state)
        return self.step(last, state)


def config_of(kind: type[ConfigT], config: ConfigT | None, fields: dict[str, Any]) -> ConfigT:
    """Return the given config, or one of these fields. Raises: TypeError if they do not fit."""
    if config is None:
        return kind(**fields)
    if not isinstance(config, kind) or fields:
        raise TypeError(f"give a {kind.__name__} or its fields, got {config!r} and {list(fields)}")
    return config


def load_class(place: str) -> Any:
    """Return the class at "module:Class"."""
    module, kind = place.split(":")
    return getattr(importlib.import_module(module), kind)


def create_choice(
    config: ChoiceConfig, score: Score, num_heads: int | None = None
) -> Choice | None:
    """Create the choice of a config for a score; None: the plain softmax.

    A learned beta has a value for each head. Without a beta in the config, it is the factor that
    the score needs, which is learned (hard: fixed).
    """
    factor = score.initial_factor
    learn = config.beta == "learned" or (config.beta is None and factor is not None)
    number = 1.0 if factor is None else factor
    if isinstance(config.beta, int | float):
        number = config.beta
    beta = torch.full((num_heads, 1, 1), number) if learn and num_heads is not None else number
    if config.sink != "none":
        heads = (num_heads or 1) if config.sink == "learned" else None
        return SinkSoft(heads, beta=beta, learn=learn)
    match config.choice:
        case "hard":
            estimator = config.hard or "straight-through"
            temperature = 1.0 if config.hard == "none" else 1 / number
            return Hard(estimator, temperature=temperature)
        case "sparse":
            return Sparse(config.alpha or 1.5, beta=beta, learn=learn)
        case "topk":
            return TopK(config.top_k or 8, beta=beta, learn=learn)
        case "sigmoid":
            return Sigmoid(beta=beta, learn=learn)
    return Soft(beta, learn=learn) if learn or number != 1 else None
