"""Fused additive attention for CPUs, in numba."""
