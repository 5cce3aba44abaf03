"""Compiled code: loops in numba and LLVM for CPUs, Triton kernels for GPUs. See regard.ops."""
