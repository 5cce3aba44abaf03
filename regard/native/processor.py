"""Vector registers and instructions of this processor, as the loops of the decoder use them."""

from llvmlite import binding

_FEATURES = binding.get_host_cpu_features()
_IS_WIDE = bool(_FEATURES.get("avx512f"))
LANES = 16 if _IS_WIDE else 8
"""Number of float32 in a vector register."""
TILE_ROWS = 12 if _IS_WIDE else 6
"""Rows of a tile: two registers of sums per row, with some left for the operands."""
IS_SUPPORTED_CPU = _IS_WIDE or bool(_FEATURES.get("avx2") and _FEATURES.get("fma"))
"""True if the processor has these registers and fused multiply-add."""
HAS_BYTE_PRODUCTS = _IS_WIDE and bool(_FEATURES.get("avx512vnni"))
"""True if the processor multiplies and adds four bytes at a time."""
PAIR_PRODUCT = "llvm.x86.avx512bf16.dpbf16ps.512"
_DECLARATION = f"declare <16 x float> @{PAIR_PRODUCT}(<16 x float>, <16 x i32>, <16 x i32>)"
# LLVM before 17 uses i32 where later versions use bfloat.
HAS_PAIR_PRODUCTS = (
    _IS_WIDE
    and bool(_FEATURES.get("avx512bf16"))
    and "bfloat" in str(binding.parse_assembly(_DECLARATION))
)
"""True if processor and compiler support products of pairs of bfloat16."""
