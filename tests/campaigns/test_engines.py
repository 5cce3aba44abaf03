"""A sample of the campaign of engines."""

import pytest

from tests.campaigns.engines import CAMPAIGN

CASES = 24


@pytest.mark.parametrize("number", range(CASES))
def test_a_sample_of_random_models_is_answered_alike(number: int, unchecked: None) -> None:
    outcome = CAMPAIGN.run(1, number)
    assert outcome.kind in CAMPAIGN.fine, outcome
