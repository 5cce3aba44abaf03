"""Fused additive attention for GPUs, in Triton."""
