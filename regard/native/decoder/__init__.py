"""Loops of the compiled decoder: packed matrix products, attention, search."""
