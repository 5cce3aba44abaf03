"""Attention visualization: recorded weights, captures, figures and an interactive page."""
