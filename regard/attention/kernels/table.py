"""Which kernel computes a read: by name, or by this table when the name is "auto".

| score                | choice       | where                                                            | kernel    |
|----------------------|--------------|------------------------------------------------------------------|-----------|
| inner product        | Soft         | CPU, half precision*, at most 4,096 keys and 2^28 weights in all | products  |
| inner product        | Soft         | CPU, all others, several queries, at most 128 keys               | products  |
| inner product        | Soft         | everywhere else                                                  | sdpa      |
| capped inner product | Soft         | CUDA                                                             | flex      |
| additive             | Soft         | CPU, CUDA                                                        | additive  |
| any                  | Hard, TopK   | everywhere                                                       | gather    |
| feature maps         | Proportional | masks that are ranges from the first key                         | linear    |
| whatever is left     | any          | everywhere                                                       | reference |

Inner products are Dot, ScaledDot, General and Cosine; capped ones SoftCap of them; additive scores Additive,
BareAdditive and Concat. *: where oneDNN has products of it (processors with AVX-512 or AMX); elsewhere half precision
is read as float32 is.

A kernel that the table names but that cannot do the read (it says why in `refusal`) leaves it to the reference.

The bounds are measured (benchmarks/attention.py): torch's fused CPU kernel has a cost a call that short reads do not
earn back, and multiplies bfloat16 at half the rate of plain products. Plain products store the weights, which is why
their number is bounded; whoever must not store any asks for "sdpa". Scores of half precision are kept in float32.

A kernel asked for by name is never swapped for another: what it cannot do raises.
"""

import importlib.util
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from regard.attention.choices import Soft
from regard.attention.kernels import additive, flex, gather, linear, products, reference, sdpa
from regard.attention.kernels.half import has_half_products
from regard.attention.kernels.problem import Problem
from regard.attention.scores import InnerProduct, TanhSum

KERNELS: dict[str, ModuleType] = {
    "reference": reference,
    "products": products,
    "sdpa": sdpa,
    "flex": flex,
    "additive": additive,
    "gather": gather,
    "linear": linear,
}


def pick(name: str, problem: Problem) -> Callable[[Problem], Tensor]:
    """The kernel of that name, or the table's for "auto"; errors as `choose`."""
    return KERNELS[choose(name, problem)].read


def choose(name: str, problem: Problem) -> str:
    """The name of the kernel that computes the read: `name` itself, or the table's choice for "auto".

    Raises: ValueError for an unknown name, and for a kernel that cannot do the problem, naming those that can.
    """
    if name == "auto":
        return _auto(problem)
    if name not in KERNELS:
        raise ValueError(f"kernel must be auto or one of {', '.join(sorted(KERNELS))}, but is {name!r}")
    reason = KERNELS[name].refusal(problem)
    if reason is not None:
        able = [other for other, kernel in KERNELS.items() if kernel.refusal(problem) is None]
        raise ValueError(f"kernel {name!r} cannot do this read: {reason}; {', '.join(able)} can")
    return name


def _auto(problem: Problem) -> str:
    """The table, line by line."""
    name = _by_form(problem) if isinstance(problem.choose, Soft) else _by_choice(problem)
    return name if KERNELS[name].refusal(problem) is None else "reference"


def _by_form(problem: Problem) -> str:
    form, query, num_keys = problem.form, problem.query, problem.keys.shape[-2]
    on_cpu = query.device.type == "cpu"
    if isinstance(form, TanhSum):
        return "additive"
    if not isinstance(form, InnerProduct):
        return "reference"
    if form.cap is not None:
        return "flex" if query.device.type == "cuda" else "reference"
    if not on_cpu:
        return "sdpa"
    if query.dtype in (torch.bfloat16, torch.float16) and has_half_products(query.dtype):
        return "products" if num_keys <= 4096 and _num_weights(problem) <= 2**28 else "sdpa"
    return "products" if num_keys <= 128 and query.shape[-2] > 1 else "sdpa"


def _num_weights(problem: Problem) -> int:
    query = problem.query
    return query.numel() // max(1, query.shape[-1]) * problem.keys.shape[-2]


def _by_choice(problem: Problem) -> str:
    return next((name for name in ("gather", "linear") if KERNELS[name].refusal(problem) is None), "reference")


def kernels() -> str:
    """The kernels of this machine, why one of them may not run here, and the table that "auto" follows."""
    assert __doc__ is not None
    lines = [f"{name:10} {_doc(module)}{_absence(name)}" for name, module in KERNELS.items()]
    return "\n".join([*lines, "", __doc__.strip()])


def _doc(module: ModuleType) -> str:
    """The first sentence of what a module says of itself."""
    assert module.__doc__ is not None
    return " ".join(module.__doc__.split("\n\n")[0].split()).rstrip(":.")


def _absence(name: str) -> str:
    """What keeps a kernel from running on this machine's processors."""
    if name == "flex" and not flex.has_compiler() and not torch.cuda.is_available():
        return " (not here: torch needs a C++ compiler for it)"
    if name == "additive" and torch.cuda.is_available() and importlib.util.find_spec("triton") is None:
        return " (on the CPU only: triton is not installed)"
    return ""
