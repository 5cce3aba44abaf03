"""Encoder-decoder model, composed of a reader, a core and a writer.

    memory = core.start(reads(source))                      the source becomes a memory
    hidden = core(writes.embed_shifted(target), memory)     the queries of the writer read the memory
    loss   = writes.loss(hidden, target)

Any reader can be combined with any core and any writer. For decoding, a model is a stepper: `start(source)` encodes the
source, then `step(tokens, state)` takes one more token per row; the results equal those of `forward`.

Source: lectures, E (encoder-predictor-decoder view).
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.forms import TableForm, TextForm, TransformerForm, WriterForm, form_of
from regard.models.cores.core import Core, CoreState
from regard.models.writers.tokens import TokenWriter


@runtime_checkable
class SourceTargetBatch(Protocol):
    """Training batch of an encoder-decoder model: sources and targets."""

    @property
    def source(self) -> Padded | Tensor:
        """Input of the reader, such as token ids."""
        ...

    @property
    def target(self) -> Padded:
        """Target token ids, from the start symbol to the end symbol."""
        ...


class BatchLoss(NamedTuple):
    """Sums over a batch, in nats."""

    total: Float[Tensor, ""]
    """Training objective (label smoothing included)."""
    nll: Float[Tensor, ""]
    """Sum of -log p(target), for reports."""
    count: int
    """Number of tokens."""


class Model(nn.Module):
    """Encoder-decoder model: reads + core + writes."""

    def __init__(self, reads: nn.Module, core: Core, writes: TokenWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.writes = writes

    def forward(self, source: Padded | Tensor, target: Padded) -> Float[Tensor, "batch steps vocab"]:
        """Return the logits of the next token at all positions (teacher forcing)."""
        return self.writes.logits(self.hidden(source, target))

    def hidden(self, source: Padded | Tensor, target: Padded) -> Float[Tensor, "batch steps dim"]:
        """Return the hidden states of the decoder for the shifted targets."""
        return self.core(self.writes.embed_shifted(target), self.start(source))

    def loss(self, batch: SourceTargetBatch) -> BatchLoss:
        """Return the loss of a batch, summed over its target tokens."""
        total, nll = self.writes.loss(self.hidden(batch.source, batch.target), batch.target)
        return BatchLoss(total, nll, self.count(batch))

    def count(self, batch: SourceTargetBatch) -> int:
        """Return the number of target tokens of a batch."""
        return self.writes.count(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Return the modules that may be sharded one by one (FSDP)."""
        return self.core.blocks()

    def start(self, source: Padded | Tensor) -> CoreState:
        """Encode the source; return the state before the first target."""
        return self.core.start(self.reads(source))

    def step(self, tokens: Int[Tensor, " rows"], state: CoreState) -> tuple[Float[Tensor, "rows vocab"], CoreState]:
        """Return the logits of the next token after one more token per row, and the next state."""
        hidden, state = self.core.step(self.writes.embed(tokens), state)
        return self.writes.logits(hidden), state

    def form(self) -> TextForm:
        """Return the form of this model in decoding (regard.layers.forms)."""
        source, core = form_of(self.reads, TableForm), form_of(self.core, TransformerForm)
        return TextForm(source, core, form_of(self.writes, WriterForm))
