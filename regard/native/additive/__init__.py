"""Fused additive attention."""
