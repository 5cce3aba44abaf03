"""Decoding: greedy search, beam search and sampling for any model with `start` and `step`."""
