"""Generation by the compiled engine equals that of the torch engine."""

import dataclasses
from typing import Any

import pytest
import torch

from regard.decode.config import SampleConfig
from regard.decode.rules import NO_RULES, TokenRules
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.layers.positions.config import AlibiConfig, LearnedConfig, RelativeConfig, RotaryConfig
from regard.models.build import build_language_model
from regard.models.config import LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model
from tests.engines.small import next_logits, vary

VOCAB = 50
SMALL = TransformerConfig(layers=2, width=32, heads=2, feedforward=48, activation="gelu")


def change_core(**options: Any) -> TransformerConfig:
    return dataclasses.replace(SMALL, **options)


LLAMA = RotaryConfig(scaling="llama3", original_max_length=16)
GPT_J = RotaryConfig(dim=4, interleaved=True)
KINDS = {
    "sinusoidal": SMALL,
    "learned": change_core(positions=LearnedConfig(max_length=24)),
    "alibi": change_core(positions=AlibiConfig(), norm_order="post"),
    "relative": change_core(positions=RelativeConfig()),
    "window": change_core(window=5, key_heads=1),
    "gemma3": change_core(
        window=5, pattern="SL", positions=RotaryConfig(scaling="linear", window_base=50.0)
    ),
    "llama": change_core(
        positions=LLAMA, key_heads=1, norm="rms", activation="silu", gated=True, bias=False
    ),
    "qwen3": change_core(positions=LLAMA, key_heads=1, head_dim=10, qk_norm="rms", norm_eps=0.1),
    "interleaved": change_core(positions=GPT_J, qk_norm="rms", norm="rms", norm_order="post"),
    "embedding norm": change_core(norm_order="post", final_norm=True, embedding_norm=True),
    "written": change_core(pattern="DL", positions=LLAMA, key_heads=1, decay="head", bias=False),
    "gpt-j": change_core(positions=GPT_J, activation="gelu-tanh", norm="rms", norm_order="post"),
}
OPTIONS = {"seeds": [4, 5, 6, 7], "banned": [0, 3]}


def make_model(config: TransformerConfig) -> Model:
    torch.manual_seed(3)
    return vary(build_language_model(LanguageModelConfig(core=config), vocab=VOCAB))


def make_prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(4, VOCAB, (n,), generator=draw).tolist() for n in (1, 9, 30, 16)]


def check_generation(
    model: Model,
    sampling: SampleConfig,
    window: int | None,
    *,
    workers: int = 1,
    rules: TokenRules = NO_RULES,
) -> list[list[int]]:
    """Check that both engines generate the same tokens, and return them."""
    options: dict[str, Any] = {"window": window, "rules": rules, **OPTIONS}
    engine = prepare("compiled", model, workers=workers)
    actual = engine.generate(make_prompts(), sampling, **options)
    assert actual == TorchEngine(model).generate(make_prompts(), sampling, **options)
    return actual


# Tokens are drawn from the logits of any model in the same way: by default with one kind.
TEMPERATURES = [(0.0, name) for name in KINDS] + [(0.7, "sinusoidal")]
OTHERS = [pytest.param(0.7, name, marks=pytest.mark.slow) for name in KINDS if name != "sinusoidal"]


@pytest.mark.parametrize(("temperature", "kind"), [*TEMPERATURES, *OTHERS])
def test_generation_equals_torch(temperature, kind):
    model = make_model(KINDS[kind])
    sampling = SampleConfig(
        length=40, temperature=temperature, top_k=None if temperature == 0 else 20
    )
    actual = check_generation(model, sampling, 16, workers=2)
    assert {len(tokens) for tokens in actual} == {40}
    assert not {0, 3} & {token for tokens in actual for token in tokens}


WORDS = (*((token,) for token in range(4, 20)), (40, 41), (41, 42))
RULES = {
    "ngrams": TokenRules(no_repeat_ngram_size=2),
    "penalty": TokenRules(repetition_penalty=3.0),
    "words": TokenRules(bad_words=WORDS),
    "all": TokenRules(no_repeat_ngram_size=3, repetition_penalty=1.2, bad_words=WORDS),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rules_of_outputs_change_the_tokens_as_in_torch(rules, temperature):
    model, sampling = make_model(SMALL), SampleConfig(length=40, temperature=temperature)
    found = check_generation(model, sampling, 16, workers=2, rules=rules)
    assert found != check_generation(model, sampling, 16)


CONTEXTS = [("last", name) for name in KINDS]
CONTEXTS += [
    ("slide", name) for name in ("alibi", "relative", "llama", "gpt-j", "gemma3", "written")
]


@pytest.mark.parametrize(("context", "name"), CONTEXTS)
def test_each_context_equals_torch(context, name):
    model = make_model(KINDS[name])
    sampling = SampleConfig(length=40, temperature=1.0, context=context)
    check_generation(model, sampling, 16, workers=2)


@pytest.mark.parametrize("window", [3, 9])
def test_a_context_that_slides_keeps_the_window_of_the_model(window):
    """A model with its own window, and the engine afterwards, which a call does not change."""
    model = make_model(change_core(window=5, positions=RotaryConfig()))
    engine, torch_engine = prepare("compiled", model), TorchEngine(model)
    for context in ("slide", "restart"):
        sampling = SampleConfig(length=30, temperature=1.0, context=context)
        actual = engine.generate(make_prompts(), sampling, window=window, **OPTIONS)
        assert actual == torch_engine.generate(make_prompts(), sampling, window=window, **OPTIONS)


@pytest.mark.parametrize(("compute_type", "correlation"), [("bfloat16", 0.9995), ("int8", 0.995)])
def test_memories_that_are_written_in_reduced_precision(compute_type, correlation):
    model, kinds = make_model(KINDS["written"]), ("float32", compute_type)
    engines = [prepare("compiled", model, compute_type=kind) for kind in kinds]
    exact, rounded = (next_logits(engine, make_prompts()) for engine in engines)
    assert torch.corrcoef(torch.stack((exact.flatten(), rounded.flatten())))[0, 1] > correlation
    assert not torch.equal(exact, rounded)


def test_without_a_window_the_whole_text_is_read():
    check_generation(make_model(SMALL), SampleConfig(length=50, temperature=0), None)


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("context", ["restart", "last", "slide"])
def test_the_shortest_windows(context, window):
    model = make_model(SMALL if context == "restart" else KINDS["gpt-j"])
    sampling = SampleConfig(length=7, temperature=0, context=context)
    check_generation(model, sampling, window)


@pytest.mark.parametrize(
    ("length", "window", "position"),
    [(17, None, None), (18, None, 25), (40, 24, None), (40, 25, 25)],
)
def test_learned_positions_end_as_in_torch(length, window, position):
    model, sampling = make_model(KINDS["learned"]), SampleConfig(length=length, temperature=0)
    options = {"window": window, "seeds": [1], "banned": []}
    prompts, results = [list(range(4, 12))], []
    for engine in (TorchEngine(model), prepare("compiled", model)):
        if position is None:
            results.append(engine.generate(prompts, sampling, **options))
        else:
            with pytest.raises(ValueError, match=f"at most 24 .* were learned, got {position}"):
                engine.generate(prompts, sampling, **options)
    assert position is not None or results[0] == results[1]


def test_nan_scores_raise():
    model = make_model(SMALL)
    with torch.no_grad():
        model.core.decoder_norm.weight[2], model.writer.output_table.weight[:, 2] = 3e38, 3e38
    engine, sampling = prepare("compiled", model), SampleConfig(length=3, temperature=0)
    with pytest.raises(ValueError, match="logits must not hold NaN"):
        engine.generate([[4]], sampling, window=8, seeds=[0], banned=[])
