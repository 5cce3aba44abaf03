"""A sample of the campaign `options`: `python -m tests.campaigns options` runs the whole."""

from tests.campaigns.campaign import gather
from tests.campaigns.options import CAMPAIGN


def test_options_at_random_are_taken_or_refused_in_one_line() -> None:
    found = gather(CAMPAIGN, seed=1, cases=24, processes=2)
    assert [(number, one) for number, one in found if one.kind not in CAMPAIGN.fine] == []
