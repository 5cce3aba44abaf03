"""What no model can be asked is refused by every engine alike, and nothing else is."""

import dataclasses
from functools import partial
from typing import Any

import pytest

from regard.data.tokenize import BOS, EOS, PAD
from regard.decode.config import SampleConfig
from regard.engines.registry import prepare
from regard.engines.requests import check_prompts, check_sentences, check_specials
from tests.engines.small import DECODE, ENGINES, SENTENCES, SMALL, VOCAB, speaker, translator

pytestmark = pytest.mark.usefixtures("unchecked")

PLACES = 14
LEARNED = dataclasses.replace(SMALL, layers=1, positions="learned", max_positions=PLACES)
MAKERS: dict[str, Any] = {name: partial(prepare, name) for name in ("torch", *ENGINES)}
OUTSIDE = f"ids must lie in 0 .. {VOCAB - 1}, got"
FEW = f"there are {PLACES} learned positions, but position"


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]


def found(engine: Any, *, sentences: Any = SENTENCES, **changes: Any) -> Any:
    return engine.search(sentences, **{"config": DECODE, "bos": BOS, "eos": EOS, "pad": PAD} | changes)


def gone_on(engine: Any, *, prompts: Any = ((5, 6), (7,)), length: int = 4, **changes: Any) -> Any:
    how = {"window": None, "seeds": [1] * len(prompts), "banned": [PAD, BOS]} | changes
    return engine.generate(prompts, SampleConfig(length=length, temperature=0), **how)


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
        ({"sentences": [[5], [6] * (PLACES + 1)]}, f"{FEW} {PLACES + 1} was asked for"),
    ],
)
def test_search_refuses(make, changes, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is compared below
        found(make(translator(LEARNED)), **changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1]}, "seeds must be one a prompt (2), got 1"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"prompts": [[5], []]}, "prompts must hold at least one token, got none in prompt 1"),
        ({"prompts": [[5], [VOCAB]]}, f"{OUTSIDE} {VOCAB} in prompt 1"),
        ({"prompts": [[-1]]}, f"{OUTSIDE} -1 in prompt 0"),
        ({"banned": [VOCAB]}, f"{OUTSIDE} {VOCAB} in banned"),
        ({"banned": range(VOCAB)}, f"some allowed token must be left, but all {VOCAB} are banned"),
        ({"prompts": [[5], [6] * PLACES], "length": 2}, f"{FEW} {PLACES + 1} was asked for"),
        ({"prompts": [[5]], "length": PLACES + 1}, f"{FEW} {PLACES + 1} was asked for"),
    ],
)
def test_generate_refuses(make, changes, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        gone_on(make(speaker(LEARNED)), **changes)
    assert message in str(caught.value)


def test_ids_are_whole_numbers(make):
    with pytest.raises(TypeError):
        found(make(translator(LEARNED)), sentences=[[5.0]])
    with pytest.raises(TypeError):
        gone_on(make(speaker(LEARNED)), prompts=[["5"]])


def test_of_an_unknown_vocabulary_any_id_is_taken():
    check_sentences([[10**9]], None)
    check_specials(bos=10**9, eos=EOS, pad=PAD, vocab=None)
    check_prompts([[10**9]], seeds=[1], banned=[10**9], window=None, vocab=None)
    with pytest.raises(ValueError, match="got none in prompt 0"):
        check_prompts([[]], seeds=[1], banned=[], window=None, vocab=None)


def test_what_is_just_allowed_is_answered(make):
    engine = make(translator(LEARNED))
    assert found(engine, sentences=[]) == []
    assert len(found(engine, sentences=[[VOCAB - 1], [4] * PLACES])) == 2
    engine = make(speaker(LEARNED))
    assert gone_on(engine, prompts=[]) == []
    assert gone_on(engine, prompts=[[0], [VOCAB - 1]], length=1, banned=range(VOCAB - 1)) == [[VOCAB - 1]] * 2
    # The last token is not read, so it needs no position.
    assert len(gone_on(engine, prompts=[[5]], length=PLACES)[0]) == PLACES
    assert len(gone_on(engine, prompts=[[5] * PLACES], length=3, window=PLACES)[0]) == 3
