"""Writes a sequence of tokens: its queries are the targets so far, its loss cross-entropy a token.

    inputs   BOS y_1 ... y_{n-1} y_n          as items: what each position may know
    outputs  y_1 y_2 ... y_n     EOS          what each position should say
    p(y_t | y_<t, x) = softmax(E h_t + b)     E may be the input's table (tied)

Training feeds the true previous outputs, shifted by one, all positions at once; decoding feeds back its own.

Source: lectures, D (predicting at time t); tied tables: press2017.
"""

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.kernels.maps import linear
from regard.attention.masks import Padded, padding
from regard.layers.cross_entropy import TokenLoss, token_loss
from regard.layers.forms import NoFormError, TableForm, WriterForm, form_of
from regard.models.reads.tokens import TokenReader


class TokenWriter(nn.Module):
    """Targets to items, hidden vectors to scores of the vocabulary and their loss.

    output_table (vocab, dim) may be the reader's own table (tied) or another.
    """

    def __init__(self, inputs: TokenReader, output_table: nn.Embedding, *, label_smoothing: float = 0.0):
        super().__init__()
        self.inputs = inputs
        self.output_table = output_table
        self.label_smoothing = label_smoothing

    def shifted(self, target: Padded) -> Float[Tensor, "batch steps dim"]:
        """Items of the known previous outputs: the target without its last token."""
        return self.inputs.embed(target.items[:, :-1])

    def embed(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows dim"]:
        """Items of one token a row."""
        return self.inputs.embed(tokens)

    def logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocab"]:
        """Scores of every token of the vocabulary."""
        return linear(hidden, self.output_table.weight)

    def form(self) -> WriterForm:
        """What it is in decoding, as data."""
        if type(self.output_table) is not nn.Embedding:
            raise NoFormError(self.output_table, f"is a {type(self.output_table).__name__} where a table is wanted")
        return WriterForm(form_of(self.inputs, TableForm), self.output_table.weight)

    def count(self, target: Padded) -> int:
        """Tokens to predict: all but each row's first."""
        return int((target.lengths - 1).sum())

    def loss(self, hidden: Float[Tensor, "batch steps dim"], target: Padded) -> TokenLoss:
        """Sums over the real tokens; label smoothing in training only."""
        smoothing = self.label_smoothing if self.training else 0.0
        steps = padding(target.lengths).tensor(1, target.items.shape[1], device=hidden.device).squeeze(1)[:, 1:]
        real = steps.flatten().nonzero().squeeze(1)
        hidden = hidden.flatten(0, 1).index_select(0, real)  # (tokens, dim)
        wanted = target.items[:, 1:].flatten().index_select(0, real)
        return token_loss(hidden, self.output_table.weight, None, wanted, smoothing=smoothing)
