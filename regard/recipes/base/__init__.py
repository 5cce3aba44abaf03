"""Shared parts of recipes: base classes, settings, engines, text pairs and images."""
