"""Transformers decoded by compiled loops over packed weights, at the speed of the memory and of the registers."""
