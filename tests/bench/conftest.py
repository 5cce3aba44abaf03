"""The runs that the tests of recipes train, for the tests of bench."""

from tests.recipes.conftest import *  # noqa: F403
