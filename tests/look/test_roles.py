"""Roles of the reads of cores and pools, by the paths of their modules."""

import pytest
import torch
from torch import nn

from regard.attention.memory import Memory
from regard.layers.pool import AttentionPooling
from regard.layers.read import KINDS, Read, Role
from regard.look.record import record
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.self_attentive import SelfAttentive
from regard.models.cores.transformer import Transformer

SIZES = {"width": 8, "layers": 2}
TRANSFORMER = TransformerConfig(**SIZES, heads=2, feedforward=8)
INDUCED = TransformerConfig(**SIZES, heads=2, feedforward=8, inducing_points=3)
RECURRENT = RecurrentConfig(**SIZES, hidden=8, attention="additive")
SELF_ATTENTIVE = SelfAttentiveConfig(**SIZES, hidden=8)


def self_attention(side: str, layer: int, axis: str) -> Role:
    return Role(side, layer, queries=axis, keys=axis)  # type: ignore[arg-type]


def chain(layer: int, axis: str, direction: str = "") -> Role:
    return Role("chain", layer, queries=axis, keys=axis, direction=direction)


START = "initial state and decoder input"
MODELS = {
    "texts": lambda: Transformer(TRANSFORMER),
    "sets": lambda: Transformer(TRANSFORMER, in_order=False),
    "induced": lambda: Transformer(INDUCED, decodes=False),
    "language": lambda: Transformer(TRANSFORMER, encodes=False),
    "recurrent": lambda: Recurrent(RECURRENT),
    "recurrent sets": lambda: Recurrent(RECURRENT, in_order=False),
    "self-attentive": lambda: SelfAttentive(SELF_ATTENTIVE),
    "self-attentive sets": lambda: SelfAttentive(SELF_ATTENTIVE, in_order=False),
    "self-attentive language": lambda: SelfAttentive(SELF_ATTENTIVE, encodes=False),
    "pool": lambda: AttentionPooling(8, num_heads=2),
}
ROLES = {
    "texts": {
        "encoder.1.attention.read": self_attention("encoder self", 2, "source"),
        "decoder.0.attention.read": Role("decoder self", 1, queries="output", keys="decoder input"),
        "decoder.1.cross.read": Role("cross", 2, queries="output", keys="source"),
    },
    "sets": {
        "encoder.0.attention.read": self_attention("encoder self", 1, "source"),
        "decoder.1.attention.read": self_attention("decoder self", 2, "queries"),
        "decoder.0.cross.read": Role("cross", 1, queries="queries", keys="source"),
    },
    "induced": {
        "encoder.1.gather.read": Role(
            "encoder self", 2, queries="inducing points of layer 2", keys="source"
        ),
        "encoder.1.attention.read": Role(
            "encoder self", 2, queries="source", keys="inducing points of layer 2"
        ),
    },
    "language": {
        "decoder.1.attention.read": Role("decoder self", 2, queries="output", keys="decoder input")
    },
    "recurrent": {"read": Role("recurrent", 1, queries="output", keys="source")},
    "recurrent sets": {"read": Role("recurrent", 1, queries="queries", keys="source")},
    "self-attentive": {
        "encoder.forward_cells.0.read": chain(1, "source", "forward"),
        "encoder.backward_cells.1.read": chain(2, "reversed source", "backward"),
        "cells.1.read": chain(2, START),
        "read": Role("recurrent", 1, queries="output", keys="source"),
    },
    "self-attentive sets": {"cells.0.read": chain(1, "queries")},
    "self-attentive language": {"cells.1.read": chain(2, "decoder input")},
    "pool": {"attention.read": Role("pooling", 1, queries="queries", keys="source")},
}


@pytest.mark.parametrize("name", MODELS)
def test_reads_of_cores_have_roles(name):
    roles = {
        path: module.role
        for path, module in MODELS[name]().named_modules()
        if isinstance(module, Read)
    }
    assert {path: roles[path] for path in ROLES[name]} == ROLES[name]
    assert all(role is not None and role.kind in KINDS for role in roles.values())
    assert len(set(roles.values())) == len(roles)


class OwnModel(nn.Module):
    """A user's model, whose read has no role."""

    def __init__(self):
        super().__init__()
        self.mine = Read()

    def forward(self, items):
        return self.mine(items, Memory(items, items))


def test_reads_without_a_role_have_axes_of_their_own():
    model = OwnModel()
    with record(model) as capture:
        model(torch.randn(2, 3, 4))
    (attention_map,) = capture[1].maps
    assert (attention_map.name, attention_map.kind) == ("mine", "other")
    assert (attention_map.queries, attention_map.keys) == ("mine: queries", "mine: keys")
