"""A sample of the campaign on damaged run folders; the whole is `python -m tests.campaigns folders`."""

from tests.campaigns.campaign import gather
from tests.campaigns.folders import CAMPAIGN


def test_damaged_run_folders_give_the_same_answer_or_a_refusal() -> None:
    found = gather(CAMPAIGN, seed=5, cases=16, processes=1)
    bad = {number: outcome for number, outcome in found if outcome.kind not in CAMPAIGN.fine}
    assert bad == {}
