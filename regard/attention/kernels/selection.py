"""Selection of the kernel of a read: by name, or by this table if the name is "auto".

| score                | choice       | where                                          | kernel    |
|----------------------|--------------|------------------------------------------------|-----------|
| inner product        | Soft         | CPU, half precision*, <= 4096 keys, 2^28 pairs | products  |
| inner product        | Soft         | CPU, others, several queries, at most 128 keys | products  |
| inner product        | Soft         | everywhere else                                | sdpa      |
| capped inner product | Soft         | CUDA                                           | flex      |
| additive             | Soft         | CPU; CUDA from 2^25 query x key x hidden       | additive  |
| any                  | Hard, TopK   | everywhere                                     | gather    |
| feature maps         | Proportional | masks that are ranges from the first key       | linear    |
| any other            | any          | everywhere                                     | reference |

Inner products are Dot, ScaledDot, General and Cosine; capped ones SoftCap of them; additive scores
Additive, BareAdditive and Concat. *: where oneDNN has half-precision products (processors with
AVX-512 or AMX); elsewhere half precision follows the rules of float32. A program of torch.export
computes inner products with Soft by sdpa and all other reads by the reference, everywhere: the
other rules depend on lengths, which may be dynamic, and other kernels need this library.

If the kernel in the table cannot compute the read (its `unsupported_reason` says why), the
reference computes it.

The bounds are measured (benchmarks/attention.py): torch's fused CPU kernel has an overhead per call
that short reads do not amortize, and multiplies bfloat16 at half the rate of plain products. Plain
products store the weights, which is why their number is bounded; use "sdpa" to avoid storing any.
Scores of half precision are kept in float32.

A kernel requested by name is never replaced by another: an unsupported read raises.
"""

import importlib.util
from types import ModuleType

import torch

from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import additive, flex, gather, linear, products, reference, sdpa
from regard.attention.scores import InnerProduct, TanhSum
from regard.ops.half import has_half_products

MIN_FUSED_TRIPLES = 2**25
"""Smallest number of query x key x hidden that the fused additive kernel computes on a GPU. Not
measured: the formula takes six passes over a tensor of 4 bytes per triple, 5 picoseconds each at
4.8 TB/s, and the seven launches of the fused kernel some 0.2 ms of Python with a backward."""

MAX_SHORT = 128
"""Largest number of keys of a read in float32 that plain products compute faster than sdpa."""
_MODULES = reference, products, sdpa, flex, additive, gather, linear
KERNELS: dict[str, ModuleType] = {kernel.__name__.split(".")[-1]: kernel for kernel in _MODULES}


def choose(name: str, inputs: AttentionInputs) -> str:
    """Return the name of the kernel of a read: `name` itself, or that of the table for "auto".

    Raises: ValueError for an unknown name, and for a kernel that cannot compute the read, naming
            those that can.
    """
    if name == "auto":
        return _by_table(inputs)
    if name not in KERNELS:
        known = ", ".join(sorted(KERNELS))
        raise ValueError(f"kernel must be auto or one of {known}, got {name!r}")
    reason = KERNELS[name].unsupported_reason(inputs)
    if reason is not None:
        others = ", ".join(other for other in KERNELS if _supports(other, inputs))
        raise ValueError(f"kernel {name!r} does not support this read: {reason}. Use {others}")
    return name


def kernels() -> str:
    """Describe the kernels, those unavailable on this machine, and the table for "auto"."""
    assert __doc__ is not None
    lines, has_cuda = [], torch.cuda.is_available()
    for name, module in KERNELS.items():
        assert module.__doc__ is not None
        summary = " ".join(module.__doc__.split("\n\n")[0].split()).rstrip(":.")
        note = ""
        if name == "flex" and not flex.has_compiler() and not has_cuda:
            note = " (unavailable: torch needs a C++ compiler for it)"
        if name == "additive" and has_cuda and importlib.util.find_spec("triton") is None:
            note = " (on the CPU only: triton is not installed)"
        lines.append(f"{name:10} {summary}{note}")
    return "\n".join([*lines, "", __doc__.strip()])


def _by_table(inputs: AttentionInputs) -> str:
    form, query, num_keys = inputs.form, inputs.query, inputs.keys.shape[-2]
    if torch.compiler.is_exporting():
        return "reference" if sdpa.unsupported_reason(inputs) else "sdpa"
    if inputs.softmax is None:
        names = ["gather", "linear"]
    elif isinstance(form, InnerProduct) and form.cap is None:
        if query.device.type != "cpu":
            return "sdpa"
        if query.dtype in (torch.bfloat16, torch.float16) and has_half_products(query.dtype):
            num_weights = query.numel() // query.shape[-1] * num_keys
            return "products" if num_keys <= 4096 and num_weights <= 2**28 else "sdpa"
        return "products" if num_keys <= MAX_SHORT and query.shape[-2] > 1 else "sdpa"
    elif isinstance(form, TanhSum):
        is_small = query.numel() * num_keys < MIN_FUSED_TRIPLES
        if query.device.type == "cuda" and is_small:
            return "reference"
        names = ["additive"]
    elif form is not None and query.device.type == "cuda":
        names = ["flex"]
    else:
        names = []
    return next((name for name in names if _supports(name, inputs)), "reference")


def _supports(name: str, inputs: AttentionInputs) -> bool:
    return KERNELS[name].unsupported_reason(inputs) is None
