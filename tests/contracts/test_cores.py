"""Contract of all cores: step by step = all at once, batched = one by one, padding is inert."""

import itertools
import re

import pytest
import torch
from torch import nn

from regard.attention.masks import Padded
from regard.data.batches import Batch, PairBatch
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.layers.written import WrittenAttention
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.model import Model
from regard.testing import check
from tests.helpers import without_gradient

VOCAB = 23
TRANSFORMER = {
    "layers": 2,
    "decoder_layers": 3,
    "width": 13,
    "heads": 3,
    "head_dim": 5,
    "head_value_dim": 2,
}
RECURRENT = {"width": 7, "hidden": 10, "attention_hidden": 11}
SMALL = {"width": 13, "heads": 6, "head_dim": 5, "head_value_dim": 2, "feedforward": 17}
FEATURES = {
    "alibi": {"positions": AlibiConfig(), "heads": 5},
    "relative": {"positions": RelativeConfig()},
    "grouped": {"key_heads": 2, "positions": AlibiConfig(), "kernel": "sdpa"},
    "multi-query": {"key_heads": 1, "positions": RelativeConfig(), "kernel": "reference"},
    "dot": {"score": "dot"},
    "cosine": {"score": "cosine", "key_heads": 3},
    "additive": {"score": "additive"},
    "additive-grouped": {
        "score": "additive",
        "key_heads": 3,
        "positions": RelativeConfig(),
        "window": 2,
    },
    "capped": {"soft_cap": 0.5, "key_heads": 2},
    "capped-additive": {"soft_cap": 0.5, "score": "additive", "key_heads": 2},
    "written": {"pattern": "L/DF"},
    "written-by-head": {
        "pattern": "L/FD",
        "decay": "head",
        "norm_order": "post",
        "head_value_dim": 7,
    },
    "points": {"inducing_points": 3},
    "general": {"score": "general", "head_key_dim": 3, "key_heads": 2},
    "additive-sizes": {"score": "additive", "head_key_dim": 7, "key_heads": 3, "score_hidden": 4},
    "concat": {"score": "concat", "head_key_dim": 4, "positions": RelativeConfig(), "window": 3},
    "heads-alone": {"width": 12, "output_projection": False, "key_heads": 2},
    "not-residual": {"norm_order": "none", "positions": LearnedConfig()},
    "rotary": {"positions": RotaryConfig(), "head_dim": 6, "key_heads": 2},
    "rotary-partial": {
        "positions": RotaryConfig(dim=2, interleaved=True),
        "score": "cosine",
        "norm": "rms",
    },
    "rotary-window": {
        "positions": RotaryConfig(scaling="linear"),
        "head_dim": 6,
        "window": 3,
        "kernel": "sdpa",
    },
    "llama": {
        "positions": RotaryConfig(scaling="llama3", original_max_length=16),
        "head_dim": 6,
        "key_heads": 2,
        "norm": "rms",
        "activation": "silu",
        "gated": True,
        "bias": False,
    },
    "gelu": {"activation": "gelu-tanh", "gated": True},
    "silu": {"activation": "silu", "norm": "rms", "norm_order": "post", "norm_eps": 1e-3},
    "no-bias": {"bias": False, "norm_order": "post"},
    "beta": {"beta": 2.5, "key_heads": 2},
    "beta-learned": {"beta": "learned", "positions": RelativeConfig(), "kernel": "sdpa"},
    "dense": {"feedforward": "dense", "norm_order": "post"},
    "hard": {"choice": "hard", "key_heads": 3},
    "hard-gumbel": {"choice": "hard", "hard": "gumbel", "score": "cosine"},
    "hard-reinforce": {
        "choice": "hard",
        "hard": "reinforce",
        "positions": AlibiConfig(),
        "kernel": "reference",
    },
    "sparse": {"choice": "sparse", "beta": "learned", "positions": RotaryConfig(), "head_dim": 6},
    "topk": {"choice": "topk", "top_k": 2, "score": "additive", "window": 3},
    "window-2": {"window": 2},
    "window-3": {"window": 3, "positions": RelativeConfig(), "key_heads": 3},
    "pattern": {
        "window": 3,
        "pattern": "S/LS",
        "positions": RotaryConfig(window_base=20.0),
        "head_dim": 6,
        "embedding_norm": True,
        "first_norm": False,
    },
    "parts": {
        "qk_norm": "l2",
        "gate": "element",
        "registers": 2,
        "sink": "learned",
        "positions": RotaryConfig(scaling="yarn", original_max_length=16),
        "head_dim": 6,
        "key_heads": 2,
        "window": 3,
        "pattern": "L/SN",
    },
    "sigmoid": {
        "choice": "sigmoid",
        "qk_norm": "rms",
        "gate": "head",
        "registers": 1,
        "positions": RelativeConfig(),
    },
    "sink": {"sink": "zero", "score": "additive", "beta": "learned", "gate": "head"},
    "window-4": {"window": 4, "positions": AlibiConfig(), "score": "cosine", "norm_order": "post"},
}
# Pairs of settings, and the third in turn: every two of the three occur together.
CONFIGS = {
    f"transformer-{norm}-{positions.name}-{kernel}": TransformerConfig(
        **TRANSFORMER, feedforward=17, norm_order=norm, positions=positions(), kernel=kernel
    )
    for (positions, kernel), norm in zip(
        itertools.product(
            (SinusoidalConfig, LearnedConfig, NoPositionsConfig), ("auto", "reference", "sdpa")
        ),
        itertools.cycle(("post", "pre")),
    )
} | {
    f"recurrent-{cell}-{attention}-{layers}x{directions}": RecurrentConfig(
        **RECURRENT, cell=cell, attention=attention, layers=layers, directions=directions
    )
    for (cell, attention), (layers, directions) in zip(
        itertools.product(
            ("rnn", "gru", "lstm"), ("none", "additive", "general", "dot", "scaled-dot")
        ),
        itertools.cycle(((1, 2), (2, 1))),
    )
}
CONFIGS |= {
    f"transformer-{name}": TransformerConfig(**SMALL | {"layers": 1, "decoder_layers": 2} | change)
    for name, change in FEATURES.items()
}
CONFIGS |= {
    f"recurrent-{attention}": RecurrentConfig(**RECURRENT, attention=attention)
    for attention in ("concat", "cosine", "location")
}
CONFIGS |= {
    f"recurrent-{choice}": RecurrentConfig(
        **RECURRENT, cell=cell, choice=choice, attention=attention, **options
    )
    for choice, cell, attention, options in (
        ("soft", "gru", "additive", {"beta": "learned"}),
        ("hard", "gru", "additive", {"hard": "reinforce"}),
        ("sparse", "lstm", "general", {"alpha": 2.0}),
        ("topk", "rnn", "cosine", {"top_k": 2}),
    )
}
CONFIGS |= {
    f"recurrent-{cell}-sizes-{directions}": RecurrentConfig(
        **RECURRENT, cell=cell, encoder_hidden=6, directions=directions, layers=2, decoder_layers=1
    )
    for cell, directions in (("lstm", 1), ("gru", 2))
}
OWN = {"self_attention_hidden": 5}
CONFIGS |= {
    f"self-attentive-{cell}-{score}-{recency}-{layers}x{directions}": SelfAttentiveConfig(
        **RECURRENT,
        **OWN,
        cell=cell,
        self_attention=score,
        self_attention_recency=recency,
        layers=layers,
        directions=directions,
    )
    for cell in ("rnn", "lstm")
    for score in ("additive", "scaled-dot")
    for layers, directions, recency in ((1, 2, "none"), (2, 1, "learned"))
}
CONFIGS |= {
    f"self-attentive-{cell}-{score}": SelfAttentiveConfig(
        **RECURRENT, cell=cell, self_attention=score, **({} if score == "dot" else OWN)
    )
    for cell, score in (
        ("gru", "additive"),
        ("rnn", "concat"),
        ("lstm", "concat"),
        ("gru", "general"),
        ("rnn", "dot"),
    )
}
CONFIGS["self-attentive-sizes"] = SelfAttentiveConfig(
    **RECURRENT, **OWN, encoder_hidden=8, attention="general"
)
CONFIGS |= {
    "self-attentive-released": SelfAttentiveConfig(
        **RECURRENT, **OWN, form="released", kernel="reference"
    ),
    "self-attentive-no-source": SelfAttentiveConfig(
        **RECURRENT, **OWN, attention="none", layers=2, decoder_layers=3
    ),
    "self-attentive-source-dot": SelfAttentiveConfig(
        **RECURRENT, **OWN, attention="dot", decoder_layers=2
    ),
    "self-attentive-values": SelfAttentiveConfig(**RECURRENT, **OWN, cell="gru", value_map=4),
    "recurrent-values": RecurrentConfig(**RECURRENT, attention="general", layers=2, value_map=13),
    "self-attentive-hard": SelfAttentiveConfig(
        **RECURRENT, **OWN, choice="hard", beta=0.5, cell="rnn"
    ),
    "self-attentive-reinforce": SelfAttentiveConfig(
        **RECURRENT, **OWN, choice="hard", hard="reinforce", layers=2
    ),
    "self-attentive-sparse": SelfAttentiveConfig(
        **RECURRENT, **OWN, choice="sparse", self_attention="scaled-dot"
    ),
}
ROUNDED = {name: config for name, config in CONFIGS.items() if config.choice != "hard"}
"""Cores whose outputs are continuous in the scores: rounded scores may have another best key."""
_LIKE_OTHERS = re.compile("self-attentive.*1x2$|-sizes")
"""Names of cores that differ from others in sizes."""
every_core = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
shapes_checked_elsewhere = pytest.mark.usefixtures("no_shape_checks")
"""For tests that take the paths of the first two, whose calls are checked for shapes: all at once,
step by step, and the loss of a batch."""


def model_of(config) -> Model:
    model = build(
        ModelConfig(core=config, dropout=0.0),
        source_vocab=VOCAB,
        target_vocab=VOCAB,
        label_smoothing=0.1,
    )
    for parameter in model.parameters():
        if not parameter.any():  # parameters initialized to zero have no effect yet
            nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def batch() -> PairBatch:
    source = Padded(torch.randint(4, VOCAB, (3, 7)), torch.tensor([7, 1, 4]))
    target = Padded(torch.randint(4, VOCAB, (3, 6)), torch.tensor([6, 5, 2]))
    return Batch(source, target)


@every_core
@shapes_checked_elsewhere
def test_step_by_step_equals_all_at_once_and_other_contracts_hold(config):
    check(model_of(config), batch())


@every_core
def test_every_parameter_gets_a_gradient(config):
    model, pair = model_of(config).train(), batch()
    model.loss(pair).total.backward()
    assert without_gradient(model) == biases_that_cancel(model, config)


def biases_that_cancel(model: Model, config) -> set[str]:
    """Return the names of key biases that add one number to a query's scores (softmax ignores)."""
    if not isinstance(config, TransformerConfig) or config.soft_cap:
        return set()
    if config.sink != "none" or config.choice == "sigmoid":
        return set()
    if config.score not in ("scaled-dot", "dot", "general"):
        return set()
    # Rotated, the bias of keys in self-attention differs from position to position.
    part = ".cross.key.bias" if isinstance(config.positions, RotaryConfig) else ".key.bias"
    written = [name for name, x in model.named_modules() if isinstance(x, WrittenAttention)]
    names = {name for name, _ in model.named_parameters() if name.endswith(part)}
    return names - {f"{name}.key.bias" for name in written}


@every_core
@shapes_checked_elsewhere
def test_padding_has_no_effect_on_values_and_gradients(config):
    model, pair = model_of(config), batch()
    other = Batch(_change_padding(pair.source), _change_padding(pair.target))
    losses, grads = [], []
    for example in (pair, other):
        loss = model.loss(example)
        losses.append(loss.total)
        # In evaluation the scores of REINFORCE have no gradient.
        leaves = list(model.parameters())
        grads.append(torch.autograd.grad(loss.total, leaves, materialize_grads=True))
    assert losses[0] == losses[1]
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def _change_padding(padded: Padded) -> Padded:
    """Replace the tokens in the padding."""
    absent = torch.arange(padded.items.shape[1]) >= padded.lengths[:, None]
    tokens = torch.randint(4, VOCAB, padded.items.shape)
    return Padded(torch.where(absent, tokens, padded.items), padded.lengths)


def test_labels_are_smoothed_in_training_only():
    model, pair = model_of(TransformerConfig(**TRANSFORMER)), batch()
    assert model.loss(pair).total == model.loss(pair).nll
    smoothed = model.train().loss(pair)
    assert smoothed.nll == model.eval().loss(pair).nll
    assert abs(smoothed.total - smoothed.nll) > 1e-3


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=pytest.mark.slow if _LIKE_OTHERS.search(name) else (), id=name)
        for name, config in ROUNDED.items()
    ],
)
@shapes_checked_elsewhere
def test_bfloat16_autocast_has_the_gradients_of_float32(config):
    model, pair = model_of(config).float(), batch()  # no dropout: both losses take the same path
    losses, gradients = [], []
    for is_rounded in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_rounded):
            loss = model.loss(pair).total
        losses.append(loss.item())
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        gradients.append(torch.cat([slope.flatten() for slope in slopes]))
    assert losses[1] == pytest.approx(losses[0], rel=0.004)
    assert (gradients[1] - gradients[0]).norm() < 0.2 * gradients[0].norm()  # 0.02 in most
