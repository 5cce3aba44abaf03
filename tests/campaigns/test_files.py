"""Sample of the campaign `files`: handmade files, files damaged at random, and every format
undamaged."""

import pytest

from tests.campaigns.files import CAMPAIGN, train_on
from tests.campaigns.files_handmade import HANDMADE
from tests.campaigns.files_specimens import specimen

SAMPLE = 20


@pytest.mark.parametrize(
    "name", ["tsv.gz", "idx.gz", "tar", "flac", "mp3", "mp3 bare", "caf", "npz packed", "tracks"]
)
def test_undamaged_files_are_trained_on(name: str) -> None:
    good = specimen(name)
    outcome = train_on(good, good.mutated[0], good.files[good.mutated[0]], name)
    assert outcome.kind == "accepted", outcome


def test_named_pipe_that_is_written_once_is_enough_for_a_run_and_its_report() -> None:
    outcome = train_on(
        specimen("npz"), "sounds.npz", "pipe", "npz pipe"
    )  # the recordings of the test scenes, too
    assert outcome.kind == "accepted", outcome


def test_damaged_files_are_refused_in_a_line_that_names_them_or_trained_on() -> None:
    numbers = [*range(0, len(HANDMADE), 25), *range(len(HANDMADE), len(HANDMADE) + SAMPLE)]
    outcomes = {number: CAMPAIGN.run(1, number) for number in numbers}
    bad = {
        number: outcome for number, outcome in outcomes.items() if outcome.kind not in CAMPAIGN.fine
    }
    assert bad == {}
    assert {outcome.kind for outcome in outcomes.values()} == {"accepted", "refused"}
