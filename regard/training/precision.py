"""Precision of training: float32, bfloat16, or the faster of the two.

On a CPU with bfloat16 instructions `auto` is decided by a measurement, because some CPUs multiply
bfloat16 more slowly than float32:

    y = x W^T + b, forward and backward, as training computes it in each type
    bfloat16 if its fastest time is at most 4/5 of float32's, else float32

The margin covers the cost of bfloat16 outside of products. The measurement takes less than 0.2 s.
Its result is saved in the user's cache folder, one file for each combination of processor, number
of threads and software versions:

    CACHE/regard/precision-KEY.json    {"machine", "seconds", "checksum"}

If the file is missing, damaged or of another machine, the measurement is repeated; a file that
cannot be written is not an error. On CUDA, `auto` is bfloat16 if the device multiplies it natively.
On all other devices it is float32.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from regard import __version__
from regard.errors import UserError
from regard.ops.linear import linear
from regard.system.files import read_json
from regard.system.fingerprints import add_checksum, digest, encode_canonically, verify_checksum
from regard.system.writing import write_atomically

PRECISIONS: tuple[Literal["float32"], Literal["bfloat16"]] = ("float32", "bfloat16")

_IN, _OUT = 128, 512
"""Sizes of the weight: those of the feed-forward layer of the recipe `dates`."""
_LEAST_ROWS, _MOST_ROWS = 256, 4096
_LEAST_ROUNDS = 3
"""Minimum rounds of a valid measurement; there are fewer only if the machine is busy or the
products are very slow."""
_BUDGET = 0.12
"""Time limit of the measurement in seconds."""
_MARGIN = 0.8
_LIMIT = 1 << 16
"""Maximum size of a file in the cache, in bytes."""
_VARIABLES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
"""Prefixes of environment variables that change how products are computed."""


class Precision(NamedTuple):
    """Precision of training, with the reason."""

    name: Literal["float32", "bfloat16"]
    """Precision of matrix products."""
    reason: str
    """Reason for the choice of `auto`; empty if the setting was not auto."""


def resolve_precision(
    setting: Literal["auto", "float32", "bfloat16"], device: torch.device
) -> Precision:
    """Return the precision for a setting (float32, bfloat16 or auto) on this device."""
    if setting != "auto":
        return Precision(setting, "")
    is_native = has_native_bfloat16(device)
    if device.type != "cpu" or not is_native:
        kind = "processor" if device.type == "cpu" else f"{device.type} device"
        return Precision(
            PRECISIONS[is_native],
            f"the {kind} has {'' if is_native else 'no '}instructions for bfloat16",
        )
    seconds, origin = _seconds(_machine())
    if seconds is None:
        return Precision("float32", origin)
    ratio = seconds["bfloat16"] / seconds["float32"]
    name = PRECISIONS[ratio <= _MARGIN]
    return Precision(
        name,
        f"a bfloat16 product takes {ratio:.2f} times as long as a float32 product here ({origin})",
    )


def has_native_bfloat16(device: torch.device) -> bool:
    """Return True if the device has bfloat16 instructions. On a CPU they may be slower than those
    for float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return False


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Time of a product in each precision."""

    seconds: dict[str, float]
    """Time of the fastest product, by precision."""
    rows: int
    """Number of rows of x."""
    rounds: int
    """Number of times both products were repeated with this number of rows."""

    @property
    def gflops(self) -> dict[str, float]:
        """GFLOP/s of the fastest product, forward and backward."""
        return {
            name: 3 * 2e-9 * self.rows * _IN * _OUT / seconds
            for name, seconds in self.seconds.items()
        }


def measure_products(time_product: Callable[[str, int], float] | None = None) -> Measurement:
    """Measure the time of a product in each precision.

    The number of rows is doubled up to 4,096 while time allows. Both precisions are measured
    alternately until the time limit, so that other load on the machine slows both.

    time_product: function (precision, rows) that returns the seconds of one product; for tests.
    """
    timer = time_product or _Products().time
    spent = 0.0

    def time_round(rows: int) -> dict[str, float]:
        nonlocal spent
        seconds: dict[str, float] = {name: timer(name, rows) for name in PRECISIONS}
        spent += sum(seconds.values())
        return seconds

    rows, rounds = _LEAST_ROWS, 0
    best = time_round(rows)  # the first products of a process take longer, as kernels are prepared
    while rows < _MOST_ROWS and 2 * _LEAST_ROUNDS * 2 * sum(best.values()) < _BUDGET - spent:
        rows, rounds = 2 * rows, 0
        best = time_round(rows)
    while sum(best.values()) < _BUDGET - spent:
        latest = time_round(rows)
        best = {name: min(seconds, latest[name]) for name, seconds in best.items()}
        rounds += 1
    return Measurement(seconds=best, rows=rows, rounds=rounds)


def cache_folder() -> Path | None:
    """Return the cache folder of regard for the current user; None if there is none."""
    if sys.platform == "win32":
        variable, default = "LOCALAPPDATA", "~/AppData/Local"
    else:
        variable, default = (
            "XDG_CACHE_HOME",
            "~/Library/Caches" if sys.platform == "darwin" else "~/.cache",
        )
    folder = Path(os.environ.get(variable) or os.path.expanduser(default), "regard")
    return folder if folder.is_absolute() else None


class _Products:
    """Products of ones, forward and backward, without random numbers."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(_OUT, _IN, dtype=torch.float32, device="cpu"))
        self.bias = nn.Parameter(torch.ones(_OUT, dtype=torch.float32, device="cpu"))

    def time(self, precision: str, rows: int) -> float:
        """Return the seconds of one product."""
        x = torch.ones(rows, _IN, dtype=torch.float32, device="cpu", requires_grad=True)
        self.weight.grad = self.bias.grad = None
        start = time.perf_counter()
        with torch.enable_grad():
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                y = linear(x, self.weight, self.bias)
            y.sum().backward()
        return time.perf_counter() - start


def _machine() -> dict[str, Any]:
    """Return the properties that the speed of products depends on, as JSON."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    properties = {
        "processor": dict(torch.cpu.get_capabilities()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "onednn": torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled),
        "float32": torch.get_float32_matmul_precision(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "regard": __version__,
        "environment": {
            name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)
        },
    }
    return json.loads(json.dumps(properties, default=str))


def _seconds(machine: dict[str, Any]) -> tuple[dict[str, float] | None, str]:
    """Return the seconds of a product in each precision on this machine, and their origin as text.

    The seconds are None if the machine is too busy for a measurement.
    """
    folder = cache_folder()
    key = digest([encode_canonically(machine)])[:16]
    path = folder / f"precision-{key}.json" if folder else None
    with suppress(ValueError):
        if path:
            return _read(path, machine), f"measured before, {path}"
    measurement = measure_products()
    if measurement.rounds < _LEAST_ROUNDS:
        return None, "the machine is too busy to measure whether bfloat16 is faster"
    seconds = measurement.seconds
    if path is None:
        return seconds, "measured now, not saved: the user has no cache folder"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            path,
            json.dumps(add_checksum({"machine": machine, "seconds": seconds}), indent=1) + "\n",
        )
    except (UserError, OSError) as error:
        return seconds, f"measured now, not saved: {error}"
    return seconds, f"measured now, saved in {path}"


def _read(path: Path, machine: dict[str, Any]) -> dict[str, float]:
    """Return the seconds saved in a file. Raises ValueError if it is damaged or of another
    machine."""
    content = read_json(path, limit=_LIMIT)
    seconds = verify_checksum(path, content).get("seconds") if isinstance(content, dict) else None
    if (
        not isinstance(seconds, dict)
        or content.get("machine") != machine
        or set(seconds) != set(PRECISIONS)
    ):
        raise UserError(f"{path}: must hold this machine and the seconds of each precision")
    if not all(
        isinstance(value, float) and math.isfinite(value) and value > 0
        for value in seconds.values()
    ):
        raise UserError(f"{path}: seconds must be positive numbers")
    return seconds
