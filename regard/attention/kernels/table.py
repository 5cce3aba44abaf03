"""Which kernel computes a read: by name, or by this table when the name is "auto".

| score                          | choice | where                                    | kernel    |
|--------------------------------|--------|------------------------------------------|-----------|
| inner product (Dot, ScaledDot, | Soft   | CPU, half precision, at most 1,024 keys  | reference |
| General)                       | Soft   | CPU, several queries, at most 128 keys   | reference |
|                                | Soft   | everywhere else                          | sdpa      |
| Additive                       | any    | everywhere                               | reference |

The bounds are measured (benchmarks/kernels.py): torch's fused CPU kernel has a cost a call that short reads do not
earn back, and multiplies bfloat16 at half the rate of plain products. From some length on it wins, and always in
memory: plain products store the weights.

A kernel asked for by name is never swapped for another: what it cannot do raises.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.kernels import reference, sdpa
from regard.attention.kernels.problem import Problem

__all__ = ["KERNELS", "pick"]

KERNELS = {"reference": reference, "sdpa": sdpa}


def pick(name: str, problem: Problem) -> Callable[[Problem], Tensor]:
    """The kernel of that name, or the table's for "auto".

    Raises: ValueError for an unknown name, and for a kernel that cannot do the problem, naming those that can.
    """
    if name == "auto":
        return KERNELS[_auto(problem)].read
    if name not in KERNELS:
        raise ValueError(f"kernel must be auto or one of {', '.join(sorted(KERNELS))}, but is {name!r}")
    reason = KERNELS[name].refusal(problem)
    if reason is not None:
        able = [other for other, kernel in KERNELS.items() if kernel.refusal(problem) is None]
        raise ValueError(f"kernel {name!r} cannot do this read: {reason}; {', '.join(able)} can")
    return KERNELS[name].read


def _auto(problem: Problem) -> str:
    if sdpa.refusal(problem) is not None:
        return "reference"
    query, num_keys = problem.query, problem.keys.shape[-2]
    if query.device.type != "cpu":
        return "sdpa"
    if query.dtype in (torch.bfloat16, torch.float16):
        return "reference" if num_keys <= 1024 else "sdpa"
    return "reference" if num_keys <= 128 and query.shape[-2] > 1 else "sdpa"
