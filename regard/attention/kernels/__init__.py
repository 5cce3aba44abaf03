"""Kernels: the formula of a read, and faster implementations of it."""
