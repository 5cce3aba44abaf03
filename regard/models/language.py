"""Causal language model (decoder-only): GPT if the core is a Transformer.

    h_0 = U W_e + W_p      h_l = block(h_{l-1})      p(u_t | u_<t) = softmax(h_n W_e^T)        W_e tied

Source: lectures, D (GPT); radford2018, section 3.1.
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers.forms import TableForm, TextForm, TransformerForm, WriterForm, form_of
from regard.models.cores.core import Core, CoreState
from regard.models.model import BatchLoss
from regard.models.readers.tokens import TokenReader
from regard.ops.linear import linear
from regard.ops.token_loss import token_loss


@runtime_checkable
class LanguageModelBatch(Protocol):
    """Training batch of a language model: segments of a long text."""

    @property
    def tokens(self) -> Int[Tensor, "rows time"]:
        """Consecutive token ids, of which all but the first are predicted; -1 for padding."""
        ...


class LanguageModel(nn.Module):
    """Causal language model: reads + core, with tied input and output embeddings."""

    def __init__(self, reads: TokenReader, core: Core):
        super().__init__()
        self.reads = reads
        self.core = core

    def forward(self, tokens: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time vocab"]:
        """Return the logits of the next token at all positions."""
        return self._scores(self._hidden(tokens))

    def loss(self, batch: LanguageModelBatch) -> BatchLoss:
        """Return the loss of a batch, summed over the predicted tokens."""
        tokens = batch.tokens
        hidden = self._hidden(tokens[:, :-1].clamp(min=0)).flatten(0, 1)
        targets = tokens[:, 1:].flatten()
        real = (targets >= 0).nonzero().squeeze(1)
        total, nll = token_loss(
            hidden.index_select(0, real), self.reads.table.weight, None, targets.index_select(0, real), smoothing=0.0
        )
        return BatchLoss(total, nll, len(real))

    def count(self, batch: LanguageModelBatch) -> int:
        """Return the number of predicted tokens of a batch."""
        return int((batch.tokens[:, 1:] >= 0).sum())

    def blocks(self) -> list[nn.Module]:
        """Return the modules that may be sharded one by one (FSDP)."""
        return self.core.blocks()

    def begin(self, rows: int) -> CoreState:
        """Return the state of `rows` rows before the first token."""
        return self.core.begin(rows)

    def step(self, tokens: Int[Tensor, " rows"], state: CoreState) -> tuple[Float[Tensor, "rows vocab"], CoreState]:
        """Return the logits of the next token after one more token per row, and the next state."""
        hidden, state = self.core.step(self.reads.embed(tokens), state)
        return self._scores(hidden), state

    def form(self) -> TextForm:
        """Return the form of this model in decoding (regard.layers.forms)."""
        table, core = form_of(self.reads, TableForm), form_of(self.core, TransformerForm)
        return TextForm(None, core, WriterForm(table, table.weight))

    def _hidden(self, tokens: Tensor) -> Tensor:
        return self.core(self.reads.embed(tokens), self.core.begin(len(tokens)))

    def _scores(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.reads.table.weight)
