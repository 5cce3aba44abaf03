"""Fixtures of the tests of recipes."""

from tests.recipes.fixtures import finished_run as finished_run
from tests.recipes.fixtures import trained_run as trained_run
