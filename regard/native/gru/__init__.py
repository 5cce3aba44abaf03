"""Loops over the gates and the additive read of a GRU."""
