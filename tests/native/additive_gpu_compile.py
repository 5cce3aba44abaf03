"""Compile the GPU kernels of additive attention without a GPU: errors beyond the interpreter's.

    python -m tests.native.additive_gpu_compile [80 90]

Prints the registers and spilled bytes of each thread, by Triton's own assembler, for each compute
capability.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from regard.native.additive.gpu.backward import keys_kernel, query_kernel
from regard.native.additive.gpu.call import TILES
from regard.native.additive.gpu.finish import finish_kernel, merge_kernel
from regard.native.additive.gpu.forward import read_kernel
from regard.native.additive.gpu.prepare import Tiles, prepare_kernel

INPUT_POINTERS = (
    "query", "keys", "values", "v", "grad_out", "bias", "diagonals", "grad_query", "grad_keys",
    "grad_values", "grad_v",
)  # fmt: skip
"""Pointers of the dtype of the inputs; all others hold sums, except masks and ranges."""

INTEGER_POINTERS = {"first": "*i64", "last": "*i64", "allowed": "*u8"}
SIZES = (
    "heads", "key_heads", "num_queries", "num_keys", "query_padded", "keys_padded", "units", "dim",
    "value_dim", "splits", "query_splits", "keys_splits", "slices", "query_slices", "keys_slices",
    "v_heads", "v_stride", "length",
)  # fmt: skip
TUPLES = {"strides": ("i64",) * 16, "bias_strides": ("i64",) * 4}
OF_RULES = (
    "allowed", "bias", "diagonals", "grad_bias", "grad_diagonals", "first", "last",
)  # fmt: skip


def compile_kernel(
    kernel: Any,
    tiles: Tiles,
    constants: dict[str, Any],
    *,
    dtype: str,
    has_rules: bool,
    target: int,
) -> str:
    """Compile one kernel and return its register use and spills."""
    wide = "fp64" if dtype == "fp64" else "fp32"
    constants = {
        "OWN": tiles.own, "OTHER": tiles.other, "ROWS": 32, "LANES": 32,
        "FAST": wide == "fp32", "WIDE": tl.dtype(wide), "ATOMIC": has_rules, **constants,
    }  # fmt: skip
    if not has_rules:
        constants |= dict.fromkeys(OF_RULES)
    types: dict[str, Any] = dict.fromkeys(kernel.arg_names, f"*{wide}") | dict.fromkeys(
        INPUT_POINTERS, f"*{dtype}"
    )
    types |= (
        dict.fromkeys(SIZES, "i32")
        | INTEGER_POINTERS
        | TUPLES
        | dict.fromkeys(constants, "constexpr")
    )
    types = {name: types[name] for name in kernel.arg_names}
    if "out" in types:
        types["out"] = f"*{dtype}"
    positions = {name: (index,) for index, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        types,
        {positions[name]: value for name, value in constants.items() if name in positions},
        {
            positions[name]: [["tt.divisibility", 16]]
            for name, kind in types.items()
            if str(kind)[0] == "*"
        },
    )
    options = {"num_warps": tiles.warps, "num_stages": 1, "maxnreg": tiles.registers}
    code = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options).asm[
        "cubin"
    ]
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        use = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return " ".join(re.findall(r"(?:REG|STACK):\d+", use))


def compile_all(targets: list[int]) -> None:
    """Compile every kernel in its launch sizes, with and without masks and biases."""
    forward = dict.fromkeys(("out", "grad_out", "grad_rows", "delta"))
    free = TILES._replace(registers=None)
    launches: list[tuple[Any, Tiles, dict[str, Any]]] = [
        *((kernel, TILES, {}) for kernel in (read_kernel, query_kernel, keys_kernel)),
        *((kernel, TILES.fit(5), {}) for kernel in (read_kernel, query_kernel, keys_kernel)),
        (prepare_kernel, free, forward),
        *((kernel, free, {}) for kernel in (prepare_kernel, merge_kernel, finish_kernel)),
    ]
    for target in targets:
        for kernel, tiles, constants in launches:
            for dtype in ("fp32", "bf16", "fp64"):
                for has_rules in (False, True):
                    use = compile_kernel(
                        kernel, tiles, constants, dtype=dtype, has_rules=has_rules, target=target
                    )
                    rules = "with rules" if has_rules else ""
                    print(
                        f"sm_{target} {kernel.__name__:>14} own={tiles.own:<3} {dtype} {rules:10} "
                        f"{use}",
                        flush=True,
                    )


if __name__ == "__main__":
    compile_all([int(number) for number in sys.argv[1:]] or [80, 90])
