"""Random reads: numbers for the oracle, and the same read for the package."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.biases import Alibi, Bias, RelativeBias, ShawBias
from regard.attention.choices import Choice, Hard, Proportional, Soft, Sparse, TopK
from regard.attention.masks import Mask, causal, dense, documents, padding, prefix, window
from regard.attention.memory import KeyValueCache, Memory, StaticMemory
from regard.attention.scores import (
    Additive,
    BareAdditive,
    Concat,
    Cosine,
    Dot,
    FeatureMap,
    General,
    Location,
    ScaledDot,
    Score,
    SoftCap,
)
from tests.campaigns.reads_layouts import lay_out
from tests.campaigns.reads_misfits import numbers_that_do_not_fit, sizes_that_do_not_fit, used_items
from tests.campaigns.reads_oracle import Case, leading_axes

__all__ = ["Read", "make"]

Array = np.ndarray
Rng = np.random.Generator
DTYPES = {torch.float64: 0.25, torch.float32: 0.4, torch.bfloat16: 0.2, torch.float16: 0.15}
KERNELS = {"auto": 9, "reference": 2, "products": 1, "sdpa": 1, "additive": 1, "gather": 1, "linear": 1}
SCORES = ("dot", "scaled", "general", "additive", "concat", "bare", "cosine", "location", "capped", "features")
HUGE = {torch.float64: 1e100, torch.float32: 1e15, torch.bfloat16: 1e15, torch.float16: 150.0}
"""Numbers whose products are within range."""


@dataclass
class Read:
    """One read, for the package and for the oracle."""

    case: Case
    dtype: torch.dtype
    kernel: str
    query: Tensor
    keys: Tensor
    values: Tensor
    memory: str
    score: Score
    choose: Choice
    mask: Mask | None
    biases: list[Bias]
    misfits: list[str] = field(default_factory=list)
    """Properties that do not fit and must be refused."""
    text: str = ""

    def make_memory(self) -> KeyValueCache | tuple[Tensor, Tensor]:
        """Return the memory argument of `attend`."""
        if self.memory == "pair":
            return self.keys, self.values
        memory = Memory(self.keys, self.values)
        if self.memory == "mapped":
            return memory.map_keys_with(self.score)
        if self.memory == "masked":
            return Memory(self.keys, self.values, self.mask)
        if self.memory == "static":
            return StaticMemory.of(memory, capacity=memory.size + 3)
        return memory


class Maker:
    """Generator of one random read, part by part."""

    def __init__(self, seed: int, number: int):
        self.rng = np.random.default_rng([seed, number])
        self.dtype = self.of(DTYPES)
        self.misfits: list[str] = []
        self.words: list[str] = []

    def of(self, choices: dict[Any, float] | list | tuple) -> Any:
        """Return one of the choices, by weight."""
        if not isinstance(choices, dict):
            return choices[self.rng.integers(len(choices))]
        names = list(choices)
        weights = np.array(list(choices.values()))
        return names[self.rng.choice(len(names), p=weights / weights.sum())]

    def has(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def round_to_dtype(self, array: Array) -> Array:
        """Round numbers to the dtype."""
        with np.errstate(over="ignore"):
            return torch.tensor(np.asarray(array, float)).to(self.dtype).double().numpy()

    def sizes(self) -> None:
        few = [0] if self.has(0.02) else [1, 2, 3, 4]
        self.leading = tuple(int(self.of(few)) for _ in range(self.of({0: 0.15, 1: 0.25, 2: 0.5, 3: 0.1})))
        self.num_queries = int(self.of([0] if self.has(0.03) else [1, 1, 2, 3, 5, 9]))
        self.num_keys = int(self.of([0] if self.has(0.03) else [1, 2, 3, 5, 8, 17, 40]))
        if self.has(0.03):  # beyond the tiles of kernels
            self.num_queries, self.num_keys = int(self.of([1, 70, 130])), int(self.of([130, 150, 300]))
            self.leading = tuple(min(size, 2) for size in self.leading)
        self.dim = int(self.of([0] if self.has(0.01) else [1, 2, 3, 5, 8, 19]))
        self.value_dim = int(self.of([0] if self.has(0.02) else [1, 2, 3, 7, 16]))

    def axes(self, *, can_group: bool = False) -> tuple[int, ...]:
        """Return leading axes that fit the read: all, fewer, some of size 1, fewer heads."""
        axes = list(self.leading)
        kind = self.of({"all": 0.5, "missing": 0.2, "ones": 0.2, "grouped": 0.1})
        if kind == "missing":
            axes = axes[: self.rng.integers(len(axes) + 1)]
        elif kind == "ones":
            axes = [1 if self.has(0.5) else size for size in axes]
        elif kind == "grouped" and can_group and len(axes) > 1 and axes[-1] > 1:
            axes[-1] = int(self.of([n for n in (1, 2, 3) if axes[-1] % n == 0]))
        if axes and self.has(0.01):
            axes[self.rng.integers(len(axes))] += 3
        return tuple(axes)

    def numbers(self, *shape: int) -> Array:
        """Return random numbers of a random kind."""
        array = self.rng.standard_normal(shape)
        tiny = torch.finfo(self.dtype).tiny
        kind = self.of(
            {"normal": 25, "zero": 1, "small": 1, "huge": 1, "enormous": 1, "denormal": 1, "equal": 1, "zeros": 1}
        )
        if kind != "normal":
            self.words.append(kind)
        match kind:
            case "zero":
                array = np.where(self.rng.random((*shape[:-1], 1)) < 0.5, 0.0, array)
            case "zeros":
                array = np.zeros(shape)
            case "small":
                array = array * 1e-3
            case "huge":
                array = array * HUGE[self.dtype]
            case "enormous" if self.dtype != torch.float64:  # beyond which the oracle does not reach
                array = np.clip(array, -2, 2) * (torch.finfo(self.dtype).max / 3)
            case "denormal":
                array = array * tiny / 8
            case "equal":
                array = np.broadcast_to(array[..., :1], shape)
        return self.round_to_dtype(array)

    def parameter(self, *shape: int) -> Array:
        return self.round_to_dtype(self.rng.standard_normal(shape) / np.sqrt(shape[-1]))

    def score(self) -> tuple[dict, Score, int]:
        """Return a score for the oracle, for the package, and the size of keys."""
        kind = self.of(SCORES)
        heads = int(self.leading[-1]) if self.leading and self.leading[-1] > 0 and self.has(0.4) else None
        self.heads: int | None = None
        self.kind = kind
        dim, key_dim, hidden = max(1, self.dim), int(self.of([1, 2, 4, 7])), int(self.of([1, 2, 3, 8]))
        with_heads = () if heads is None else (heads,)
        match kind:
            case "dot" | "scaled" | "cosine" | "features":
                made = {"dot": Dot, "scaled": ScaledDot, "cosine": Cosine, "features": FeatureMap}[kind]()
                return {"kind": kind}, made, self.dim
            case "capped":
                inner, score, key_dim = self.score()
                if inner["kind"] == "capped":
                    return inner, score, key_dim
                cap = float(self.of([0.5, 2.0, 30.0]))
                return {"kind": "capped", "inner": inner, "cap": cap}, SoftCap(score, cap), key_dim
        self.heads = heads
        if kind == "location":
            score = Location(dim, self.num_keys + 2, num_heads=heads)
            weight = self._set(score.weight, self.parameter(*with_heads, self.num_keys + 2, dim))
            return {"kind": kind, "weight_q": weight}, score, key_dim
        if kind == "bare":
            score = BareAdditive(dim, num_heads=heads)
            return {"kind": kind, "v": self._set(score.v, self.parameter(*with_heads, dim))}, score, self.dim
        own: dict[str, Any] = {
            "kind": kind,
            "weight_q": self.parameter(*with_heads, hidden, dim),
            "weight_k": self.parameter(*with_heads, hidden, key_dim),
        }
        if kind == "general":
            score = General(dim, key_dim, hidden, num_heads=heads)
        else:
            score = (Additive if kind == "additive" else Concat)(dim, key_dim, hidden, num_heads=heads)
            own["v"] = self._set(score.v, self.parameter(*with_heads, hidden))
        if isinstance(score, Concat):
            self._set(score.weight, np.concatenate((own["weight_q"], own["weight_k"]), -1))
        else:
            self._set(score.query_weight, own["weight_q"])
            self._set(score.key_weight, own["weight_k"])
        return own, score, key_dim

    def _set(self, parameter: Tensor, array: Array) -> Array:
        with torch.no_grad():
            parameter.data = torch.tensor(array).to(self.dtype)
        return array

    def choice(self, score: str) -> tuple[dict, Choice]:
        if score == "features" and self.has(0.6):
            return {"kind": "shares"}, Proportional()
        kind = self.of({"soft": 0.7, "hard": 0.1, "sparse": 0.1, "top": 0.1})
        if kind == "hard":
            return {"kind": kind, "beta": 1.0}, Hard()
        beta, given, learn = self.beta()
        how: dict[str, Any] = {"beta": given, "learn": learn}
        own = {"kind": kind, "beta": beta, "learn": learn}
        if kind == "sparse":
            own["alpha"] = float(self.of([1.25, 1.5, 1.5, 2.0, 2.0, 3.0]))
            made: Choice = Sparse(own["alpha"], **how)
        elif kind == "top":
            own["k"] = int(self.of([1, 2, 5]))
            made = TopK(own["k"], **how)
        else:
            made = Soft(**how)
        if learn:
            made = made.to(self.dtype)
            soft = made if isinstance(made, Soft) else made.soft
            own["beta"] = np.exp(soft.log_beta.detach().double().numpy())
        return own, made

    def beta(self) -> tuple[Any, Any, bool]:
        kind = self.of({"one": 0.5, "number": 0.2, "heads": 0.1, "queries": 0.1, "scalar": 0.1})
        if kind in ("one", "number"):
            number = 1.0 if kind == "one" else float(self.of([0.25, 1.7, 10.0]))
            return number, number, self.has(0.15)
        shape = {"heads": (*self.leading[-1:], 1, 1), "queries": (self.num_queries, 1), "scalar": ()}[kind]
        if self.has(0.02):
            self.misfits.append("beta")
            shape = (self.num_queries + 2, 1) if self.num_queries != 1 else (*self.leading, 1, 1, 1)
        array = self.round_to_dtype(self.rng.uniform(0.3, 2.5, shape))
        return array, torch.tensor(array).to(self.dtype), self.has(0.3)

    def kernel(self, score: dict, choice: dict) -> str:
        """Return the name of a kernel, mostly one that supports the read."""
        kind = score["kind"]
        suited = {
            "soft": ("additive",) if kind in ("additive", "concat", "bare") else ("products", "sdpa"),
            "hard": ("gather",),
            "top": ("gather",),
            "shares": ("linear",),
        }.get(choice["kind"], ())
        unable = set(KERNELS) - {"auto", "reference", *suited}
        return self.of({name: 0.05 if name in unable else weight for name, weight in KERNELS.items()})

    def mask(self, depth: int = 0) -> tuple[tuple | None, Mask | None]:
        if depth == 0 and self.has(0.25):
            return None, None
        if depth < 2 and self.has(0.35):
            name = self.of(["and", "or", "not"])
            left, made = self.mask(depth + 1)
            if name == "not":
                return ("not", left), ~made
            right, other = self.mask(depth + 1)
            return (name, left, right), made & other if name == "and" else made | other
        return self.plain_mask()

    def plain_mask(self) -> tuple[tuple, Mask]:
        own, made = ("causal",), causal()
        match self.of(["causal", "padding", "padding", "dense", "window", "prefix", "documents"]):
            case "padding" | "prefix" as name:
                axes = tuple(1 if self.has(0.2) else n for n in self.leading[: self.rng.integers(0, 2)])
                lengths = self.rng.integers(0, self.num_keys + 3, axes)
                own, made = (name, lengths), (padding if name == "padding" else prefix)(torch.tensor(lengths))
            case "window":
                size = int(self.rng.integers(1, 5))
                ahead = int(self.rng.integers(0, size))
                own, made = ("window", size, ahead), window(size, ahead)
            case "documents" if self.leading and self.num_keys:
                ids = np.sort(self.rng.integers(0, 3, (1 if self.has(0.3) else self.leading[0], self.num_keys)))
                own, made = ("documents", ids), documents(torch.tensor(ids))
            case "dense":
                array = self.rng.random(self.table_axes("mask")) > self.of([0.2, 0.5, 0.9])
                own, made = ("dense", array), dense(torch.tensor(array))
        return own, made

    def table_axes(self, name: str) -> tuple[int, ...]:
        """Return the axes of a mask or bias given as a tensor."""
        axes = list(self.axes())
        if any(n not in (1, m) for n, m in zip(axes, self.leading, strict=False)):
            self.misfits.append(name)
        if self.has(0.01):
            self.misfits.append(name)
            axes = [1, *self.leading, 1][: len(self.leading) + 1]
        ends = [1 if self.has(0.15) else n for n in (self.num_queries, self.num_keys)]
        return (*axes, *ends)

    def biases(self) -> tuple[list[tuple], list[Any]]:
        own, made = [], []
        for _ in range(self.of({0: 0.6, 1: 0.3, 2: 0.1})):
            match self.of(["given", "given", "alibi", "relative", "shaw"]):
                case "alibi" if len(self.leading) == 2 and self.leading[-1] in (1, 2, 4):
                    heads = self.leading[-1]
                    own.append(("alibi", 2.0 ** (-8.0 / heads * np.arange(1, heads + 1))))
                    made.append(Alibi(heads))
                case "relative" if len(self.leading) in (0, 1, 2) and 0 not in self.leading:
                    heads = self.leading[-1] if len(self.leading) == 2 else None
                    bias = RelativeBias(heads, buckets=4, max_distance=6)
                    table = self._set(bias.table, self.parameter(*(() if heads is None else (heads,)), 4))
                    if not self.leading:  # such a bias has an axis of rows
                        continue
                    own.append(("table", table, lambda d: np.minimum(np.abs(d), 1) + 2 * (d > 0)))
                    made.append(bias.to(self.dtype))
                case "shaw" if self.dim:
                    bias = ShawBias(self.dim, 2)
                    own.append(("shaw", self._set(bias.table, self.parameter(5, self.dim))))
                    made.append(bias)
                case _:
                    array = self.rng.standard_normal(self.table_axes("bias"))
                    if self.has(0.25):
                        array[self.rng.random(array.shape) < 0.3] = -np.inf
                    if self.has(0.08):
                        array[self.rng.random(array.shape) < 0.1] = self.of([np.inf, np.nan])
                    own.append(("given", self.round_to_dtype(array)))
                    made.append(torch.tensor(array).to(self.dtype))
        return own, made


def make(seed: int, number: int) -> Read:
    """Return the read of a seed and a number."""
    maker = Maker(seed, number)
    maker.sizes()
    own_score, score, key_dim = maker.score()
    own_choice, choose = maker.choice(own_score["kind"])
    own_mask, mask = maker.mask()
    own_biases, biases = ([], []) if own_choice["kind"] == "shares" else maker.biases()  # shares may not be negative
    query, keys, values = _tensors(maker, key_dim)
    eps, eps_sum = (torch.finfo(x).eps for x in (maker.dtype, torch.promote_types(maker.dtype, torch.float32)))
    limits = torch.finfo(maker.dtype)
    # Processors multiply bfloat16 without subnormal numbers.
    step = limits.tiny * (1.0 if maker.dtype == torch.bfloat16 else limits.eps)
    case = Case(
        query, keys, values, own_score, own_choice, own_mask, own_biases,
        eps, eps_sum, limits.tiny, step, _count_heads(maker),
    )  # fmt: skip
    memory = maker.of({"pair": 0.75, "memory": 0.1, "mapped": 0.08, "masked": 0.04, "static": 0.03})
    fixed = "dense" in str(own_mask) or "documents" in str(own_mask) or own_biases or "location" in str(own_score)
    fixed = fixed or keys.shape[:-2] != values.shape[:-2] or maker.value_dim == 0
    if any(np.isnan(bias[1]).any() or np.isposinf(bias[1]).any() for bias in own_biases if bias[0] == "given"):
        memory = "pair"  # only what is read of a pair is looked at
    if memory == "static" and fixed:  # they tell of so many keys, and not of more slots
        memory = "memory"
    maker.misfits += sizes_that_do_not_fit(maker.leading, maker.heads, maker.kind, case, memory)
    if memory == "pair" and maker.has(0.08):
        maker.words.append("spoilt")
        _spoil(maker, case)
    maker.misfits += [] if maker.misfits else numbers_that_do_not_fit(case)
    plain = memory == "static"
    layouts = [lay_out(maker, array, plain=plain) for array in (case.query, case.keys, case.values)]
    read = Read(
        case, maker.dtype, maker.kernel(own_score, own_choice), *layouts, memory, score, choose, mask, biases,
        maker.misfits,
    )  # fmt: skip
    shapes = " ".join(str(tuple(tensor.shape)) for tensor in layouts)
    names = [f"{own_score['kind']}{'' if maker.heads is None else ' of heads'}", own_choice["kind"], read.kernel]
    dtype = str(maker.dtype).removeprefix("torch.")
    more = f"mask {mask!r}" if mask is not None else "no mask"
    read.text = f"{shapes} {dtype} {' '.join(names)} {memory}, {more}, {len(biases)} biases {' '.join(maker.words)}"
    return read


def _tensors(maker: Maker, key_dim: int) -> tuple[Array, Array, Array]:
    """Return queries, keys and values of which one has all leading axes of the read, unless they do not fit."""
    heads = _count_heads(maker)
    while True:
        query, keys = maker.axes(), maker.axes(can_group=True)
        values = keys if maker.has(0.8) else maker.axes(can_group=True)
        whole = maker.of({"query": 0.7, "keys": 0.2, "values": 0.1})
        query, keys, values = (
            maker.leading if name == whole else axes
            for name, axes in (("query", query), ("keys", keys), ("values", values))
        )
        shapes = (*query, 1, 1), (*keys, 1, 1), (*values, 1, 1)
        if leading_axes(*(np.zeros(shape) for shape in shapes), heads=heads) in (None, maker.leading):
            break
    return (
        maker.numbers(*query, maker.num_queries, maker.dim),
        maker.numbers(*keys, maker.num_keys, key_dim),
        maker.numbers(*values, maker.num_keys, maker.value_dim),
    )


def _count_heads(maker: Maker) -> int | None:
    return None if maker.kind == "bare" else maker.heads


def _spoil(maker: Maker, case: Case) -> None:
    """Put infinity or NaN into some numbers, which must be refused if visible to a query, and ignored otherwise."""
    for name in maker.of([("keys",), ("values",), ("query",), ("keys", "values")]):
        array = getattr(case, name).copy()
        if array.size:
            items = array.reshape(-1, array.shape[-1])
            hidden = np.flatnonzero(~used_items(case, name).reshape(-1))
            chosen = hidden if maker.has(0.7) else np.arange(len(items))
            for i in maker.rng.permutation(chosen)[: max(1, len(items) // 3)]:
                # An infinite key that all queries score minus infinity has no weight, which is right as well.
                kinds = [np.nan] if name == "keys" and len(chosen) == len(items) else [np.inf, -np.inf, np.nan]
                items[i, maker.rng.integers(items.shape[1])] = maker.of(kinds)
        setattr(case, name, array)
