"""Layers, independent of any task: multi-head attention, positions, feed-forward, add & norm, recurrent cells."""
