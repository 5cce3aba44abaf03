"""Recipes: the data, model, metric and predictions of a task, one folder each; and the training of
runs."""
