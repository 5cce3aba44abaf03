"""Loops over the gates of a GRU, and the additive attention of its decoder."""
