"""Every claim of the lab: its words, its recorded numbers, and its sabotage."""

import json
from pathlib import Path
from typing import Any

import pytest

from regard.lab import tasks
from regard.lab.protocol import Outcome, Trial, as_results, decide, load_module, run_trial
from regard.lab.registry import CLAIMS, known_verdicts
from regard.training.config import TrainConfig

PAGES = Path(__file__).parents[2] / "docs" / "lab"
NAMES = [name for name in CLAIMS if (PAGES / f"{name}.json").exists()]
LONG = (
    "attention-improves",
    "hard-attention",
    "heads",
    "knows-where-to-focus",
    "last-state-forgets",
    "order",
    "relevant-context",
    "self-attentive-rnn",
    "transformer-against-rnn",
)
"""Claims whose sabotage trains for 8 seconds or more: by default two steps, with one seed."""
every_claim = pytest.mark.parametrize("name", NAMES)


def read_record(name: str) -> dict:
    return json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))


@every_claim
def test_claim_quotes_the_lectures(name):
    key, quote = load_module(name).CLAIM.entry
    page = (PAGES.parent / "lectures.md").read_text(encoding="utf-8")
    (entry,) = [part for part in page.split("- <a id=")[1:] if part.startswith(f'"{key}"')]
    assert quote in " ".join(entry.split())


@every_claim
def test_recorded_verdict_is_what_the_recorded_numbers_decide(name):
    claim, record = load_module(name).CLAIM, read_record(name)
    outcome = decide(claim, as_results(claim, record["numbers"]))
    assert outcome.verdict == record["verdict"] == known_verdicts()[name]
    assert record["seeds"] == [0, 1, 2, 3, 4]
    assert [part["text"] for part in record["hypotheses"]] == [
        part.text for part in outcome.hypotheses
    ]


def sabotage(name: str, seeds: tuple[int, ...], *, quick: bool = False) -> Outcome:
    """Decide by trials with sabotage, and recorded numbers of arms that it leaves alone."""
    claim, record = load_module(name).CLAIM, read_record(name)
    numbers = {}
    for arm in claim.arms:
        for seed in seeds:
            key = f"{arm}/{seed}"
            numbers[key] = record["numbers"][key]
            if arm in claim.sabotage or "all" in claim.sabotage:
                trial = Trial(arm, seed, record["rates"][arm], sabotage=True, quick=quick)
                numbers[key] = run_trial(name, trial)
                assert numbers[key].keys() <= record["numbers"][key].keys()
    return decide(claim, as_results(claim, numbers))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in NAMES]
)
def test_sabotage_changes_the_verdict(name):
    claim = load_module(name).CLAIM
    assert set(claim.sabotage) <= {*claim.arms, "all"}
    verdict = sabotage(name, (0, 1)).verdict
    assert verdict != read_record(name)["verdict"]
    assert verdict != "undecided"  # as two seeds have wide intervals


@pytest.mark.parametrize("name", LONG)
def test_sabotage_trains(name, monkeypatch):
    def configure(**options: Any) -> TrainConfig:
        return TrainConfig(**options | {"steps": 2, "warmup": 0, "validate_every": 2})

    monkeypatch.setattr(tasks, "TrainConfig", configure)
    assert sabotage(name, (0,), quick=True).verdict == "none"
