"""Selection of the kernel of a read: by name, or by this table if the name is "auto".

| score                | choice       | where
| kernel    |
|----------------------|--------------|------------------------------------------------------------------|-----------| | inner product        | Soft         | CPU, half precision*, at most 4,096 keys and 2^28 weights in all | products  |
| inner product        | Soft         | CPU, all others, several queries, at most 128 keys
| products  | | inner product        | Soft         | everywhere else
| sdpa      | | capped inner product | Soft         | CUDA
| flex      | | additive             | Soft         | CPU, CUDA
| additive  | | any                  | Hard, TopK   | everywhere
| gather    | | feature maps         | Proportional | masks that are ranges from the first key
| linear    | | any other            | any          | everywhere
| reference |

Inner products are Dot, ScaledDot, General and Cosine; capped ones SoftCap of them; additive scores
Additive, BareAdditive and Concat. *: where oneDNN has half-precision products (processors with
AVX-512 or AMX); elsewhere half precision follows the rules of float32. A program of torch.export
computes inner products by sdpa on a CPU, too: the other rules depend on lengths, which may be
dynamic.

If the kernel in the table cannot compute the read (its `refusal` gives the reason), the reference
computes it.

The bounds are measured (benchmarks/attention.py): torch's fused CPU kernel has an overhead per call
that short reads do not amortize, and multiplies bfloat16 at half the rate of plain products. Plain
products store the weights, which is why their number is bounded; use "sdpa" to avoid storing any.
Scores of half precision are kept in float32.

A kernel requested by name is never replaced by another: an unsupported read raises.
"""

import html
import importlib.util
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from regard.attention.choices import Soft
from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import additive, flex, gather, linear, products, reference, sdpa
from regard.attention.scores import InnerProduct, TanhSum
from regard.ops.half import has_half_products

KERNELS: dict[str, ModuleType] = {
    "reference": reference,
    "products": products,
    "sdpa": sdpa,
    "flex": flex,
    "additive": additive,
    "gather": gather,
    "linear": linear,
}


def pick(name: str, inputs: AttentionInputs) -> Callable[[AttentionInputs], Tensor]:
    """Return the read function of the kernel of that name, or of the table for "auto"; raises as
    `choose` does."""
    return KERNELS[choose(name, inputs)].read


def choose(name: str, inputs: AttentionInputs) -> str:
    """Return the name of the kernel that computes the read: `name` itself, or that of the table for
    "auto".

    Raises: ValueError for an unknown name, and for a kernel that cannot compute the read, naming
            those that can.
    """
    if name == "auto":
        return _auto(inputs)
    if name not in KERNELS:
        raise ValueError(
            f"kernel must be auto or one of {', '.join(sorted(KERNELS))}, got {name!r}"
        )
    reason = KERNELS[name].refusal(inputs)
    if reason is not None:
        supporting = [other for other, kernel in KERNELS.items() if kernel.refusal(inputs) is None]
        raise ValueError(
            f"kernel {name!r} does not support this read: {reason}. Use {', '.join(supporting)}"
        )
    return name


class Description(str):
    """Text that is shown as it is, line by line, also by a notebook and at a prompt."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def kernels() -> Description:
    """Return a description of the kernels, of those unavailable on this machine, and of the table
    for "auto"."""
    assert __doc__ is not None
    lines = [
        f"{name:10} {_summary(module)}{_unavailable_note(name)}" for name, module in KERNELS.items()
    ]
    return Description("\n".join([*lines, "", __doc__.strip()]))


def _auto(inputs: AttentionInputs) -> str:
    """Return the name of the kernel by the table, line by line."""
    names = [_by_form(inputs)] if isinstance(inputs.choice, Soft) else ["gather", "linear"]
    return next((name for name in names if KERNELS[name].refusal(inputs) is None), "reference")


def _by_form(inputs: AttentionInputs) -> str:
    form, query, num_keys = inputs.form, inputs.query, inputs.keys.shape[-2]
    on_cpu = query.device.type == "cpu"
    if isinstance(form, TanhSum):
        return "additive"
    if not isinstance(form, InnerProduct):
        return "reference"
    if form.cap is not None:
        return "flex" if query.device.type == "cuda" else "reference"
    if not on_cpu or torch.compiler.is_exporting():
        return "sdpa"
    if query.dtype in (torch.bfloat16, torch.float16) and has_half_products(query.dtype):
        return "products" if num_keys <= 4096 and _num_weights(inputs) <= 2**28 else "sdpa"
    return "products" if num_keys <= 128 and query.shape[-2] > 1 else "sdpa"


def _num_weights(inputs: AttentionInputs) -> int:
    query = inputs.query
    return query.numel() // max(1, query.shape[-1]) * inputs.keys.shape[-2]


def _summary(module: ModuleType) -> str:
    """Return the first sentence of the docstring of a module."""
    assert module.__doc__ is not None
    return " ".join(module.__doc__.split("\n\n")[0].split()).rstrip(":.")


def _unavailable_note(name: str) -> str:
    """Return the reason why a kernel is unavailable on this machine, or an empty string."""
    if name == "flex" and not flex.has_compiler() and not torch.cuda.is_available():
        return " (unavailable: torch needs a C++ compiler for it)"
    if (
        name == "additive"
        and torch.cuda.is_available()
        and importlib.util.find_spec("triton") is None
    ):
        return " (on the CPU only: triton is not installed)"
    return ""
