"""Groups of operators in a profile, and the share of the time that each group takes. (no torch)

    share of a group = sum of the self time of its operators / wall time     self time: without nested operators
    Python           = wall time - sum of all self times                     so that the shares add up to 100 %

An operator belongs to the group of its name in the tables, or else to that of an enclosing operator or scope: a product
inside attention belongs to attention, a backward operator to its forward operator. The rest is `other operators`. To
extend, add a line to one of the tables.
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
BATCHES = "batch construction"
SEARCH = "search and postprocessing"
OTHER = "other operators"
PYTHON = "Python and waiting"

SCOPE = "regard: "
"""Prefix of the name of a span that marks a part of a model or of a step, and computes nothing itself."""

_WHOLE: dict[str, tuple[str, ...]] = {
    OUTPUT: ("_ChunkedLoss", "_ChunkedLossBackward"),
    UPDATE: ("Optimizer.step#*", "Optimizer.zero_grad#*", "aten::_fused_adam*"),
    DROPOUT: ("_Drop", "_DropBackward", "_SixteenBitDropout*", "aten::dropout*", "aten::native_dropout*"),
    NORMS: ("_AddDropout", "_AddDropoutBackward", "_AddDropoutNorm", "_AddDropoutNormBackward"),
    ATTENTION: (
        *("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_*", "regard::additive*"),
        *("_DirectRead", "_DirectReadBackward", "_Read", "_ReadBackward", "_Backward"),
    ),
}
"""Operators by group, including everything nested in them."""

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
"""Operators by group wherever they run, except inside those of `_WHOLE`."""

_ELSE: dict[str, tuple[str, ...]] = {
    PRODUCTS: ("aten::matmul", "aten::bmm", "aten::baddbmm", "aten::einsum"),
    ACTIVATIONS: (
        *("aten::relu*", "aten::clamp_min*", "aten::threshold_backward", "aten::gelu*", "aten::silu*"),
        *("aten::sigmoid*", "aten::tanh*"),
    ),
    OUTPUT: ("aten::log_softmax", "aten::_log_softmax*", "aten::nll_loss*", "aten::cross_entropy*"),
    ATTENTION: ("aten::softmax", "aten::_softmax*"),
}
"""Operators by group if nothing that encloses them has a group."""

MODULES: dict[str, str] = {
    **dict.fromkeys(("Read", "AttentionPooling", "NaiveBayesScores"), ATTENTION),
    **dict.fromkeys(("RNNCell", "GRUCell", "LSTMCell"), RECURRENT),
    **dict.fromkeys(("LayerNorm", "GroupNorm", "RMSNorm"), NORMS),
    "Dropout": DROPOUT,
}
"""Groups of modules, by class name."""

METHODS: dict[str, str] = {
    **dict.fromkeys(
        ("writes.loss", "writes.logits", "writes.forward", "writes.predictions_per_block", "_scores"), OUTPUT
    ),
    **dict.fromkeys(("loss", "forward", "start", "begin", "step", "encode", "decode"), OTHER),
}
"""Groups of the methods of a model."""

_WHOLE_SCOPES = (OUTPUT, UPDATE, DROPOUT, BATCHES)
_WEAK_SCOPES = (OTHER, SEARCH)
_LONGEST = 10_000
_SHOWN = 3


@dataclass(eq=False)
class Span:
    """Time interval in a profile."""

    name: str
    own: float
    """Self time, without nested spans."""
    parent: "Span | None" = None
    """Enclosing span; for a backward operator, its forward operator."""
    within: "Span | None" = None
    """Enclosing span in time."""


@dataclass(frozen=True, kw_only=True)
class GroupShare:
    """Time of a group."""

    group: str
    seconds: float
    percent: float
    operators: tuple[str, ...] = ()
    """The operators with the most time, largest first."""


def shares(spans: Iterable[Span], wall: float) -> list[GroupShare]:
    """Return the share of each group in the wall time, largest first and Python last; they add up to 100 %."""
    times: dict[str, dict[str, float]] = {}
    for span in spans:
        group = group_of(span)
        if span.own > 0 and group != PYTHON:
            names = times.setdefault(group, {})
            names[span.name] = names.get(span.name, 0.0) + span.own
    sums = {group: sum(names.values()) for group, names in times.items()}
    # Clocks differ by microseconds, so the rest may come out negative.
    rest = max(0.0, wall - sum(sums.values()))
    whole = rest + sum(sums.values()) or 1.0
    groups = [
        GroupShare(group=group, seconds=spent, percent=100 * spent / whole, operators=_largest(times[group]))
        for group, spent in sorted(sums.items(), key=lambda item: -item[1])
    ]
    return [*groups, GroupShare(group=PYTHON, seconds=rest, percent=100 * rest / whole)]


def subtract_overhead(spans: Sequence[Span], overhead: float) -> list[Span]:
    """Subtract the profiler's overhead: `overhead` seconds for each directly nested span."""
    inside = Counter(id(span.within) for span in spans)
    return [replace(span, own=max(0.0, span.own - overhead * inside[id(span)])) for span in spans]


def group_of(span: Span) -> str:
    """Return the group that the self time of a span belongs to."""
    if span.name.startswith((SCOPE, "Optimizer.", "autograd::engine", "ProfilerStep")):
        # Time between operators. Batches are built without operators, so the time of that scope counts.
        return BATCHES if span.name == SCOPE + BATCHES else PYTHON
    chain = list(_upwards(span))
    for above in reversed(chain):
        if group := _lookup("whole", above.name):
            return group
    for table in ("own", "else"):
        for above in chain:
            if group := _lookup(table, above.name):
                return group
    return OTHER


def _largest(names: dict[str, float]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: -names[name])[:_SHOWN])


def _upwards(span: Span) -> Iterator[Span]:
    above: Span | None = span
    for _ in range(_LONGEST):  # longer than any real chain; guards against cycles
        if above is None:
            return
        yield above
        above = above.parent


@lru_cache(maxsize=10_000)
def _lookup(table: str, name: str) -> str | None:
    """Return the group of a name in a table, or None."""
    if name.startswith(SCOPE):
        group = name.removeprefix(SCOPE)
        kind = "whole" if group in _WHOLE_SCOPES else "else" if group in _WEAK_SCOPES else "own"
        return group if kind == table else None
    patterns = {"whole": _WHOLE, "own": _OWN, "else": _ELSE}[table]
    return next(
        (group for group, names in patterns.items() if any(fnmatchcase(name, pattern) for pattern in names)), None
    )
