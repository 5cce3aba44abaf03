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
from tests.campaigns.reads_misfits import sizes_that_do_not_fit
from tests.campaigns.reads_oracle import ReadCase, leading_axes

__all__ = ["Read", "make"]

Array = np.ndarray
Rng = np.random.Generator
DTYPES = {torch.float64: 0.25, torch.float32: 0.4, torch.bfloat16: 0.2, torch.float16: 0.15}
KERNELS = {
    "auto": 9,
    "reference": 2,
    "products": 1,
    "sdpa": 1,
    "additive": 1,
    "gather": 1,
    "linear": 1,
}
SCORES = (
    "dot",
    "scaled",
    "general",
    "additive",
    "concat",
    "bare",
    "cosine",
    "location",
    "capped",
    "features",
)
HUGE = {torch.float64: 1e100, torch.float32: 1e15, torch.bfloat16: 1e15, torch.float16: 150.0}
"""Numbers whose products are within range."""


@dataclass
class Read:
    """Random read, for the package and for the oracle."""

    case: ReadCase
    dtype: torch.dtype
    kernel: str
    query: Tensor
    keys: Tensor
    values: Tensor
    memory: str
    score: Score
    choice: Choice
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


class ReadGenerator:
    """Generator of one random read, part by part."""

    def __init__(self, seed: int, number: int):
        self.rng = np.random.default_rng([seed, number])
        self.dtype = self.choose(DTYPES)
        self.misfits: list[str] = []
        self.words: list[str] = []

    def choose(self, choices: dict[Any, float] | list | tuple) -> Any:
        """Return one of the choices, by weight."""
        if not isinstance(choices, dict):
            return choices[self.rng.integers(len(choices))]
        names = list(choices)
        weights = np.array(list(choices.values()))
        return names[self.rng.choice(len(names), p=weights / weights.sum())]

    def flip(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def round_to_dtype(self, array: Array) -> Array:
        """Round numbers to the dtype."""
        with np.errstate(over="ignore"):
            return torch.tensor(np.asarray(array, float)).to(self.dtype).double().numpy()

    def sizes(self) -> None:
        few = [0] if self.flip(0.02) else [1, 2, 3, 4]
        self.leading = tuple(
            int(self.choose(few)) for _ in range(self.choose({0: 0.15, 1: 0.25, 2: 0.5, 3: 0.1}))
        )
        self.num_queries = int(self.choose([0] if self.flip(0.03) else [1, 1, 2, 3, 5, 9]))
        self.num_keys = int(self.choose([0] if self.flip(0.03) else [1, 2, 3, 5, 8, 17, 40]))
        if self.flip(0.03):  # beyond the tiles of kernels
            self.num_queries, self.num_keys = (
                int(self.choose([1, 70, 130])),
                int(self.choose([130, 150, 300])),
            )
            self.leading = tuple(min(size, 2) for size in self.leading)
        self.dim = int(self.choose([0] if self.flip(0.01) else [1, 2, 3, 5, 8, 19]))
        self.value_dim = int(self.choose([0] if self.flip(0.02) else [1, 2, 3, 7, 16]))

    def axes(self, *, can_group: bool = False) -> tuple[int, ...]:
        """Return leading axes that fit the read: all, fewer, some of size 1, fewer heads."""
        axes = list(self.leading)
        kind = self.choose({"all": 0.5, "missing": 0.2, "ones": 0.2, "grouped": 0.1})
        if kind == "missing":
            axes = axes[: self.rng.integers(len(axes) + 1)]
        elif kind == "ones":
            axes = [1 if self.flip(0.5) else size for size in axes]
        elif kind == "grouped" and can_group and len(axes) > 1 and axes[-1] > 1:
            axes[-1] = int(self.choose([n for n in (1, 2, 3) if axes[-1] % n == 0]))
        if axes and self.flip(0.01):
            axes[self.rng.integers(len(axes))] += 3
        return tuple(axes)

    def numbers(self, *shape: int) -> Array:
        """Return random numbers of a random kind."""
        array = self.rng.standard_normal(shape)
        tiny = torch.finfo(self.dtype).tiny
        kind = self.choose(
            {
                "normal": 25,
                "zero": 1,
                "small": 1,
                "huge": 1,
                "enormous": 1,
                "denormal": 1,
                "equal": 1,
                "zeros": 1,
            }
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
            case "enormous" if (
                self.dtype != torch.float64
            ):  # beyond which the oracle does not reach
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
        kind = self.choose(SCORES)
        heads = (
            int(self.leading[-1])
            if self.leading and self.leading[-1] > 0 and self.flip(0.4)
            else None
        )
        self.heads: int | None = None
        self.kind = kind
        dim, key_dim, hidden = (
            max(1, self.dim),
            int(self.choose([1, 2, 4, 7])),
            int(self.choose([1, 2, 3, 8])),
        )
        with_heads = () if heads is None else (heads,)
        match kind:
            case "dot" | "scaled" | "cosine" | "features":
                parameterless = {
                    "dot": Dot,
                    "scaled": ScaledDot,
                    "cosine": Cosine,
                    "features": FeatureMap,
                }[kind]()
                return {"kind": kind}, parameterless, self.dim
            case "capped":
                inner, score, key_dim = self.score()
                if inner["kind"] == "capped":
                    return inner, score, key_dim
                cap = float(self.choose([0.5, 2.0, 30.0]))
                return {"kind": "capped", "inner": inner, "cap": cap}, SoftCap(score, cap), key_dim
        self.heads = heads
        if kind == "location":
            score = Location(dim, self.num_keys + 2, num_heads=heads)
            weight = self._set(score.weight, self.parameter(*with_heads, self.num_keys + 2, dim))
            return {"kind": kind, "weight_q": weight}, score, key_dim
        if kind == "bare":
            score = BareAdditive(dim, num_heads=heads)
            return (
                {"kind": kind, "v": self._set(score.v, self.parameter(*with_heads, dim))},
                score,
                self.dim,
            )
        parameters: dict[str, Any] = {
            "kind": kind,
            "weight_q": self.parameter(*with_heads, hidden, dim),
            "weight_k": self.parameter(*with_heads, hidden, key_dim),
        }
        if kind == "general":
            score = General(dim, key_dim, hidden, num_heads=heads)
        else:
            score = (Additive if kind == "additive" else Concat)(
                dim, key_dim, hidden, num_heads=heads
            )
            parameters["v"] = self._set(score.v, self.parameter(*with_heads, hidden))
        if isinstance(score, Concat):
            self._set(
                score.weight, np.concatenate((parameters["weight_q"], parameters["weight_k"]), -1)
            )
        else:
            self._set(score.query_weight, parameters["weight_q"])
            self._set(score.key_weight, parameters["weight_k"])
        return parameters, score, key_dim

    def _set(self, parameter: Tensor, array: Array) -> Array:
        with torch.no_grad():
            parameter.data = torch.tensor(array).to(self.dtype)
        return array

    def choice(self, score: str) -> tuple[dict, Choice]:
        if score == "features" and self.flip(0.6):
            return {"kind": "shares"}, Proportional()
        kind = self.choose({"soft": 0.7, "hard": 0.1, "sparse": 0.1, "top": 0.1})
        if kind == "hard":
            return {"kind": kind, "beta": 1.0}, Hard()
        beta, tensor, learn = self.beta()
        options: dict[str, Any] = {"beta": tensor, "learn": learn}
        description = {"kind": kind, "beta": beta, "learn": learn}
        if kind == "sparse":
            description["alpha"] = float(self.choose([1.25, 1.5, 1.5, 2.0, 2.0, 3.0]))
            choice: Choice = Sparse(description["alpha"], **options)
        elif kind == "top":
            description["k"] = int(self.choose([1, 2, 5]))
            choice = TopK(description["k"], **options)
        else:
            choice = Soft(**options)
        if learn:
            choice = choice.to(self.dtype)
            soft = choice if isinstance(choice, Soft) else choice.soft
            description["beta"] = np.exp(soft.log_beta.detach().double().numpy())
        return description, choice

    def beta(self) -> tuple[Any, Any, bool]:
        kind = self.choose({"one": 0.5, "number": 0.2, "heads": 0.1, "queries": 0.1, "scalar": 0.1})
        if kind in ("one", "number"):
            number = 1.0 if kind == "one" else float(self.choose([0.25, 1.7, 10.0]))
            return number, number, self.flip(0.15)
        shape = {
            "heads": (*self.leading[-1:], 1, 1),
            "queries": (self.num_queries, 1),
            "scalar": (),
        }[kind]
        if self.flip(0.02):
            self.misfits.append("beta")
            shape = (self.num_queries + 2, 1) if self.num_queries != 1 else (*self.leading, 1, 1, 1)
        array = self.round_to_dtype(self.rng.uniform(0.3, 2.5, shape))
        return array, torch.tensor(array).to(self.dtype), self.flip(0.3)

    def kernel(self, score: dict, choice: dict) -> str:
        """Return the name of a kernel, mostly one that supports the read."""
        kind = score["kind"]
        suited = {
            "soft": ("additive",)
            if kind in ("additive", "concat", "bare")
            else ("products", "sdpa"),
            "hard": ("gather",),
            "top": ("gather",),
            "shares": ("linear",),
        }.get(choice["kind"], ())
        unable = set(KERNELS) - {"auto", "reference", *suited}
        return self.choose(
            {name: 0.05 if name in unable else weight for name, weight in KERNELS.items()}
        )

    def mask(self, depth: int = 0) -> tuple[tuple | None, Mask | None]:
        if depth == 0 and self.flip(0.25):
            return None, None
        if depth < 2 and self.flip(0.35):
            name = self.choose(["and", "or", "not"])
            description, mask = self.mask(depth + 1)
            if name == "not":
                return ("not", description), ~mask
            other_description, other = self.mask(depth + 1)
            return (
                name,
                description,
                other_description,
            ), mask & other if name == "and" else mask | other
        return self.plain_mask()

    def plain_mask(self) -> tuple[tuple, Mask]:
        description, mask = ("causal",), causal()
        match self.choose(
            ["causal", "padding", "padding", "dense", "window", "prefix", "documents"]
        ):
            case "padding" | "prefix" as name:
                axes = tuple(
                    1 if self.flip(0.2) else n for n in self.leading[: self.rng.integers(0, 2)]
                )
                lengths = self.rng.integers(0, self.num_keys + 3, axes)
                description, mask = (
                    (name, lengths),
                    (padding if name == "padding" else prefix)(torch.tensor(lengths)),
                )
            case "window":
                size = int(self.rng.integers(1, 5))
                ahead = int(self.rng.integers(0, size))
                description, mask = ("window", size, ahead), window(size, ahead)
            case "documents" if self.leading and self.num_keys:
                ids = np.sort(
                    self.rng.integers(
                        0, 3, (1 if self.flip(0.3) else self.leading[0], self.num_keys)
                    )
                )
                description, mask = ("documents", ids), documents(torch.tensor(ids))
            case "dense":
                array = self.rng.random(self.table_axes("mask")) > self.choose([0.2, 0.5, 0.9])
                description, mask = ("dense", array), dense(torch.tensor(array))
        return description, mask

    def table_axes(self, name: str) -> tuple[int, ...]:
        """Return the axes of a mask or bias given as a tensor."""
        axes = list(self.axes())
        if any(n not in (1, m) for n, m in zip(axes, self.leading, strict=False)):
            self.misfits.append(name)
        if self.flip(0.01):
            self.misfits.append(name)
            axes = [1, *self.leading, 1][: len(self.leading) + 1]
        ends = [1 if self.flip(0.15) else n for n in (self.num_queries, self.num_keys)]
        return (*axes, *ends)

    def biases(self) -> tuple[list[tuple], list[Any]]:
        descriptions, modules = [], []
        for _ in range(self.choose({0: 0.6, 1: 0.3, 2: 0.1})):
            match self.choose(["given", "given", "alibi", "relative", "shaw"]):
                case "alibi" if len(self.leading) == 2 and self.leading[-1] in (1, 2, 4):
                    heads = self.leading[-1]
                    descriptions.append(("alibi", 2.0 ** (-8.0 / heads * np.arange(1, heads + 1))))
                    modules.append(Alibi(heads))
                case "relative" if len(self.leading) in (0, 1, 2) and 0 not in self.leading:
                    heads = self.leading[-1] if len(self.leading) == 2 else None
                    bias = RelativeBias(heads, buckets=4, max_distance=6)
                    table = self._set(
                        bias.table, self.parameter(*(() if heads is None else (heads,)), 4)
                    )
                    if not self.leading:  # such a bias has an axis of rows
                        continue
                    descriptions.append(
                        ("table", table, lambda d: np.minimum(np.abs(d), 1) + 2 * (d > 0))
                    )
                    modules.append(bias.to(self.dtype))
                case "shaw" if self.dim:
                    bias = ShawBias(self.dim, 2)
                    descriptions.append(
                        ("shaw", self._set(bias.table, self.parameter(5, self.dim)))
                    )
                    modules.append(bias)
                case _:
                    array = self.rng.standard_normal(self.table_axes("bias"))
                    if self.flip(0.25):
                        array[self.rng.random(array.shape) < 0.3] = -np.inf
                    descriptions.append(("given", self.round_to_dtype(array)))
                    modules.append(torch.tensor(array).to(self.dtype))
        return descriptions, modules


def make(seed: int, number: int) -> Read:
    """Return the read of a seed and a number."""
    generator = ReadGenerator(seed, number)
    generator.sizes()
    score_spec, score, key_dim = generator.score()
    choice_spec, choice = generator.choice(score_spec["kind"])
    mask_spec, mask = generator.mask()
    # Shares may not be negative.
    bias_specs, biases = ([], []) if choice_spec["kind"] == "shares" else generator.biases()
    query, keys, values = _tensors(generator, key_dim)
    eps, eps_sum = (
        torch.finfo(x).eps
        for x in (generator.dtype, torch.promote_types(generator.dtype, torch.float32))
    )
    limits = torch.finfo(generator.dtype)
    # Processors multiply bfloat16 without subnormal numbers.
    step = limits.tiny * (1.0 if generator.dtype == torch.bfloat16 else limits.eps)
    case = ReadCase(
        query,
        keys,
        values,
        score_spec,
        choice_spec,
        mask_spec,
        bias_specs,
        eps,
        eps_sum,
        limits.tiny,
        step,
        _count_heads(generator),
    )
    memory = generator.choose(
        {"pair": 0.75, "memory": 0.1, "mapped": 0.08, "masked": 0.04, "static": 0.03}
    )
    fixed = (
        "dense" in str(mask_spec)
        or "documents" in str(mask_spec)
        or bias_specs
        or "location" in str(score_spec)
    )
    fixed = fixed or keys.shape[:-2] != values.shape[:-2] or generator.value_dim == 0
    if memory == "static" and fixed:  # they tell of so many keys, and not of more slots
        memory = "memory"
    generator.misfits += sizes_that_do_not_fit(
        generator.leading, generator.heads, generator.kind, case, memory
    )
    plain = memory == "static"
    layouts = [
        lay_out(generator, array, plain=plain) for array in (case.query, case.keys, case.values)
    ]
    read = Read(
        case,
        generator.dtype,
        generator.kernel(score_spec, choice_spec),
        *layouts,
        memory,
        score,
        choice,
        mask,
        biases,
        generator.misfits,
    )
    shapes = " ".join(str(tuple(tensor.shape)) for tensor in layouts)
    names = [
        f"{score_spec['kind']}{'' if generator.heads is None else ' of heads'}",
        choice_spec["kind"],
        read.kernel,
    ]
    dtype = str(generator.dtype).removeprefix("torch.")
    more = f"mask {mask!r}" if mask is not None else "no mask"
    read.text = f"{shapes} {dtype} {' '.join(names)} {memory}, {more}, "
    read.text += f"{len(biases)} biases {' '.join(generator.words)}"
    return read


def _tensors(generator: ReadGenerator, key_dim: int) -> tuple[Array, Array, Array]:
    """Return queries, keys, values, one with all leading axes of the read if they fit."""
    heads = _count_heads(generator)
    while True:
        query, keys = generator.axes(), generator.axes(can_group=True)
        values = keys if generator.flip(0.8) else generator.axes(can_group=True)
        full_input = generator.choose({"query": 0.7, "keys": 0.2, "values": 0.1})
        query, keys, values = (
            generator.leading if name == full_input else axes
            for name, axes in (("query", query), ("keys", keys), ("values", values))
        )
        shapes = (*query, 1, 1), (*keys, 1, 1), (*values, 1, 1)
        if leading_axes(*(np.zeros(shape) for shape in shapes), heads=heads) in (
            None,
            generator.leading,
        ):
            break
    return (
        generator.numbers(*query, generator.num_queries, generator.dim),
        generator.numbers(*keys, generator.num_keys, key_dim),
        generator.numbers(*values, generator.num_keys, generator.value_dim),
    )


def _count_heads(generator: ReadGenerator) -> int | None:
    return None if generator.kind == "bare" else generator.heads
