"""Engines publish tokens while they decode: prefixes of the outputs, which stay the same."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.progress import DecodingProgress
from regard.engines.engine import Engine
from regard.engines.registry import prepare
from regard.errors import UserError
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig
from tests.engines.small import DECODE, VOCAB, encoder_decoder, language_model, vary

pytestmark = pytest.mark.usefixtures("no_shape_checks")
GREEDY = DecodeConfig(beam=1, max_length=20, max_extra=20, batch_tokens=40)
"""Several batches of sentences."""


def recurrent() -> Any:
    torch.manual_seed(3)
    config = ModelConfig(core=RecurrentConfig(hidden=8))
    return vary(build(config, source_vocab=VOCAB, target_vocab=VOCAB))


def make_sentences() -> list[list[int]]:
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 9, (13,), generator=draw).tolist()
    return [torch.randint(4, VOCAB, (length,), generator=draw).tolist() for length in lengths]


def search(engine: Engine, config: DecodeConfig = GREEDY, *, eos: int = 11) -> list[list[int]]:
    found = engine.search(make_sentences(), config=config, bos=BOS, eos=eos, pad=PAD)
    lengths = {best.length for best, *_ in found}
    assert len(lengths) > 3  # outputs end at different steps
    return [best.tokens for best, *_ in found]


def generate(engine: Engine, config: SampleConfig) -> list[list[int]]:
    prompts = make_sentences()
    seeds = list(range(len(prompts)))
    return engine.generate(prompts, config, window=6, seeds=seeds, banned=[PAD, BOS])


def generate_greedily(engine: Engine) -> list[list[int]]:
    return generate(engine, SampleConfig(length=9, temperature=0))


def generate_randomly(engine: Engine) -> list[list[int]]:
    return generate(engine, SampleConfig(length=9, temperature=1.0))


@pytest.mark.parametrize(
    ("name", "workers", "make", "decode"),
    [
        ("torch", 1, encoder_decoder, search), ("torch", 1, recurrent, partial(search, eos=12)),
        ("compiled", 1, encoder_decoder, search), ("compiled", 2, encoder_decoder, search),
        ("torch", 1, language_model, generate_greedily),
        ("torch", 1, language_model, generate_randomly),
        ("compiled", 1, language_model, generate_greedily),
        ("compiled", 2, language_model, generate_greedily),
        ("compiled", 2, language_model, generate_randomly),
    ],
)  # fmt: skip
def test_published_tokens_are_those_of_the_outputs(name, workers, make, decode):
    engine, progress = prepare(name, make(), workers=workers), DecodingProgress()
    expected = decode(engine)
    with progress.follow():
        assert decode(engine) == expected
    assert [progress.tokens(number) for number in range(len(expected))] == expected
    decode(engine)
    assert progress.tokens(len(expected)) == []


@pytest.mark.parametrize("name", ["torch", "compiled"])
def test_a_beam_search_is_refused(name):
    engine = prepare(name, encoder_decoder())
    with (
        DecodingProgress().follow(),
        pytest.raises(UserError, match="tokens can be read while decoding only with beam 1"),
    ):
        search(engine, DECODE)


def read_meanwhile(decode: Callable[[], list[list[int]]]) -> list[list[list[int]]]:
    """Decode in another thread; return the tokens of all outputs at several times, then all."""
    progress, results = DecodingProgress(), list[list[list[int]]]()

    def run() -> None:
        with progress.follow():
            results.append(decode())

    thread, readings = threading.Thread(target=run), []
    thread.start()
    while thread.is_alive():
        readings.append([progress.tokens(number) for number in range(len(make_sentences()))])
        time.sleep(0.001)
    thread.join()
    return readings + results


@pytest.mark.parametrize("name", ["torch", "compiled"])
@pytest.mark.parametrize("make", [encoder_decoder, language_model])
def test_another_thread_sees_outputs_grow(name, make):
    engine = prepare(name, make())
    length = 100 if name == "torch" else 2000

    def decode() -> list[list[int]]:
        if make is language_model:
            config = SampleConfig(length=length, temperature=0)
            return engine.generate([[5, 6]], config, window=None, seeds=[1], banned=[PAD, BOS, EOS])
        config = DecodeConfig(beam=1, max_length=length, max_extra=length)
        found = engine.search([[5, 6]], config=config, bos=BOS, eos=EOS, pad=PAD)
        return [best.tokens for best, *_ in found]

    decode()  # compiled before it is read
    *readings, final = read_meanwhile(decode)
    ends = [(len(tokens), tokens) for tokens, *_ in readings]
    assert [number for number, _ in ends] == sorted(number for number, _ in ends)
    assert len({number for number, _ in ends if 0 < number < len(final[0])}) > 2
    assert all(tokens == final[0][:number] for number, tokens in ends)
