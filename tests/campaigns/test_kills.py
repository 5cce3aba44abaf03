"""A sample of the campaign on disturbed runs; the whole is `python -m tests.campaigns kills`."""

from tests.campaigns.campaign import gather
from tests.campaigns.kills import CAMPAIGN


def test_disturbed_runs_end_as_undisturbed_ones() -> None:
    found = gather(CAMPAIGN, seed=5, cases=6, processes=1)
    bad = {number: outcome for number, outcome in found if outcome.kind not in CAMPAIGN.fine}
    assert bad == {}
