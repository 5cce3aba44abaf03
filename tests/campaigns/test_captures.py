"""A sample of the campaign `captures`: `python -m tests.campaigns captures` runs the whole."""

from tests.campaigns.campaign import gather
from tests.campaigns.captures import CAMPAIGN


def test_damaged_captures_are_drawn_or_refused_in_one_line() -> None:
    found = gather(CAMPAIGN, seed=1, cases=12, processes=2)
    assert [(number, one) for number, one in found if one.kind not in CAMPAIGN.fine] == []
