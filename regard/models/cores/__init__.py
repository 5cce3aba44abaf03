"""Cores: what turns a source into a memory and reads it for every target."""
