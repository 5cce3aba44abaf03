"""Fixtures of the tests of bench: the runs of the tests of recipes."""

from tests.recipes.fixtures import finished_run as finished_run
