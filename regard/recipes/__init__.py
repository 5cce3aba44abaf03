"""Whole runs as plain data and one function each."""
