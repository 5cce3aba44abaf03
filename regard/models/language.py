"""A language model: every token is predicted from those before it; GPT, if the core is a Transformer.

    h_0 = U W_e + W_p      h_l = block(h_{l-1})      p(u_t | u_<t) = softmax(h_n W_e^T)        W_e tied

Source: lectures, D (GPT); radford2018, section 3.1.
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.kernels.maps import linear
from regard.layers.cross_entropy import token_loss
from regard.layers.forms import TableForm, TextForm, TransformerForm, WriterForm, form_of
from regard.models.cores.core import Core, State
from regard.models.model import Loss
from regard.models.reads.tokens import TokenReader


@runtime_checkable
class Windows(Protocol):
    """What a language model learns from: pieces of a long text."""

    @property
    def tokens(self) -> Int[Tensor, "rows time"]:
        """Consecutive tokens, of which all but the first are predicted; -1 behind the end of a short one."""
        ...


class LanguageModel(nn.Module):
    """reads + core, whose scores come from the table that reads."""

    def __init__(self, reads: TokenReader, core: Core):
        super().__init__()
        self.reads = reads
        self.core = core

    def forward(self, tokens: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time vocab"]:
        """Scores of the token after each."""
        return self._scores(self._hidden(tokens))

    def loss(self, batch: Windows) -> Loss:
        """Sums over the predicted tokens."""
        tokens = batch.tokens
        hidden = self._hidden(tokens[:, :-1].clamp(min=0)).flatten(0, 1)
        wanted = tokens[:, 1:].flatten()
        real = (wanted >= 0).nonzero().squeeze(1)
        total, nll = token_loss(
            hidden.index_select(0, real), self.reads.table.weight, None, wanted.index_select(0, real), smoothing=0.0
        )
        return Loss(total, nll, len(real))

    def count(self, batch: Windows) -> int:
        """Predicted tokens of a batch."""
        return int((batch.tokens[:, 1:] >= 0).sum())

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return self.core.blocks()

    def begin(self, rows: int) -> State:
        """The state before the first token."""
        return self.core.begin(rows)

    def step(self, tokens: Int[Tensor, " rows"], state: State) -> tuple[Float[Tensor, "rows vocab"], State]:
        """Scores of the next token after one more token a row, and the state that has it."""
        hidden, state = self.core.step(self.reads.embed(tokens), state)
        return self._scores(hidden), state

    def form(self) -> TextForm:
        """What it is in decoding, as data."""
        table, core = form_of(self.reads, TableForm), form_of(self.core, TransformerForm)
        return TextForm(None, core, WriterForm(table, table.weight))

    def _hidden(self, tokens: Tensor) -> Tensor:
        return self.core(self.reads.embed(tokens), self.core.begin(len(tokens)))

    def _scores(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.reads.table.weight)
