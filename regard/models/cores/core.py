"""What every core does: take a source in, then answer targets, all at once or one at a time.

    items            = encode(source)           read the source
    state            = start(source)            the same; project what later reads need, once
    hidden           = forward(targets, state)  all targets at once (training)
    hidden_t, state  = step(target_t, state)    one target (decoding): the same numbers
    hidden_1 ..      = answer(queries, items)   a set of queries, which have no order, after every block

`forward(targets, start(source))` and repeated `step` are equal to rounding; a test walks every core. A core answers
targets in order or sets of queries, as it was made for (`in_order`): a set needs neither masks nor positions.
"""

from abc import ABC, abstractmethod
from typing import Protocol, Self, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded


@runtime_checkable
class State(Protocol):
    """What a core knows at some point of a decoding; a value, never changed in place."""

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Any rows of the batch, in that order, source memory included (finished sentences leave)."""
        ...

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        """Rows permuted within their own sentence (beams): the source memory is left where it is."""
        ...


class Core(nn.Module, ABC):
    """Between what a model reads and what it writes; items in and out have size `width`."""

    width: int

    def blocks(self) -> list[nn.Module]:
        """Parts whose weights are used only inside their own forward: what FSDP may gather one at a time."""
        return []

    memory_dim: int
    """Size of what `encode` gives."""

    @abstractmethod
    def encode(self, source: Padded) -> Padded:
        """What the core makes of each source item: (batch, source, memory_dim), lengths unchanged."""

    @abstractmethod
    def answer(
        self, queries: Float[Tensor, "batch query model"], encoded: Padded
    ) -> list[Float[Tensor, "batch query model"]]:
        """Hidden vectors for a set of queries that read what `encode` gave, after each decoder block.

        Raises: ValueError if the core was made for targets in order.
        """

    @abstractmethod
    def start(self, source: Padded) -> State:
        """Take in source items (batch, source, width); the state before the first target."""

    @abstractmethod
    def begin(self, rows: int) -> State:
        """The state before the first target of so many rows, for a core that reads no source."""

    @abstractmethod
    def forward(
        self, targets: Float[Tensor, "batch target model"], state: State
    ) -> Float[Tensor, "batch target model"]:
        """Hidden vectors for targets that all are known, each seeing only those before it and itself."""

    @abstractmethod
    def step(self, target: Float[Tensor, "rows model"], state: State) -> tuple[Float[Tensor, "rows model"], State]:
        """Hidden vectors for one more target a row, and the state after it."""
