"""Layers, independent of any task."""
