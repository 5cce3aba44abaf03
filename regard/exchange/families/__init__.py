"""Families of Transformers' models: their configs and tensors, and those of this package."""
