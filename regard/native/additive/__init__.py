"""Fused additive attention, for CPUs and GPUs (operator: regard.ops.additive)."""
