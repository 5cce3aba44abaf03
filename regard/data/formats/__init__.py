"""Formats of tools for annotation; docs/formats.md has an example of each."""
