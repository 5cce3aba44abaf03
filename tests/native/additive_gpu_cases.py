"""Test cases for the kernels of additive attention; a script of them in Triton's interpreter.

    TRITON_INTERPRET=1 python -m tests.native.additive_gpu_cases > failures.json

Triton decides at its first import whether it interprets, for the whole process, and torch may
import it too: so the tests run this script once in a separate process. With a GPU they call `check`
themselves.
"""

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import jaxtyping
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tests.shapes  # noqa: F401  # jaxtyping finds the checker only in a loaded module
from tests.helpers import close

ALL = (True,) * 6
NONE = (False,) * 6
WHOLE_TILE = {"own": 8, "other": 16, "programs": 1}
TILES = {"own": 4, "other": 8, "programs": 1}
"""Small, so that there are several blocks, tiles and parts of values; the interpreter is slow."""
SPLIT = {"own": 4, "other": 4, "programs": 99}
WHOLE = (1, 2, 5, 11)
TWO = (2, 2, 1, 5, 11, 3, 2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One read, with the shapes of its masks and biases, None if absent."""

    sizes: tuple[int, ...] = (1, 2, 1, 5, 11, 3, 2)
    """batch, head, key_head, query, key, dim, value_dim"""
    dtype: torch.dtype = torch.float64
    v_heads: int | None = None
    first: tuple[int, ...] | None = None
    last: tuple[int, ...] | None = None
    allowed: tuple[int, ...] | None = None
    bias: tuple[int, ...] | None = None
    diagonals: tuple[int, ...] | None = None
    masked_row: bool = False
    """Query 1 of every head is fully masked."""
    scale: float = 1.0
    """Scale of query and keys."""
    far: float = 0.0
    """Offset of all queries, minus that of all keys: equal sums, of terms far from 0."""
    late: float = 1.0
    """Scale of the keys from 128 on, which are another block of exponentials."""
    v_scale: float = 1.0
    noncontiguous: bool = False
    tiles: dict[str, int] = field(default_factory=lambda: WHOLE_TILE)
    needs: tuple[bool, ...] = ALL


CASES = {
    "plain": Case(v_heads=1, tiles=TILES, sizes=(1, 2, 1, 5, 11, 4, 3)),
    "a v for each head": Case(sizes=(2, 2, 2, 5, 11, 3, 2), v_heads=2),
    "grouped heads": Case(sizes=(1, 4, 2, 5, 9, 2, 3)),
    "causal, as ranges": Case(sizes=(1, 1, 1, 9, 17, 3, 2), last=(1, 1, 9), tiles=TILES),
    "ranges beyond the keys, and empty ones": Case(
        sizes=TWO, first=(2, 1, 5), last=(1, 2, 1), masked_row=True
    ),
    "mask": Case(allowed=WHOLE, masked_row=True),
    "mask of batch and key": Case(sizes=TWO, allowed=(2, 1, 1, 11)),
    "bias": Case(bias=WHOLE),
    "bias that masks": Case(bias=WHOLE, masked_row=True),
    "bias of head and key": Case(bias=(1, 2, 1, 11)),
    "bias of one number": Case(bias=(1, 1, 1, 1), sizes=(1, 1, 1, 5, 11, 5, 3)),
    "diagonals of batch and head": Case(sizes=TWO, diagonals=(2, 2, 15)),
    "everything": Case(
        sizes=TWO,
        first=(2, 2, 5),
        last=(2, 1, 5),
        allowed=(1, 2, 5, 11),
        bias=(2, 1, 5, 1),
        diagonals=(1, 1, 15),
        masked_row=True,
        tiles=TILES,
    ),
    "split keys and queries": Case(
        sizes=(1, 1, 1, 9, 10, 2, 3), last=(1, 1, 9), masked_row=True, tiles=SPLIT
    ),
    "the tiles of a GPU": Case(tiles={}),
    "one query": Case(sizes=(2, 2, 1, 1, 11, 3, 2), allowed=(2, 1, 1, 11), tiles=TILES),
    "one query, split, everything": Case(
        sizes=(1, 2, 1, 1, 13, 3, 2),
        first=(1, 2, 1),
        last=(1, 1, 1),
        bias=(1, 2, 1, 1),
        diagonals=(1, 2, 13),
        tiles=SPLIT,
    ),
    "four queries": Case(
        sizes=(1, 2, 1, 4, 11, 3, 2),
        allowed=(1, 2, 4, 11),
        masked_row=True,
        tiles=TILES,
        scale=30.0,
    ),
    "four queries, some gradients": Case(
        sizes=(1, 1, 1, 4, 7, 3, 2),
        bias=(1, 1, 4, 7),
        tiles=TILES,
        needs=(False, True, False, True, True, False),
    ),
    "two queries, the tiles of a GPU": Case(
        sizes=(1, 1, 1, 2, 9, 34, 2), bias=(1, 1, 2, 9), tiles={}
    ),
    "one key": Case(sizes=(2, 1, 1, 5, 1, 4, 1)),
    "no keys": Case(sizes=(2, 2, 1, 5, 0, 5, 3), bias=(1, 1, 5, 1)),
    "no queries": Case(sizes=(2, 2, 1, 0, 11, 5, 3)),
    "units that saturate": Case(scale=12.0),
    "parts that overflow alone": Case(far=400.0),
    "float32": Case(dtype=torch.float32, bias=(1, 2, 1, 11)),
    "float32, heads": Case(dtype=torch.float32, sizes=(1, 2, 2, 9, 11, 3, 3), tiles={}),
    "float32, several tiles of a GPU": Case(
        dtype=torch.float32, sizes=(1, 1, 1, 9, 136, 3, 34), last=(1, 1, 9), tiles={}
    ),
    "several tiles of other sizes": Case(
        sizes=(1, 1, 1, 40, 70, 3, 2),
        last=(1, 1, 40),
        tiles={"own": 32, "other": 32, "programs": 1},
    ),
    "float32, parts that overflow alone": Case(dtype=torch.float32, far=64.0),
    "float32, sums to 60": Case(dtype=torch.float32, scale=10.0, sizes=(1, 1, 1, 5, 11, 4, 3)),
    "float32, sums to 60 in the second block": Case(
        dtype=torch.float32, late=20.0, sizes=(1, 1, 1, 5, 136, 4, 2), tiles={}
    ),
    "float32, sums to 200": Case(dtype=torch.float32, scale=50.0, sizes=(1, 1, 1, 5, 11, 5, 3)),
    "float32, the largest numbers": Case(
        dtype=torch.float32, scale=1e38, sizes=(1, 1, 1, 5, 11, 5, 3)
    ),
    "float32, a large v": Case(
        dtype=torch.float32, v_scale=1e33, scale=1.5, sizes=(1, 1, 1, 5, 11, 4, 3), needs=NONE
    ),
    "bfloat16": Case(dtype=torch.bfloat16, bias=(1, 1, 5, 11), diagonals=(1, 2, 15)),
    "float16": Case(dtype=torch.float16, tiles=TILES, sizes=(1, 1, 1, 9, 10, 3, 2)),
    "not contiguous": Case(noncontiguous=True, allowed=WHOLE, bias=WHOLE),
    "gradients of query and values": Case(
        bias=WHOLE, needs=(True, False, True, False, False, False)
    ),
    "gradients of keys and bias": Case(bias=WHOLE, needs=(False, True, False, False, True, False)),
    "gradients of v and diagonals": Case(
        diagonals=(1, 1, 15), needs=(False, False, False, True, False, True)
    ),
}


def formula(read: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the read and its log-sum-exp by the formula, with every triple in memory."""
    query, keys, values, v = (read[name] for name in ("query", "keys", "values", "v"))
    readers = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(readers, 1), values.repeat_interleave(readers, 1)
    scores = ((query[:, :, :, None] + keys[:, :, None]).tanh() * v[:, None, None]).sum(-1)
    size = scores.shape[-2:]
    row = torch.arange(size[0], device=query.device)[:, None]
    col = torch.arange(size[1], device=query.device)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    for name, rule in (("first", lambda x: col >= x), ("last", lambda x: col < x)):
        if (limit := read[name]) is not None:
            allowed = allowed & rule(limit[..., None])
    if (mask := read["allowed"]) is not None:
        allowed = allowed & mask
    if (bias := read["bias"]) is not None:
        allowed = allowed & (bias != float("-inf"))
        scores = scores + bias.masked_fill(bias == float("-inf"), 0.0)
    if (diagonals := read["diagonals"]) is not None:
        scores = scores + diagonals[..., col - row + size[0] - 1]
    scores = scores.masked_fill(~allowed, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == float("-inf"), 0.0)[..., None]).exp()
    return weights @ values, lse


def tensors(case: Case, device: torch.device) -> dict[str, Tensor | None]:
    """Return the tensors of a case, drawn in float64 and rounded to its dtype."""
    batch, heads, key_heads, num_queries, num_keys, dim, value_dim = case.sizes
    shapes = {
        "query": (batch, heads, num_queries, dim),
        "keys": (batch, key_heads, num_keys, dim),
        "values": (batch, key_heads, num_keys, value_dim),
        "v": (case.v_heads or heads, dim),
        "bias": case.bias,
        "diagonals": case.diagonals,
    }
    draw = torch.Generator().manual_seed(1)
    read: dict[str, Tensor | None] = {}
    for name, shape in shapes.items():
        tensor = None if shape is None else torch.randn(shape, generator=draw, dtype=torch.float64)
        if tensor is not None and name in ("query", "keys"):
            tensor = tensor.clamp(-3, 3) * case.scale + (case.far if name == "query" else -case.far)
        if tensor is not None and name == "keys":
            tensor[:, :, 128:] *= case.late
        if tensor is not None and name == "v":
            tensor = tensor * case.v_scale
        if tensor is not None and name == "bias" and case.masked_row and shape == WHOLE:
            tensor[:, :, 1] = float("-inf")
            tensor[:, 1, 2, 3:7] = float("-inf")
        if tensor is not None and case.noncontiguous:
            tensor = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
        read[name] = None if tensor is None else tensor.to(case.dtype).to(device)
    for name, shape in (("first", case.first), ("last", case.last)):
        low, high = (-4, num_keys - 3) if name == "first" else (2, num_keys + 9)
        tensor = None if shape is None else torch.randint(low, high, shape, generator=draw)
        if tensor is not None:
            tensor[tensor > num_keys] = 2**40
        if tensor is not None and name == "last" and shape is not None and shape[-1] > 1:
            tensor[..., 1] = 0 if case.masked_row else 1
        read[name] = None if tensor is None else tensor.to(device)
    allowed = None if case.allowed is None else torch.rand(case.allowed, generator=draw) < 0.6
    if allowed is not None and case.masked_row:
        allowed[..., 1, :] = False
    if allowed is not None and case.noncontiguous:
        allowed = allowed.transpose(-1, -2).contiguous().transpose(-1, -2)
    read["allowed"] = None if allowed is None else allowed.to(device)
    return read


def check(case: Case, device: torch.device) -> None:
    """Check that values and gradients of the GPU kernels equal those of the formula."""
    # Imported here: Triton is optional, and collecting the cases must not import it.
    from regard.native.additive.gpu.call import TILES as LARGE  # noqa: PLC0415
    from regard.native.additive.gpu.call import backward, forward  # noqa: PLC0415

    tiles = LARGE._replace(**case.tiles)
    check_kernel(case, device, partial(forward, tiles=tiles), partial(backward, tiles=tiles))


def check_kernel(
    case: Case, device: torch.device, forward: Callable[..., Any], backward: Callable[..., Any]
) -> None:
    """Check values and gradients against the formula, within the tolerance of the dtype."""
    read = tensors(case, device)
    names = "query", "keys", "values", "v", "bias", "diagonals"
    leaves = {
        name: None if (x := read[name]) is None else x.double().requires_grad_() for name in names
    }
    expected, expected_lse = formula({**read, **leaves})
    draw = torch.Generator().manual_seed(2)
    gradient = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    gradient = gradient.to(device, case.dtype)
    differentiable = [leaf for leaf in leaves.values() if leaf is not None]
    slopes = iter(torch.autograd.grad(expected, differentiable, gradient.double()))
    order = (*names[:4], "first", "last", "allowed", *names[4:])
    arguments = [read[name] for name in order]
    out, lse = forward(*arguments, None)
    # `close` has no tolerance for float16.
    coarse = torch.bfloat16 if case.dtype == torch.float16 else case.dtype
    close(out.to(coarse), expected.to(coarse))
    assert lse.dtype == (torch.float64 if case.dtype == torch.float64 else torch.float32)
    close(lse.to(coarse), expected_lse.to(coarse))
    gradients = backward(gradient, *arguments, None, out, lse, case.needs)
    for (name, leaf), actual, need in zip(leaves.items(), gradients, case.needs, strict=True):
        slope = None if leaf is None else next(slopes)
        assert (actual is None) == (slope is None or not need), name
        if actual is not None and slope is not None:
            assert actual.dtype == case.dtype, name
            assert actual.is_contiguous(), name
            # The error of a sum is that of its largest terms, also where they cancel.
            most = torch.cat((slope.abs().flatten(), slope.new_ones(1))).max()
            close(actual.to(coarse) / most, slope.to(coarse) / most)
            if case.dtype == torch.float32 and case.scale == case.late == 1 and case.far == 0:
                # 16 u per tanh and per product of sums, u = 2^-24, over |v| of some dozens of
                # units in the scores: 1e-5 in the mean over numbers (see `tiles`).
                error = (actual.double() - slope).norm() / slope.norm()
                assert error < 1e-5, f"{name}: {error}"


class Counter(TorchDispatchMode):
    """Counts the operations of torch other than views and memory."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith("empty") and name != "contiguous":
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def count_launches() -> list[list[str]]:
    """Return what a read launches, and its backward: kernels of Triton and operations of torch."""
    from regard.native.additive.gpu import call, prepare  # noqa: PLC0415

    case = Case(dtype=torch.float32, sizes=(2, 2, 1, 17, 40, 8, 70), last=(1, 1, 17))
    read = tensors(case, torch.device("cpu"))
    order = "query", "keys", "values", "v", "first", "last", "allowed", "bias", "diagonals"
    arguments, counts = [read[name] for name in order], []
    with Counter() as counter:
        for module in (call, prepare):
            # The interpreter computes by numpy, out of sight of the counter.
            module.launch = lambda kernel, *_arguments, **_flags: counter.names.append(
                kernel.__name__
            )
        out, lse = call.forward(*arguments)
        counts.append(counter.names)
        counter.names = []
        call.backward(torch.ones_like(out), *arguments, None, out, lse, ALL)
        counts.append([name for name in counter.names if name != "ones_like"])
    return counts


def patch_once() -> None:
    """Let Triton's interpreter patch its language once per module, not at every call."""
    from triton.runtime import interpreter  # noqa: PLC0415

    original, modules = interpreter._patch_lang, set[str]()
    patched = SimpleNamespace(restore=lambda: None)

    def patch(function: Any) -> Any:
        if function.__module__ not in modules:
            modules.add(function.__module__)
            original(function)
        return patched

    interpreter._patch_lang = patch


def main() -> None:
    """Print, as JSON, the traceback of each case that failed, and the launches of a read."""
    jaxtyping.install_import_hook("regard", "tests.shapes.check_types").__enter__()
    patch_once()
    torch.use_deterministic_algorithms(True)  # NaN in uninitialized memory
    failures: dict[str, Any] = {}
    for name, case in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                check(case, torch.device("cpu"))
            failures[name] = ""
        except Exception:  # noqa: BLE001  # the test of this case reports it
            failures[name] = traceback.format_exc()
    failures["launches"] = count_launches()
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
