"""Recurrent cells and encoders, plain or with attention to their own past states."""
