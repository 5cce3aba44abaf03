"""Kernels: the reference formula of a read and faster implementations that give the same
numbers."""
