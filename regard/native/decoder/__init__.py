"""Loops of engine `compiled`: packed matrix products, attention, search."""
