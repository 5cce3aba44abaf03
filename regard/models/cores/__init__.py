"""Cores: encode a source as a memory and read it for every target."""
