"""Hard attention in a recipe: training by each estimator, resuming, decoding, recorded weights."""

from pathlib import Path

import pytest
import torch

from regard.cli.main import main
from regard.errors import UserError
from regard.recipes.load import load
from tests.recipes.toy import SOURCES, toy_arguments

HARD = ["--model.core.choice", "hard", "--model.core.hard"]
REINFORCE = [*HARD, "reinforce", "--train.accumulate", "2", "--train.schedule", "constant"]
pytestmark = pytest.mark.filterwarnings("ignore:engine 'torch' is used:UserWarning")


def train(folder: Path, *options: str, steps: int, core: str = "transformer") -> Path:
    folder.mkdir(exist_ok=True)
    assert main(["train", *toy_arguments(folder, core=core, steps=steps), *options]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("hard"), *REINFORCE, steps=8)


def test_run_with_sampled_keys_resumes_bit_for_bit(run, tmp_path):
    other = train(tmp_path / "other", *REINFORCE, steps=3)
    train(tmp_path / "other", *REINFORCE, steps=8)
    for part in ("model", "optimizer"):
        path = f"checkpoints/step-00000008/{part}.safetensors"
        assert (run / path).read_bytes() == (other / path).read_bytes()


def test_recorded_weights_are_zero_and_one(run):
    (sample,) = load(run).look(SOURCES[:1])
    kinds = {attention_map.kind for attention_map in sample.find()}
    assert kinds == {"encoder self", "decoder self", "cross"}
    for attention_map in sample.find():
        weights = attention_map.weights
        assert set(weights.flatten().tolist()) == {0.0, 1.0}
        assert torch.equal(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_answers_are_the_same_again_and_engines_refuse_with_the_reason(run):
    first, second = (load(run, engine="torch").predict(SOURCES[:5]) for _ in range(2))
    assert first == second
    reason = r"its core\.encoder\.0\.attention\.read\.choice is a Hard, which only torch"
    with pytest.raises(UserError, match=reason):
        load(run, engine="compiled").predict(SOURCES[:1])


DATES = (
    "--data.locales en de es --data.epoch-size 20000 --data.val-size 500 --data.test-size 1000 "
    "--val-sample 500 --source-tokenizer.vocab-size 300 --model.core recurrent "
    "--model.core.width 64 --model.core.hidden 128 --model.core.attention-hidden 64 "
    "--train.batch-tokens 2048 --train.warmup 100 --train.device cpu --train.validate-every 200"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "steps"), [("straight-through", 600), ("gumbel", 600), ("reinforce", 1600)]
)
def test_dates_train_to_ninety_percent_with_hard_attention(estimator, steps, tmp_path):
    """Without attention the same model reaches 11 % in 600 steps (benchmarks/README.md)."""
    options = [*HARD, estimator, "--train.steps", str(steps), "--run", str(tmp_path / "run")]
    assert main(["train", "dates", *DATES.split(), *options]) == 0
    assert load(tmp_path / "run").evaluate()["exact_match"] >= 90
