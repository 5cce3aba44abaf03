"""Transformers decoded by compiled loops over packed weights: as fast as this machine's memory and its registers allow."""

__all__: list[str] = []
