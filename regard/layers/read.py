"""The read as a part of a model: a score, a choice and a kernel, under a name of their own.

Every read of every model goes through a `Read`, so that whoever wants to look (regard.look.record) finds them
all, per layer, without the model knowing.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.choices import Choice, Soft
from regard.attention.masks import Mask
from regard.attention.memory import Memory
from regard.attention.scores import ScaledDot, Score

__all__ = ["Read"]


class Read(nn.Module):
    """out = attend(query, memory) with this score, choice and kernel.

    Shapes: query (batch, [head,] query, query_dim), memory of keys (batch, [head,] key, key_dim) and values.
    """

    def __init__(self, score: Score | None = None, *, choose: Choice | None = None, kernel: str = "auto"):
        super().__init__()
        self.score = ScaledDot() if score is None else score
        self.choose = Soft() if choose is None else choose
        self.kernel = kernel

    def forward(
        self, query: Float[Tensor, "..."], memory: Memory, *, mask: Mask | None = None, bias: Tensor | None = None
    ) -> Float[Tensor, "..."]:
        """What the queries read."""
        return attend(query, memory, score=self.score, choose=self.choose, mask=mask, bias=bias, kernel=self.kernel)

    def extra_repr(self) -> str:
        """Choice and kernel (the score is a submodule)."""
        return f"choose={self.choose!r}, kernel={self.kernel!r}"
