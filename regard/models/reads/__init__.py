"""Readers, which embed an input as items."""
