"""Token head (autoregressive): embedding of the previous tokens, and cross-entropy of the next.

    inputs   BOS y_1 ... y_{n-1} y_n          decoder inputs
    outputs  y_1 y_2 ... y_n     EOS          targets of each position
    p(y_t | y_<t, x) = softmax(E h_t)         E (vocab, d) may be the input embedding (tied)
                       softmax(E W^T h_t)     embeddings of another size e: E (vocab, e), W (d, e)
                       softmax(E h_t + b)     b (vocab): biases of the logits

Source: lectures, D.15 (predicting at time t); tied embeddings: press2017; of another size: lan2020,
        section 3.1.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.attention.masks import Padded
from regard.compat.torch import runs_original_forward
from regard.layers.forms import NoFormError, TableForm, WriterForm, form_of
from regard.layers.linear import Linear
from regard.layers.positions.base import PositionalEncoding
from regard.models.cores.core import Core, CoreState
from regard.models.readers.reader import Shape, check_padded
from regard.models.readers.tokens import TokenReader, check_projection, table_form
from regard.models.writers.writer import Writer
from regard.ops.copies import copy_to, cpu_copy
from regard.ops.linear import linear
from regard.ops.token_loss import TokenLoss, token_loss


class TokenWriter(Writer):
    """Decoder input embedding, and output layer with its loss.

    output_table: (vocab, dim), the table of `inputs` if not given (tied).
    output_projection: map W (dim, e) of an output table (vocab, e); that of `inputs` if no output
    table is given.
    output_bias:  True: adds a learned bias to the logit of each token, initially 0.
    positions:    what `add` of this encoding adds to the decoder inputs, such as GridPositions;
                  None: the core alone encodes positions.
    """

    part = "decoder"

    def __init__(
        self,
        inputs: TokenReader,
        output_table: nn.Embedding | None = None,
        *,
        output_projection: Linear | None = None,
        output_bias: bool = False,
        positions: PositionalEncoding | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        if output_table is None and output_projection is not None:
            raise ValueError("`output_projection` must be None without an `output_table`")
        self.dim = inputs.dim
        self.inputs = inputs
        self.output_table = inputs.table if output_table is None else output_table
        self.output_projection = inputs.projection if output_table is None else output_projection
        check_projection("output_projection", self.output_projection)
        self.output_bias = None
        if output_bias:
            self.output_bias = nn.Parameter(torch.zeros(self.output_table.num_embeddings))
        self.positions = positions
        self.label_smoothing = label_smoothing

    def embed(
        self, tokens: Int[Tensor, "rows time"], start: int = 0
    ) -> Float[Tensor, "rows time dim"]:
        items = self.inputs.embed(tokens)
        return items if self.positions is None else self.positions(items, start)

    def embed_target(self, target: Padded | None) -> Float[Tensor, "batch steps dim"]:
        """Return the decoder inputs of the target without its last token. Raises: TypeError."""
        if target is None:
            raise TypeError(
                "`target` must be token ids (Padded), got None; to decode without a target, use "
                "`start` and `step`"
            )
        check_padded("target", target)
        return self.embed(target.items[:, :-1])

    def read(
        self, core: Core, encoded: CoreState, *, source: Any = None, queries: Tensor | None = None
    ) -> Float[Tensor, "batch steps dim"]:
        return core(queries, encoded)

    def shapes(self, encoded: Shape) -> tuple[Shape, Shape]:
        vocab = self.output_table.num_embeddings
        return ("batch", "target", self.dim or "model"), ("batch", "target", vocab)

    def predictor_modules(self) -> list[nn.Module]:
        return [self.inputs] if self.positions is None else [self.inputs, self.positions]

    def answer(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocab"]:
        table = self._table(hidden)
        return linear(self._to_table(hidden, table), table, self.output_bias)

    def form(self) -> WriterForm:
        """Return the form of this module in decoding. Raises: NoFormError if it has positions."""
        if self.positions is not None:
            raise NoFormError(
                self.positions, "adds positions to the decoder inputs, which only torch runs"
            )
        table = table_form(self.output_table, self.output_projection, 1.0)
        return WriterForm(form_of(self.inputs, TableForm), table, self.output_bias)

    def count(self, target: Padded) -> int:
        return int((cpu_copy(target.lengths) - 1).sum())

    def loss(self, hidden: Float[Tensor, "batch steps dim"], target: Padded) -> TokenLoss:
        smoothing = self.label_smoothing if self.training else 0.0
        steps = torch.arange(1, target.items.shape[1], device="cpu")
        real = (steps < cpu_copy(target.lengths)[:, None]).flatten().nonzero().squeeze(1)
        real = copy_to(real, hidden.device)
        hidden = hidden.flatten(0, 1).index_select(0, real)  # (tokens, dim)
        next_tokens = target.items[:, 1:].flatten().index_select(0, real)
        table = self._table(hidden)
        hidden = self._to_table(hidden, table)
        return token_loss(hidden, table, self.output_bias, next_tokens, smoothing=smoothing)

    def _table(self, hidden: Tensor) -> Float[Tensor, "vocab e"]:
        """Return the entries of the output table, as they are when it is called."""
        table = self.output_table
        if runs_original_forward(nn.Embedding, table):
            return table.weight
        return table(torch.arange(table.num_embeddings, device=hidden.device))

    def _to_table(self, hidden: Tensor, table: Tensor) -> Float[Tensor, "*batch e"]:
        """Return W^T h, whose products with the entries of the output table are the logits."""
        projection = self.output_projection
        if projection is None:
            return hidden
        if runs_original_forward(Linear, projection):
            return hidden @ projection.weight
        return hidden @ projection(torch.eye(table.shape[1]).to(table)).T

    def costs(self, hidden: Float[Tensor, "batch steps dim"], target: Padded) -> Padded:
        smoothing = self.label_smoothing if self.training else 0.0
        log_p = widen(self.answer(hidden)).log_softmax(-1)
        costs = -log_p.gather(-1, target.items[:, 1:, None]).squeeze(-1)
        if smoothing:
            costs = (1 - smoothing) * costs - smoothing * log_p.mean(-1)
        return Padded(costs, target.lengths - 1)
