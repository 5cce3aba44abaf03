"""Metrics of the recipes."""
