"""The read as a module: a score, a choice, a bias and a kernel.

Every read of every model is a `Read`, so that observers (regard.look.hooks) find all of them, per layer, without
changes to the model.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.biases import Bias, DistanceBias, TensorBias
from regard.attention.choices import Choice, Soft
from regard.attention.inputs import AttentionInputs, prepare_inputs
from regard.attention.masks import Mask
from regard.attention.memory import KeyValueCache
from regard.attention.scores import ScaledDot, Score
from regard.layers.forms import NoFormError, ReadForm


class Read(nn.Module):
    """Attention with a score, a choice, a bias and a kernel: out = attend(query, memory).

    Shapes: query (batch, [head,] query, query_dim), memory of keys (batch, [head,] key, key_dim) and values.
    """

    def __init__(
        self,
        score: Score | None = None,
        *,
        choose: Choice | None = None,
        bias: Bias | None = None,
        kernel: str = "auto",
    ):
        super().__init__()
        self.score = ScaledDot() if score is None else score
        self.choose = Soft() if choose is None else choose
        self.bias = bias
        self.kernel = kernel

    def forward(
        self,
        query: Float[Tensor, "..."],
        memory: KeyValueCache,
        *,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the output of the attention for each query; `bias` is added to the bias of the module."""
        return attend(
            query,
            memory,
            score=self.score,
            choose=self.choose,
            mask=mask,
            bias=self._total_bias(bias),
            kernel=self.kernel,
        )

    def prepare_inputs(
        self,
        query: Float[Tensor, "..."],
        memory: KeyValueCache,
        *,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
    ) -> AttentionInputs:
        """Return the inputs of the read that `forward` computes for the same arguments, without computing it."""
        return prepare_inputs(
            query, memory, score=self.score, choose=self.choose, mask=mask, bias=self._total_bias(bias)
        )

    def form(self, size: int) -> ReadForm:
        """Return the form of this module (regard.layers.forms) for queries and keys of this size.

        Raises: NoFormError if the bias does not depend on distance alone.
        """
        score, choose, bias = self.score, self.choose, self.bias
        if bias is not None and not isinstance(bias, DistanceBias):
            raise NoFormError(bias, f"is a {type(bias).__name__}, which does not depend on distance alone")
        is_bare = type(score).map_query is Score.map_query and type(score).map_keys is Score.map_keys
        return ReadForm(
            score=score.form(size) if is_bare else None,
            beta=choose.beta if isinstance(choose, Soft) else None,
            bias=bias,
        )

    def extra_repr(self) -> str:
        """Name of the kernel; the other parts are submodules."""
        return f"kernel={self.kernel!r}"

    def _total_bias(self, bias: Bias | Tensor | None) -> Bias | Tensor | None:
        if bias is None or self.bias is None:
            return self.bias if bias is None else bias
        return self.bias + (bias if isinstance(bias, Bias) else TensorBias(bias))
