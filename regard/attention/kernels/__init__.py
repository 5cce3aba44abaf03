"""Implementations of the read: the reference formula and faster equivalents."""
