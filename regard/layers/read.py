"""The read as a module: a score, a choice, a mask, a bias and a kernel.

Every read of every model is a `Read`, so that observers (regard.look.hooks) find all of them, per
layer, without changes to the model. The module that creates a read sets its role: its kind, layer,
queries and keys.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.axes import check_part
from regard.attention.biases import Bias, DistanceBias, TensorBias
from regard.attention.choices import Choice, Sigmoid, SinkSoft, Soft
from regard.attention.inputs import AttentionInputs, prepare_inputs
from regard.attention.masks import Mask, intersect
from regard.attention.memory import KeyValueCache, LinearState
from regard.attention.scores import ScaledDot, Score
from regard.layers.forms import NoFormError, ReadForm

Kind = Literal["encoder self", "decoder self", "cross", "recurrent", "chain", "pooling", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
REVERSED_SOURCE, INPUT_AFTER_STATE = "reversed source", "initial state and decoder input"
"""Names of derived axes: of "source", and of "decoder input" after the state of an encoder."""


@dataclass(frozen=True)
class Role:
    """Role of a read in its model: its kind and layer, and the names of its axes.

    kind            queries x keys
    encoder self    source x source; or inducing points x source, source x inducing points
    decoder self    output x decoder input; queries x queries in sets
    cross           output x source; queries x source in sets
    recurrent       output x source; queries x source in sets: the one read of a recurrent decoder
    chain           a layer of cells that read their own past, in the order of its items
    pooling         queries x source
    """

    kind: Kind
    layer: int = 1
    """From 1."""
    queries: str = "queries"
    """Name of the axis of its queries (regard.look.sample)."""
    keys: str = "source"
    direction: str = ""
    """Direction of a chain in an encoder, "forward" or "backward"; else empty."""


class Read(nn.Module):
    """Attention with a score, a choice, a mask, a bias and a kernel: out = attend(query, memory).

    mask, bias: in addition to those of each call; a tensor becomes a `TensorBias`.
    role: of the read in its model, for attention maps; None: unknown.
    Shapes: query (batch, [head,] query, query_dim), memory of keys (batch, [head,] key, key_dim)
            and values.
    """

    def __init__(
        self,
        score: Score | None = None,
        *,
        choice: Choice | None = None,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
        kernel: str = "auto",
        role: Role | None = None,
    ):
        super().__init__()
        self.role = role
        self.score = ScaledDot() if score is None else score
        self.choice = Soft() if choice is None else choice
        check_part("score", self.score, Score)
        check_part("choice", self.choice, Choice)
        self.mask = mask
        self.bias = bias if bias is None or isinstance(bias, Bias) else TensorBias(bias)
        self.kernel = kernel

    def forward(
        self,
        query: Float[Tensor, "..."],
        memory: KeyValueCache | LinearState,
        *,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
        registers: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the output of every query; registers: as of `regard.attend`."""
        if self.mask is not None or self.bias is not None:
            mask, bias = self._total(mask, bias)
        return attend(
            query,
            memory,
            score=self.score,
            choice=self.choice,
            mask=mask,
            bias=bias,
            registers=registers,
            kernel=self.kernel,
        )

    def prepare_inputs(
        self,
        query: Float[Tensor, "..."],
        memory: KeyValueCache,
        *,
        mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
        registers: tuple[Tensor, Tensor] | None = None,
    ) -> AttentionInputs:
        """Return the inputs of the read that `forward` computes for the same arguments."""
        mask, bias = self._total(mask, bias)
        inputs = prepare_inputs(
            query, memory, score=self.score, choice=self.choice, mask=mask, bias=bias
        )
        return inputs if registers is None else inputs.with_registers(*registers)

    def form(self, size: int) -> ReadForm:
        """Return the form of this module for queries and keys of this size.

        Raises: NoFormError if the module has a mask, or a bias not of the distance alone.
        """
        score, choice, bias = self.score, self.choice, self.bias
        if self.mask is not None:
            raise NoFormError(self, f"has a mask of its own, a {type(self.mask).__name__}")
        if bias is not None and not isinstance(bias, DistanceBias):
            raise NoFormError(
                bias, f"is a {type(bias).__name__}, which does not depend on distance alone"
            )
        kind = type(score)
        is_bare = kind.map_query is Score.map_query and kind.map_keys is Score.map_keys
        beta, log_beta, sink = None, None, None
        soft = choice.soft if isinstance(choice, SinkSoft | Sigmoid) else choice
        if isinstance(soft, Soft):
            log_beta = soft.log_beta
            beta = soft.beta if log_beta is None else 1.0
        if isinstance(choice, SinkSoft):
            sink = choice.form().sink
        is_sigmoid = isinstance(choice, Sigmoid)
        score_form = score.form(size) if is_bare else None
        return ReadForm(score_form, beta, bias, log_beta, sink, is_sigmoid=is_sigmoid)

    def extra_repr(self) -> str:
        mask = "" if self.mask is None else f"mask={self.mask!r}, "
        return f"{mask}kernel={self.kernel!r}"

    def _total(
        self, mask: Mask | None, bias: Bias | Tensor | None
    ) -> tuple[Mask | None, Bias | Tensor | None]:
        if self.mask is not None:
            mask = intersect(self.mask, mask)
        if self.bias is not None:
            bias = self.bias if bias is None else self.bias + bias
        return mask, bias
