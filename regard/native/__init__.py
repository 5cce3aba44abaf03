"""Compiled code: loops in numba and LLVM for CPUs, Triton kernels for GPUs. Loaded by `regard.ops.dispatch` on first use."""
