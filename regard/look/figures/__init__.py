"""Figures with matplotlib."""
