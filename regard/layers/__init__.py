"""Layers, independent of any task: linear maps, multi-head attention, positions, feed-forward,
residual connections."""
