"""Readers: embed tokens, images, series, trajectories or sounds as items."""
