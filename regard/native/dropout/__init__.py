"""Dropout, residual sum and layer norm in one pass over memory, on a CPU."""
