"""Self-attentive core: layers and a readout, the initial past, and both kinds of reader."""

import pytest
import torch
from torch import nn

from regard.attention.masks import Padded
from regard.look.hooks import record_weights
from regard.models.build import build_core
from regard.models.cores.config import SelfAttentiveConfig
from regard.models.cores.self_attentive import SelfAttentive
from tests.helpers import close

SIZES = {"width": 3, "hidden": 10, "attention_hidden": 11, "self_attention_hidden": 5}
every_cell = pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])


def make_core(*, encodes: bool = True, **config) -> SelfAttentive:
    core = build_core(SelfAttentiveConfig(**SIZES | config), encodes=encodes).double().eval()
    assert isinstance(core, SelfAttentive)
    for parameter in core.parameters():  # biases too
        nn.init.normal_(parameter, std=0.5)
    return core


def make_source() -> Padded:
    return Padded(torch.randn(3, 7, 3, dtype=torch.float64), torch.tensor([4, 7, 1]))


@every_cell
def test_language_model_is_stacked_layers_and_a_readout(cell):
    core = make_core(cell=cell, layers=3, encodes=False)
    targets = items = torch.randn(2, 6, 3, dtype=torch.float64)
    for layer in core.cells:
        items = layer.run(items)[0]
    expected = torch.tanh(core.readout(torch.cat((items, targets), -1)))
    close(core(targets, core.start(None, rows=2)), expected)


@every_cell
def test_decoder_past_starts_with_the_encoders_final_state(cell):
    core, source = make_core(cell=cell, directions=1, layers=2), make_source()
    finals, state = core.encoder(source).finals, core.start(source)
    for past, final in zip(state.cells, finals, strict=True):
        assert past.memory.size == 1
        close(past.memory.values[:, 0], torch.cat(final, -1))
        assert torch.equal(past.output, final[0])
    _, state = core.step(torch.randn(3, 3, dtype=torch.float64), state)
    assert [past.memory.size for past in state.cells] == [2, 2]


@every_cell
def test_decoder_reads_its_past_and_the_source(cell):
    core, source = make_core(cell=cell), make_source()
    state = core.start(source)
    with record_weights(core) as maps:
        core(torch.randn(3, 5, 3, dtype=torch.float64), state)
    assert set(maps.names) == {"read", "cells.0.read"}
    assert [call.shape[-1] for call in maps["read"]] == [7] * 5
    first = 1 if cell == "lstm" else 2  # an rnn or gru reads its new state, too
    assert [call.shape[-1] for call in maps["cells.0.read"]] == list(range(first, first + 5))
    for call in maps["cells.0.read"]:
        close(call.sum(-1), torch.ones(3, 1))
    assert not any(call[0, :, 4:].any() for call in maps["read"])


@pytest.mark.parametrize("recency", ["none", "learned"])
def test_past_is_read_by_any_kernel_that_supports_it(recency):
    torch.manual_seed(3)
    targets = torch.randn(2, 6, 3, dtype=torch.float64)
    for score, kernels in {
        "additive": ("reference", "additive"),
        "scaled-dot": ("reference", "sdpa"),
    }.items():
        outputs = []
        for kernel in kernels:
            torch.manual_seed(4)
            core = make_core(
                encodes=False, self_attention=score, self_attention_recency=recency, kernel=kernel
            )
            outputs.append(core(targets, core.start(None, rows=2)))
        close(*outputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 5}, "hidden must be divisible by directions=2"),
        ({"cell": "rnn", "form": "released"}, "form must be paper for cell rnn, got released"),
        (
            {"self_attention": "dot", "self_attention_hidden": 7},
            "self_attention_hidden must not be given with self_attention=dot",
        ),
    ],
)
def test_invalid_settings_raise(change, message):
    with pytest.raises(ValueError, match=message):
        SelfAttentiveConfig(**change)
