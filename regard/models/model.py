"""A model is what it reads, a core, and what it writes.

    memory = core.start(reads(source))                the source becomes a memory
    hidden = core(writes.shifted(target), memory)     the writer's queries read it
    loss   = writes.loss(hidden, target)

Any reader goes with any core and any writer. For decoding a model is a stepper: `start(source)`, then
`step(tokens, state)` for one token more a row, equal to all at once.

Source: lectures, E (encoder-predictor-decoder view).
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.forms import TableForm, TextForm, TransformerForm, WriterForm, form_of
from regard.models.cores.core import Core, State
from regard.models.writes.tokens import TokenWriter


@runtime_checkable
class Example(Protocol):
    """What a model learns from: a batch of sources and their targets."""

    @property
    def source(self) -> Padded | Tensor:
        """What is read: ids of tokens, or whatever the reader takes."""
        ...

    @property
    def target(self) -> Padded:
        """What should be written, from its start symbol to its end symbol."""
        ...


class Loss(NamedTuple):
    """Sums over a batch, in nats."""

    total: Float[Tensor, ""]
    """What is minimized (label smoothing included)."""
    nll: Float[Tensor, ""]
    """Sum of -log p(target): what is reported."""
    count: int
    """Tokens summed over."""


class Model(nn.Module):
    """reads + core + writes."""

    def __init__(self, reads: nn.Module, core: Core, writes: TokenWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.writes = writes

    def forward(self, source: Padded | Tensor, target: Padded) -> Float[Tensor, "batch steps vocab"]:
        """Scores of every next token, all positions at once."""
        return self.writes.logits(self.hidden(source, target))

    def hidden(self, source: Padded | Tensor, target: Padded) -> Float[Tensor, "batch steps dim"]:
        """The core's answer to the shifted targets."""
        return self.core(self.writes.shifted(target), self.start(source))

    def loss(self, batch: Example) -> Loss:
        """Loss of a batch, summed over its target tokens."""
        total, nll = self.writes.loss(self.hidden(batch.source, batch.target), batch.target)
        return Loss(total, nll, self.count(batch))

    def count(self, batch: Example) -> int:
        """Target tokens of a batch, without computing anything."""
        return self.writes.count(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return self.core.blocks()

    def start(self, source: Padded | Tensor) -> State:
        """Read the source; the state before the first target."""
        return self.core.start(self.reads(source))

    def step(self, tokens: Int[Tensor, " rows"], state: State) -> tuple[Float[Tensor, "rows vocab"], State]:
        """Scores of the next token after one more token a row, and the state that has it."""
        hidden, state = self.core.step(self.writes.embed(tokens), state)
        return self.writes.logits(hidden), state

    def form(self) -> TextForm:
        """What it is in decoding, as data."""
        source, core = form_of(self.reads, TableForm), form_of(self.core, TransformerForm)
        return TextForm(source, core, form_of(self.writes, WriterForm))
