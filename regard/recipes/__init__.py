"""Recipes: a task from its data to its answers, one folder each."""
