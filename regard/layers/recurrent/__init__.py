"""Recurrent cells and encoders."""
