"""Recipes: the data, model and metric of whole training runs, configured by dataclasses."""
