"""Token head (autoregressive): embedding of the previous target tokens, and cross-entropy of the next one.

    inputs   BOS y_1 ... y_{n-1} y_n          decoder inputs
    outputs  y_1 y_2 ... y_n     EOS          targets of each position
    p(y_t | y_<t, x) = softmax(E h_t + b)     E may be the input embedding (tied)

Training uses teacher forcing: the target shifted by one, all positions at once. Decoding feeds back its own outputs.

Source: lectures, D (predicting at time t); tied embeddings: press2017.
"""

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded, padding
from regard.layers.forms import NoFormError, TableForm, WriterForm, form_of
from regard.models.readers.tokens import TokenReader
from regard.ops.linear import linear
from regard.ops.token_loss import TokenLoss, token_loss


class TokenWriter(nn.Module):
    """Decoder input embedding, and output layer with its loss.

    output_table: (vocab, dim), may be the table of `inputs` (tied).
    """

    def __init__(self, inputs: TokenReader, output_table: nn.Embedding, *, label_smoothing: float = 0.0):
        super().__init__()
        self.inputs = inputs
        self.output_table = output_table
        self.label_smoothing = label_smoothing

    def embed_shifted(self, target: Padded) -> Float[Tensor, "batch steps dim"]:
        """Embed the decoder inputs: the target without its last token."""
        return self.inputs.embed(target.items[:, :-1])

    def embed(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows dim"]:
        """Embed one token per row."""
        return self.inputs.embed(tokens)

    def logits(self, hidden: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocab"]:
        """Return the logits over the vocabulary."""
        return linear(hidden, self.output_table.weight)

    def form(self) -> WriterForm:
        """Return the form of this module in decoding (regard.layers.forms)."""
        if type(self.output_table) is not nn.Embedding:
            raise NoFormError(
                self.output_table, f"is a {type(self.output_table).__name__} where an Embedding is expected"
            )
        return WriterForm(form_of(self.inputs, TableForm), self.output_table.weight)

    def count(self, target: Padded) -> int:
        """Return the number of tokens to predict: all but the first of each row."""
        return int((target.lengths - 1).sum())

    def loss(self, hidden: Float[Tensor, "batch steps dim"], target: Padded) -> TokenLoss:
        """Return the loss summed over the tokens, without padding; label smoothing in training only."""
        smoothing = self.label_smoothing if self.training else 0.0
        steps = padding(target.lengths).tensor(1, target.items.shape[1], device=hidden.device).squeeze(1)[:, 1:]
        real = steps.flatten().nonzero().squeeze(1)
        hidden = hidden.flatten(0, 1).index_select(0, real)  # (tokens, dim)
        next_tokens = target.items[:, 1:].flatten().index_select(0, real)
        return token_loss(hidden, self.output_table.weight, None, next_tokens, smoothing=smoothing)
