"""Random combinations of parts and patterns: steps, the full pass and compiled code agree."""

import random
from typing import Any

import pytest
import torch

from regard.data.batches import pad
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig
from regard.engines.registry import prepare
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
)
from regard.models.cores.config import IN_BLOCKS, WRITTEN, TransformerConfig
from tests.engines.small import VOCAB, encoder_decoder, language_model, next_logits

pytestmark = pytest.mark.usefixtures("no_shape_checks")

YARN = RotaryConfig(scaling="yarn", factor=4.0, beta_fast=3.0, original_max_length=16, base=50.0)
POSITIONS = [
    RotaryConfig(interleaved=True, dim=4),
    YARN,
    AlibiConfig(),
    RelativeConfig(),
    LearnedConfig(max_length=64),
    NoPositionsConfig(),
]
SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200))]


def draw_core(draw: random.Random, *, has_two: bool) -> TransformerConfig:
    positions = draw.choice(POSITIONS)
    letters = "SLN" if positions.name in IN_BLOCKS else "SL"
    stacks = ["".join(draw.choice(letters) for _ in range(3)) for _ in range(has_two)]
    stacks.append("".join(draw.choice(f"{letters}DF") for _ in range(3)))
    if {*"".join(stacks)} <= {*"NDF"}:
        stacks[0] = f"L{stacks[0][1:]}"
    pattern = "/".join(stacks)
    choice = draw.choice(["soft", "soft", "soft", "sigmoid"])
    return TransformerConfig(
        layers=3,
        width=12,
        heads=4,
        head_dim=draw.choice([4, 6, 16]),
        head_value_dim=draw.choice([None, 3, 17]),
        key_heads=draw.choice([1, 2, 4]),
        feedforward=9,
        norm=draw.choice(["layer", "rms"]),
        norm_order=draw.choice(["pre", "post"]),
        bias=draw.random() < 0.7,
        positions=positions,
        window=draw.choice([1, 2, 5, 40]) if "S" in pattern else None,
        pattern=pattern if {*pattern} - {"L", "/"} else None,
        choice=choice,
        sink=draw.choice(["none", "learned", "zero"]) if choice == "soft" else "none",
        qk_norm=draw.choice(["none", "rms", "l2"]),
        gate=draw.choice(["none", "head", "element"]),
        registers=draw.choice([0, 1, 3, 17]),
        decay=draw.choice(["item", "head", "none"]) if {*pattern} & WRITTEN else "item",
    )


@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_steps_the_full_pass_and_compiled_code_agree(seed: int) -> None:
    draw = random.Random(seed)
    has_two = draw.random() < 0.5
    core = draw_core(draw, has_two=has_two)
    model = (encoder_decoder if has_two else language_model)(core)
    sources, texts = (
        [[draw.randrange(4, VOCAB) for _ in range(n)] for n in (5, 13, 1)] for _ in "ab"
    )
    source = pad(sources) if has_two else None
    engine: Any = prepare("compiled", model)
    if has_two:
        config = DecodeConfig(beam=2, max_length=9, max_extra=9)
        found = engine.search(sources, config=config, bos=BOS, eos=EOS, pad=PAD)
        texts = [[BOS, *best.tokens, *[EOS] * best.finished] for best, *_ in found]
    full = model(source, pad([[*text, EOS] for text in texts]))
    check_steps(model, source, pad(texts), full)
    if has_two:
        log_p = full.log_softmax(-1)
        for row, (best, *_) in enumerate(found):
            tokens = torch.tensor(texts[row][1:])
            expected = log_p[row, torch.arange(len(tokens)), tokens].sum()
            assert best.log_prob == pytest.approx(float(expected), rel=1e-5, abs=1e-5)
        return
    last = full[torch.arange(3), torch.tensor([*map(len, texts)]) - 1]
    torch.testing.assert_close(next_logits(engine, texts), last, rtol=1e-5, atol=1e-5)


def check_steps(model: Any, source: Any, texts: Any, full: torch.Tensor) -> None:
    state, ids = model.start(source, rows=len(texts.items)), texts.items
    for time in range(ids.shape[1]):
        logits, state = model.step(ids[:, time], state)
        read = texts.lengths > time
        torch.testing.assert_close(logits[read], full[read, time], rtol=1e-5, atol=1e-5)
