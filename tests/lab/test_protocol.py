"""Protocol of the lab: intervals, verdicts, rates, controls, interrupted claims."""

import json
import math
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from regard.data.batches import Batch
from regard.errors import UserError
from regard.lab import page, protocol, session
from regard.lab.protocol import Bound, Claim, Difference, Trial, decide, interval, run_trial
from regard.lab.tasks import Learner, train


def run(trial: Trial) -> dict[str, float]:
    """Return the score."""
    noise = float(torch.rand(())) / 100
    gain = 0.0 if trial.arm == "none" or trial.sabotage else 0.5
    score = 0.2 + gain + noise - abs(trial.rate - 0.01)
    return {"score": score, "quick": float(trial.quick)}


CLAIM = Claim(
    entry=("B.10", ""),
    sabotage={"attention": ""},
    arms=("none", "attention"),
    rates=(0.1, 0.01),
    tuned_by="score",
    hypotheses=(Difference("score", more="attention", less="none", margin=0.3),),
    controls=(Bound("score", "none", at_least=0.1),),
)


@pytest.fixture(autouse=True)
def _toy_claim(monkeypatch):
    toy = ModuleType("toy", "Claim of the tests.")
    vars(toy).update(__file__=__file__, run=run, CLAIM=CLAIM)
    for module in (protocol, session, page):
        monkeypatch.setattr(module, "load_module", lambda name: toy)


def results(none: list[float], attention: list[float]):
    numbers = {"none": none, "attention": attention}
    return {arm: {s: {"score": v} for s, v in enumerate(each)} for arm, each in numbers.items()}


def test_interval_is_students():
    # mean 2, standard deviation 1, t(2, 0.975) = 4.3027 (Student's table)
    low, high = interval([1, 2, 3])
    assert low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4)
    assert high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4)
    assert interval([5.0]) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("attention", "verdict"),
    [
        ([0.8, 0.81, 0.79], "holds"),
        ([0.3, 0.31, 0.29], "refuted"),
        ([0.2, 0.9, 0.6], "undecided"),
        ([0.5, 0.5, 0.5], "undecided"),  # the margin itself
    ],
)
def test_differences_decide_by_interval_and_margin(attention, verdict):
    assert decide(CLAIM, results([0.2, 0.2, 0.2], attention)).verdict == verdict


def test_pairs_are_compared_seed_by_seed():
    # The seeds differ by far more than the arms do within a pair.
    none, attention = [0.2, 5.2, -3.0], [0.6, 5.6, -2.6]
    claim = replace(CLAIM, controls=())
    assert decide(claim, results(none, attention)).verdict == "holds"
    assert decide(claim, results(none, [5.6, -2.6, 0.6])).verdict == "undecided"


def test_failed_control_is_invalid_even_if_the_hypothesis_is_refuted():
    assert decide(CLAIM, results([0.0, 0.0], [0.9, 0.9])).verdict == "invalid"
    assert decide(CLAIM, results([0.0, 0.0], [0.0, 0.0])).verdict == "invalid"


def test_one_refuted_hypothesis_refutes_and_one_undecided_leaves_undecided():
    holds = Difference("score", more="attention", less="none", margin=0.1)
    undecided, refuted = replace(holds, margin=0.6), replace(holds, margin=0.9)
    numbers = results([0.2] * 5, [0.8, 0.82, 0.78, 0.81, 0.79])
    for hypotheses, verdict in (
        ((holds, holds), "holds"),
        ((holds, undecided), "undecided"),
        ((refuted, undecided, holds), "refuted"),
    ):
        assert decide(replace(CLAIM, hypotheses=hypotheses), numbers).verdict == verdict


def test_nothing_is_decided_by_one_seed_or_a_quick_run():
    assert decide(CLAIM, results([0.2], [0.9])).verdict == "none"
    bound = replace(CLAIM, hypotheses=CLAIM.controls)
    outcome = decide(bound, results([0.2], [0.9]))
    assert (outcome.verdict, outcome.hypotheses[0].verdict) == ("none", "none")
    assert decide(CLAIM, results([0.2] * 3, [0.9] * 3), quick=True).verdict == "none"


def test_one_seed_is_a_counterexample_of_a_bound():
    claim = replace(CLAIM, hypotheses=(Bound("score", "none", at_most=0.2),))
    assert decide(claim, results([0.2] * 3, [0.9] * 3)).verdict == "holds"
    assert decide(claim, results([0.2, 0.2, 0.21], [0.9] * 3)).verdict == "refuted"
    claim = replace(claim, controls=())
    assert decide(claim, results([0.2, math.nan, 0.2], [0.9] * 3)).verdict == "refuted"


def test_numbers_of_a_trial_depend_on_its_seed_alone():
    trial = Trial("none", 3, 0.01)
    torch.manual_seed(9)
    first, state = run_trial("toy", trial), torch.get_rng_state()
    torch.rand(7)
    assert run_trial("toy", trial) == first
    torch.manual_seed(9)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's generator goes on as before
    assert run_trial("toy", replace(trial, seed=4)) != first


def run_claim(folder, **options):
    defaults = {"seeds": (0, 1, 2), "quick": False, "force": False, "pool": None}
    return session.run_claim("heads", out=folder, **(defaults | options))


def test_rates_are_chosen_on_another_seed(tmp_path, monkeypatch):
    seen = []

    def spy(name, trials, pool):
        seen.append({trial.seed for trial in trials})
        return ((trial, run_trial(name, trial)) for trial in trials)

    monkeypatch.setattr(protocol, "run_all", spy)
    monkeypatch.setattr(session, "run_all", spy)
    record, text = run_claim(tmp_path)
    assert record["rates"] == {"none": 0.01, "attention": 0.01}
    assert seen == [{protocol.TUNING_SEED}, {0, 1, 2}]
    assert record["verdict"] == "holds"
    assert "Verdict: holds" in text


def test_interrupted_claim_keeps_finished_trials_and_ends_as_one_that_was_not(
    tmp_path, monkeypatch
):
    whole, _ = run_claim(tmp_path / "whole")

    def stop_after_three(name, trials, pool):
        for trial in trials[:3]:
            yield trial, run_trial(name, trial)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "run_all", stop_after_three)
        with pytest.raises(KeyboardInterrupt):
            run_claim(tmp_path / "cut")
    saved = json.loads((tmp_path / "cut" / "heads.json").read_text())
    assert len(saved["numbers"]) == 3
    with pytest.raises(UserError, match="--force"):  # other seeds are another experiment
        run_claim(tmp_path / "cut", seeds=(0, 1))
    ran = []
    monkeypatch.setattr(
        session,
        "run_all",
        lambda name, trials, pool: ((ran.append(t), (t, run_trial(name, t)))[1] for t in trials),
    )
    continued, _ = run_claim(tmp_path / "cut")
    assert len(ran) == 3
    assert continued["numbers"] == whole["numbers"]
    assert continued["hypotheses"] == whole["hypotheses"]


def test_finished_results_are_kept_unless_forced(tmp_path):
    record, _ = run_claim(tmp_path)
    written = tmp_path / "heads.md"
    written.write_text("mine")
    kept, text = run_claim(tmp_path)  # so that `regard lab all` goes on with the next claim
    assert (kept["numbers"], text) == (record["numbers"], "mine")
    with pytest.raises(UserError, match="other seeds, options or code: --force"):
        run_claim(tmp_path, quick=True)
    assert written.read_text() == "mine"
    run_claim(tmp_path, force=True)
    text = written.read_text()
    assert "**Verdict: holds**" in text
    assert "![" in text
    assert (tmp_path / "heads.svg").is_file()


@pytest.mark.parametrize(
    ("content", "problem"), [("{", "damaged"), ("[]", "damaged"), ('{"claim": "heads"}', "--force")]
)
def test_file_of_something_else_is_named(tmp_path, content, problem):
    (tmp_path / "heads.json").write_text(content)
    with pytest.raises(UserError, match=rf"heads\.json.*{problem}"):
        run_claim(tmp_path)


def test_quick_trials_decide_nothing(tmp_path):
    record, text = run_claim(tmp_path, quick=True)
    assert "regard lab heads --seeds 0 1 2 --quick" in text
    assert "holds" not in text
    assert record["numbers"]["none/0"]["quick"] == 1
    assert record["verdict"] == "none"
    assert "nothing can be decided" in text


def test_killed_worker_is_reported_in_one_line():
    class KilledPool(ProcessPoolExecutor):
        def submit(self, *_):
            future = Future()
            future.set_exception(BrokenProcessPool("terminated abruptly"))
            return future

    with pytest.raises(UserError, match=r"toy: a process of the lab was killed"):
        list(protocol.run_all("toy", [Trial("none", 0)], KilledPool()))


def test_quick_training_takes_a_tenth_of_the_steps():
    drawn = []

    def make(random: torch.Generator) -> Batch:
        drawn.append(1)
        return Batch(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64))

    model = Learner(torch.nn.Linear(1, 2), predict=lambda layer, source: layer(source))
    train(model, make, Trial("all", 0, 0.01, quick=True), steps=40)
    assert len(drawn) == 4
