"""The read as a part of a model: a score, a choice, a bias and a kernel, under a name of their own.

Every read of every model goes through a `Read`, so that whoever wants to look (regard.look.listen) finds them
all, per layer, without the model knowing.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.attend import attend, pose
from regard.attention.biases import Bias, Given
from regard.attention.choices import Choice, Soft
from regard.attention.kernels.problem import Problem
from regard.attention.masks import Mask
from regard.attention.memory import Store
from regard.attention.positional import ByDistance
from regard.attention.scores import ScaledDot, Score
from regard.layers.forms import NoFormError, ReadForm


class Read(nn.Module):
    """out = attend(query, memory) with this score, choice, bias and kernel.

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
        self, query: Float[Tensor, "..."], memory: Store, *, mask: Mask | None = None, bias: Bias | Tensor | None = None
    ) -> Float[Tensor, "..."]:
        """What the queries read; a bias given here is added to the module's own."""
        return attend(
            query,
            memory,
            score=self.score,
            choose=self.choose,
            mask=mask,
            bias=self._with_own(bias),
            kernel=self.kernel,
        )

    def pose(
        self, query: Float[Tensor, "..."], memory: Store, *, mask: Mask | None = None, bias: Bias | Tensor | None = None
    ) -> Problem:
        """The read that `forward` computes for the same arguments, not computed: for those who look at weights."""
        return pose(query, memory, score=self.score, choose=self.choose, mask=mask, bias=self._with_own(bias))

    def form(self, size: int) -> ReadForm:
        """What it is, as data, for queries and keys of this size.

        Raises: NoFormError for a bias that is not by distance alone.
        """
        score, choose, bias = self.score, self.choose, self.bias
        if bias is not None and not isinstance(bias, ByDistance):
            raise NoFormError(bias, f"is a {type(bias).__name__}, whose numbers are not by distance alone")
        is_bare = type(score).map_query is Score.map_query and type(score).map_keys is Score.map_keys
        return ReadForm(
            score=score.form(size) if is_bare else None,
            beta=choose.beta if isinstance(choose, Soft) else None,
            bias=bias,
        )

    def extra_repr(self) -> str:
        """Kernel (the parts are submodules)."""
        return f"kernel={self.kernel!r}"

    def _with_own(self, bias: Bias | Tensor | None) -> Bias | Tensor | None:
        if bias is None or self.bias is None:
            return self.bias if bias is None else bias
        return self.bias + (bias if isinstance(bias, Bias) else Given(bias))
