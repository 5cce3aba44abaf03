"""Recipes: data, model, metric and predictions of a task, one folder each; training of runs."""
