"""Positional encodings: what the position of an item adds to it, or changes in the attention to
it."""
