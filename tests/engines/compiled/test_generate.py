"""How compiled loops go on with texts is how the torch engine does."""

import dataclasses

import pytest
import torch

from regard.decode.config import SampleConfig
from regard.engines.reference import TorchEngine
from regard.engines.registry import prepare
from regard.models.build import build_language_model
from regard.models.config import LanguageModelConfig, TransformerConfig
from regard.models.language import LanguageModel

VOCAB = 50
SMALL = TransformerConfig(layers=2, width=32, heads=2, feedforward=48, activation="gelu")
KINDS = {
    "sinusoidal": SMALL,
    "learned": dataclasses.replace(SMALL, positions="learned", max_positions=24),
    "alibi": dataclasses.replace(SMALL, positions="alibi", norm="post"),
    "relative": dataclasses.replace(SMALL, positions="relative"),
    "window": dataclasses.replace(SMALL, window=5, key_heads=1),
}
HOW = {"seeds": [4, 5, 6, 7], "banned": [0, 3]}


def model_of(config: TransformerConfig) -> LanguageModel:
    torch.manual_seed(3)
    model = build_language_model(LanguageModelConfig(core=config), vocab=VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = float(parameter.std().nan_to_num()) or 1.0  # those that begin all alike, too
            parameter.add_(0.3 * spread * torch.randn_like(parameter))
    return model


def prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(4, VOCAB, (length,), generator=draw).tolist() for length in (1, 9, 30, 16)]


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_goes_on_as_torch_does(config, temperature):
    model = model_of(config)
    sampling = SampleConfig(length=40, temperature=temperature, top_k=None if temperature == 0 else 20)
    found = prepare("compiled", model, workers=2).generate(prompts(), sampling, window=16, **HOW)
    assert found == TorchEngine(model).generate(prompts(), sampling, window=16, **HOW)
    assert {len(tokens) for tokens in found} == {40}
    assert not {0, 3} & {token for tokens in found for token in tokens}


def test_without_a_window_all_that_was_read_counts():
    model, sampling = model_of(SMALL), SampleConfig(length=50, temperature=0)
    found = prepare("compiled", model).generate(prompts(), sampling, window=None, **HOW)
    assert found == TorchEngine(model).generate(prompts(), sampling, window=None, **HOW)


@pytest.mark.parametrize("window", [1, 2])
def test_the_shortest_windows(window):
    model, sampling = model_of(SMALL), SampleConfig(length=7, temperature=0)
    found = prepare("compiled", model).generate(prompts(), sampling, window=window, **HOW)
    assert found == TorchEngine(model).generate(prompts(), sampling, window=window, **HOW)


def test_an_empty_prompt_is_named():
    how = {"seeds": [1, 2], "banned": []}
    with pytest.raises(ValueError, match="got none in prompt 1"):
        prepare("compiled", model_of(SMALL)).generate([[4], []], SampleConfig(), window=8, **how)


@pytest.mark.parametrize(
    ("length", "window", "asked"), [(17, None, None), (18, None, 25), (40, 24, None), (40, 25, 25)]
)
def test_learned_positions_end_where_torchs_do(length, window, asked):
    model, sampling = model_of(KINDS["learned"]), SampleConfig(length=length, temperature=0)
    how = {"window": window, "seeds": [1], "banned": []}
    prompts, found = [list(range(4, 12))], []
    for engine in (TorchEngine(model), prepare("compiled", model)):
        if asked is None:
            found.append(engine.generate(prompts, sampling, **how))
        else:
            with pytest.raises(ValueError, match=f"there are 24 learned positions, but position {asked} was asked for"):
                engine.generate(prompts, sampling, **how)
    assert asked is not None or found[0] == found[1]


@pytest.mark.parametrize("index", [-1, VOCAB])
def test_ids_that_are_no_tokens_are_named(index):
    engine, sampling = prepare("compiled", model_of(SMALL)), SampleConfig(length=2)
    with pytest.raises(ValueError, match=f"0 .. {VOCAB - 1}, got {index} in prompt 1"):
        engine.generate([[4], [5, index]], sampling, window=8, seeds=[1, 2], banned=[])
    with pytest.raises(ValueError, match=f"0 .. {VOCAB - 1}, got {index} in banned"):
        engine.generate([[4]], sampling, window=8, seeds=[1], banned=[index])


def test_nothing_that_may_be_written():
    sampling = SampleConfig(length=2, temperature=0)
    with pytest.raises(ValueError, match="some allowed token"):
        prepare("compiled", model_of(SMALL)).generate([[4]], sampling, window=8, seeds=[1], banned=range(VOCAB))


def test_scores_that_are_no_numbers():
    model = model_of(SMALL)
    with torch.no_grad():
        model.core.decoder_norm.weight[2], model.reads.table.weight[:, 2] = 3e38, 3e38
    with pytest.raises(ValueError, match="logits must not hold NaN"):
        prepare("compiled", model).generate(
            [[4]], SampleConfig(length=3, temperature=0), window=8, seeds=[0], banned=[]
        )
