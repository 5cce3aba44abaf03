"""What a user calls the operators that a profile names, and how its times are added up. (no torch)

    share of a group = sum of its operators' own time / wall time          own: without the operators inside
    Python           = wall time - the sum of all of them                   so that the shares are 100 % together

An operator belongs to the group that its name has in the table, else to that of what it is part of: a product inside
attention to attention, what is differentiated to what was computed forward. What has no group is `other operators`.
To extend: a line in one of the tables.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

PRODUCTS = "matrix products"
ATTENTION = "attention"
RECURRENT = "recurrent cells"
NORMS = "normalization"
DROPOUT = "dropout"
ACTIVATIONS = "activations"
OUTPUT = "output layer and loss"
UPDATE = "optimizer"
EMBEDDING = "embedding"
COPIES = "copies and memory"
BATCHES = "making batches"
CHOOSING = "choosing outputs"
OTHER = "other operators"
PYTHON = "Python and waiting"

SCOPE = "regard: "
"""Begins the name of a span that marks a part of a model or of a step, and computes nothing itself."""

_WHOLE: dict[str, tuple[str, ...]] = {
    OUTPUT: ("_ChunkedLoss", "_ChunkedLossBackward"),
    UPDATE: ("Optimizer.step#*", "Optimizer.zero_grad#*", "aten::_fused_adam*"),
    DROPOUT: ("_Drop", "_DropBackward", "_FewBits*", "aten::dropout*", "aten::native_dropout*"),
    NORMS: ("_Add", "_AddBackward", "_AddNorm", "_AddNormBackward"),
    ATTENTION: (
        *("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_*", "regard::additive*"),
        *("_Direct", "_DirectBackward", "_Read", "_ReadBackward", "_Backward"),
    ),
}
"""All that happens inside of these is theirs."""

_OWN: dict[str, tuple[str, ...]] = {
    PRODUCTS: (
        *("aten::linear", "aten::mm", "aten::addmm", "aten::mv", "aten::addmv", "aten::*conv*"),
        *("mkldnn::*", "aten::mkldnn_*", "aten::_mkldnn_*", "onednn::*", "regard::linear*"),
    ),
    NORMS: ("aten::*layer_norm*", "aten::*group_norm*", "aten::*batch_norm*", "aten::*rms_norm*"),
    DROPOUT: ("aten::bernoulli*",),
    UPDATE: ("torch::autograd::AccumulateGrad", "aten::_foreach_norm"),
    EMBEDDING: ("aten::embedding*",),
    ATTENTION: ("aten::_safe_softmax",),
    COPIES: (
        *("aten::copy_", "aten::to", "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::cat", "aten::stack"),
        *("aten::empty*", "aten::zeros*", "aten::ones*", "aten::full*", "aten::new_*", "aten::fill_", "aten::zero_"),
        *("aten::index", "aten::index_select", "aten::select*", "aten::slice*", "aten::narrow*", "aten::split*"),
        *("aten::view*", "aten::reshape*", "aten::_unsafe_view", "aten::_reshape_alias", "aten::transpose", "aten::t"),
        *("aten::unflatten", "aten::flatten", "aten::expand*", "aten::permute", "aten::unsqueeze", "aten::squeeze"),
        *(
            "aten::as_strided",
            "aten::detach*",
            "detach*",
            "aten::resize*",
            "aten::repeat*",
            "aten::unbind",
            "aten::pad",
        ),
        *("aten::item", "aten::_local_scalar_dense", "aten::lift_fresh", "aten::chunk", "aten::constant_pad_nd"),
    ),
}
"""These are theirs wherever they happen, but inside what is a whole."""

_ELSE: dict[str, tuple[str, ...]] = {
    PRODUCTS: ("aten::matmul", "aten::bmm", "aten::baddbmm", "aten::einsum"),
    ACTIVATIONS: (
        *("aten::relu*", "aten::clamp_min*", "aten::threshold_backward", "aten::gelu*", "aten::silu*"),
        *("aten::sigmoid*", "aten::tanh*"),
    ),
    OUTPUT: ("aten::log_softmax", "aten::_log_softmax*", "aten::nll_loss*", "aten::cross_entropy*"),
    ATTENTION: ("aten::softmax", "aten::_softmax*"),
}
"""These are theirs where they are part of nothing that has a group."""

MODULES: dict[str, str] = {
    **dict.fromkeys(("Read", "Pool", "Sum"), ATTENTION),
    **dict.fromkeys(("RNNCell", "GRUCell", "LSTMCell"), RECURRENT),
    **dict.fromkeys(("LayerNorm", "GroupNorm", "RMSNorm"), NORMS),
    "Dropout": DROPOUT,
}
"""Groups of modules, by the name of their class."""

METHODS: dict[str, str] = {
    **dict.fromkeys(("writes.loss", "writes.logits", "writes.forward", "writes.answers", "_scores"), OUTPUT),
    **dict.fromkeys(("loss", "forward", "start", "begin", "step", "encode", "decode"), OTHER),
}
"""Groups of a model's methods."""

_WHOLE_SCOPES = (OUTPUT, UPDATE, DROPOUT, BATCHES)
_WEAK_SCOPES = (OTHER, CHOOSING)
_LONGEST = 10_000
_SHOWN = 3


@dataclass(eq=False)
class Span:
    """A stretch of time that a profile names."""

    name: str
    own: float
    """Time in it and in none of the spans inside."""
    parent: "Span | None" = None
    """What it is part of; of what is differentiated: what was computed forward."""
    within: "Span | None" = None
    """What ran while it ran."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a group took."""

    group: str
    seconds: float
    percent: float
    operators: tuple[str, ...] = ()
    """The names that took most of it, the largest first."""


def shares(spans: Iterable[Span], wall: float) -> list[Share]:
    """What each group took of the wall time, the largest first and Python last; 100 % together."""
    took: dict[str, dict[str, float]] = {}
    for span in spans:
        group = group_of(span)
        if span.own > 0 and group != PYTHON:
            names = took.setdefault(group, {})
            names[span.name] = names.get(span.name, 0.0) + span.own
    sums = {group: sum(names.values()) for group, names in took.items()}
    # Clocks differ by some microseconds: never less than nothing is left.
    rest = max(0.0, wall - sum(sums.values()))
    whole = rest + sum(sums.values()) or 1.0
    found = [
        Share(group=group, seconds=spent, percent=100 * spent / whole, operators=_largest(took[group]))
        for group, spent in sorted(sums.items(), key=lambda item: -item[1])
    ]
    return [*found, Share(group=PYTHON, seconds=rest, percent=100 * rest / whole)]


def without_watching(spans: Sequence[Span], price: float) -> list[Span]:
    """The spans less what the profiler added: so many seconds for each span directly inside."""
    inside = Counter(id(span.within) for span in spans)
    return [replace(span, own=max(0.0, span.own - price * inside[id(span)])) for span in spans]


def _largest(names: dict[str, float]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: -names[name])[:_SHOWN])


def group_of(span: Span) -> str:
    """The one group that a span's own time belongs to."""
    if span.name.startswith((SCOPE, "Optimizer.", "autograd::engine", "ProfilerStep")):
        # The time between operators; numbers are put together by no operator at all.
        return BATCHES if span.name == SCOPE + BATCHES else PYTHON
    chain = list(_upwards(span))
    for above in reversed(chain):
        if found := _in_table("whole", above.name):
            return found
    for table in ("own", "else"):
        for above in chain:
            if found := _in_table(table, above.name):
                return found
    return OTHER


def _upwards(span: Span) -> Iterator[Span]:
    above: Span | None = span
    for _ in range(_LONGEST):  # no chain is so long: one that ends nowhere must not hang
        if above is None:
            return
        yield above
        above = above.parent


@lru_cache(maxsize=10_000)
def _in_table(table: str, name: str) -> str | None:
    """The group of a name, or none."""
    if name.startswith(SCOPE):
        group = name.removeprefix(SCOPE)
        kind = "whole" if group in _WHOLE_SCOPES else "else" if group in _WEAK_SCOPES else "own"
        return group if kind == table else None
    patterns = {"whole": _WHOLE, "own": _OWN, "else": _ELSE}[table]
    return next((group for group, names in patterns.items() if any(fnmatchcase(name, one) for one in names)), None)
