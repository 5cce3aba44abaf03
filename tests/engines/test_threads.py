"""Engines in several threads: each call gets the outputs of a single thread."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.engines.registry import prepare
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig
from regard.native.decoder import blocks, generate, search
from tests.engines.small import SENTENCES, VOCAB, encoder_decoder, language_model, vary

pytestmark = pytest.mark.usefixtures("no_shape_checks")
THREADS, REPEATS = 8, 4


def recurrent() -> Any:
    """Return a model whose decoder reads by compiled additive attention at every step."""
    torch.manual_seed(3)
    config = ModelConfig(core=RecurrentConfig(hidden=8))
    return vary(build(config, source_vocab=VOCAB, target_vocab=VOCAB))


def answers(engine: Any, seed: int) -> list[Any]:
    """Return the results of requests of every kind, which differ between seeds."""
    if engine.limits.is_encoder_decoder:
        sentences = SENTENCES[seed % 3 :] + SENTENCES[: seed % 3]
        config = DecodeConfig(beam=1 + seed % 3, max_length=5 + seed)
        return engine.search(sentences, config=config, bos=BOS, eos=EOS, pad=PAD)
    prompts = [[5 + seed % 7, 6], [7], [8, 9, 4]]
    settings: dict[str, Any] = {"window": 6, "seeds": [seed, 2, 3], "banned": [PAD, BOS]}
    return [
        engine.generate(
            prompts, SampleConfig(length=7, temperature=heat, context=context), **settings
        )
        for heat, context in ((0.0, "restart"), (0.8, "last"))
    ]


def in_threads(function: Callable[[int], Any]) -> list[Any]:
    """Return function(0), function(1), ..., called by as many threads that start together."""
    start = threading.Barrier(THREADS)

    def call(number: int) -> Any:
        start.wait()
        return function(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, range(THREADS)))


@pytest.mark.parametrize(
    ("name", "workers", "make"),
    [
        ("torch", 1, encoder_decoder), ("torch", 1, language_model), ("torch", 1, recurrent),
        ("compiled", 1, encoder_decoder), ("compiled", 3, encoder_decoder),
        ("compiled", 1, language_model), ("compiled", 3, language_model),
    ],
)  # fmt: skip
def test_threads_share_an_engine(name, workers, make) -> None:
    engine = prepare(name, make(), workers=workers)
    expected = [answers(engine, seed) for seed in range(THREADS)]
    results = in_threads(lambda seed: [answers(engine, seed) for _ in range(REPEATS)])
    assert results == [[answer] * REPEATS for answer in expected]


class NoGradients(TorchFunctionMode):
    """Refuses operations on parameters in whose graph they would be."""

    def __torch_function__(self, function, types, args=(), kwargs=None) -> Any:
        assert not (torch.is_grad_enabled() and any(isinstance(x, nn.Parameter) for x in args))
        return function(*args, **(kwargs or {}))


def test_an_engine_is_made_without_gradients() -> None:
    """In graphs of a parameter in several threads, torch 2.13 may deadlock: p[0], p.isfinite()."""
    model = encoder_decoder()
    with NoGradients():
        prepare("compiled", model)


def test_threads_compile_at_once() -> None:
    """Each thread makes the first engine of the process and uses it."""
    model = encoder_decoder()
    expected = [answers(prepare("compiled", model), seed) for seed in range(THREADS)]
    for entry in (search.search, generate.generate, blocks.prefill):
        entry.cache_clear()
    assert in_threads(lambda seed: answers(prepare("compiled", model), seed)) == expected
