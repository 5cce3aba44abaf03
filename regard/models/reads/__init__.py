"""Readers: what turns an input into items."""
