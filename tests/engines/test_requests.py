"""Invalid inputs are refused by every engine with the same message, and valid ones are accepted."""

import dataclasses
from functools import partial
from typing import Any

import pytest

from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import SampleConfig
from regard.engines.registry import prepare
from regard.layers.positions.config import LearnedConfig
from tests.engines.small import DECODE, SENTENCES, SMALL, VOCAB, encoder_decoder, language_model

pytestmark = pytest.mark.usefixtures("no_shape_checks")

POSITIONS = 14
LEARNED = dataclasses.replace(SMALL, layers=1, positions=LearnedConfig(max_length=POSITIONS))
OUTSIDE = f"ids must be from 0 to {VOCAB - 1}, got"
TOO_FEW = f"at most {POSITIONS} positions were learned, got"


@pytest.fixture(params=["torch", "compiled"])
def make(request: pytest.FixtureRequest) -> Any:
    return partial(prepare, request.param)


def search(engine: Any, *, sentences: Any = SENTENCES, **changes: Any) -> Any:
    return engine.search(
        sentences, **{"config": DECODE, "bos": BOS, "eos": EOS, "pad": PAD} | changes
    )


def generate(engine: Any, *, prompts: Any = ((5, 6), (7,)), length: int = 4, **changes: Any) -> Any:
    options = {"window": None, "seeds": [1] * len(prompts), "banned": [PAD, BOS]} | changes
    return engine.generate(prompts, SampleConfig(length=length, temperature=0), **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentences": [[5], []]}, "sentences must hold at least one id, got none in sentence 1"),
        ({"sentences": [[5], [6, VOCAB]]}, f"{OUTSIDE} {VOCAB} in sentence 1"),
        ({"sentences": [[-1], [6]]}, f"{OUTSIDE} -1 in sentence 0"),
        ({"bos": VOCAB}, f"{OUTSIDE} {VOCAB} in bos, eos, pad"),
        ({"eos": -1}, f"{OUTSIDE} -1 in bos, eos, pad"),
        ({"pad": VOCAB}, f"{OUTSIDE} {VOCAB} in bos, eos, pad"),
        ({"eos": BOS}, "eos"),
        ({"sentences": [[5], [6] * (POSITIONS + 1)]}, f"{TOO_FEW} {POSITIONS + 1}"),
    ],
)
def test_search_refuses(make, changes, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the message is compared below
        search(make(encoder_decoder(LEARNED)), **changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1]}, "seeds must be one per prompt (2), got 1"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"prompts": [[5], []]}, "prompts must hold at least one token, got none in prompt 1"),
        ({"prompts": [[5], [VOCAB]]}, f"{OUTSIDE} {VOCAB} in prompt 1"),
        ({"prompts": [[-1]]}, f"{OUTSIDE} -1 in prompt 0"),
        ({"banned": [VOCAB]}, f"{OUTSIDE} {VOCAB} in banned"),
        ({"banned": range(VOCAB)}, f"banned must leave at least one id of {VOCAB}, got all"),
        ({"prompts": [[5], [6] * POSITIONS], "length": 2}, f"{TOO_FEW} {POSITIONS + 1}"),
        ({"prompts": [[5]], "length": POSITIONS + 1}, f"{TOO_FEW} {POSITIONS + 1}"),
    ],
)
def test_generate_refuses(make, changes, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        generate(make(language_model(LEARNED)), **changes)
    assert message in str(error.value)


def test_a_context_that_slides_needs_positions_that_are_not_added(make):
    engine = make(language_model(LEARNED))
    message = "context must be restart or last, since its positions are added to the items"
    with pytest.raises(ValueError, match=message):
        engine.generate([[5]], SampleConfig(context="slide"), window=6, seeds=[1], banned=[])


def test_ids_must_be_integers(make):
    with pytest.raises(TypeError):
        search(make(encoder_decoder(LEARNED)), sentences=[[5.0]])
    with pytest.raises(TypeError):
        generate(make(language_model(LEARNED)), prompts=[["5"]])


def test_inputs_at_the_limits_are_accepted(make):
    engine = make(encoder_decoder(LEARNED))
    assert search(engine, sentences=[]) == []
    assert len(search(engine, sentences=[[VOCAB - 1], [4] * POSITIONS])) == 2
    engine = make(language_model(LEARNED))
    assert generate(engine, prompts=[]) == []
    only_last = generate(engine, prompts=[[0], [VOCAB - 1]], length=1, banned=range(VOCAB - 1))
    assert only_last == [[VOCAB - 1]] * 2
    # The last token is not read, so it needs no position.
    assert len(generate(engine, prompts=[[5]], length=POSITIONS)[0]) == POSITIONS
    assert len(generate(engine, prompts=[[5] * POSITIONS], length=3, window=POSITIONS)[0]) == 3
