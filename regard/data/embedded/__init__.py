"""Embedded and synthetic data, so that every recipe runs without files."""
