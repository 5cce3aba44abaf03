"""What reads are, by their names."""

import pytest

from regard.look.roles import KINDS, Role, role_of

TEXTS = {"source": 0}
SETS = {"source": 0, "queries": 0}
POINTS = ("core.encoder.1.gather.read", "core.encoder.1.attention.read")

# name, axes of the sample: kind, layer, direction, queries, keys
ROLES = [
    ("core.encoder.2.attention.read", TEXTS, ("encoder self", 3, "", "source", "source")),
    ("core.encoder.11.attention.read", SETS, ("encoder self", 12, "", "source", "source")),
    ("model.core.encoder.0.attention.read", TEXTS, ("encoder self", 1, "", "source", "source")),
    ("core.decoder.0.attention.read", TEXTS, ("decoder self", 1, "", "output", "decoder input")),
    ("core.decoder.0.attention.read", SETS, ("decoder self", 1, "", "queries", "queries")),
    ("core.decoder.3.cross.read", TEXTS, ("cross", 4, "", "output", "source")),
    ("core.decoder.3.cross.read", SETS, ("cross", 4, "", "queries", "source")),
    ("core.read", TEXTS, ("recurrent", 1, "", "output", "source")),
    ("core.read", SETS, ("recurrent", 1, "", "queries", "source")),
    ("core.cells.1.read", TEXTS, ("chain", 2, "", "decoder input", "decoder input")),
    ("core.encoder.forward_cells.0.read", TEXTS, ("chain", 1, "forward", "source", "source")),
    (
        "core.encoder.backward_cells.1.read",
        SETS,
        ("chain", 2, "backward", "reversed source", "reversed source"),
    ),
    ("pool.attention.read", SETS, ("pooling", 1, "", "queries", "source")),
    ("pool.attention.read", TEXTS, ("pooling", 1, "", "queries", "source")),
    (POINTS[0], TEXTS, ("encoder self", 2, "", "inducing points of layer 2", "source")),
    (POINTS[1], TEXTS, ("encoder self", 2, "", "source", "inducing points of layer 2")),
    ("core.encoder.0.attention.read", TEXTS, ("encoder self", 1, "", "source", "source")),
]


@pytest.mark.parametrize(("name", "axes", "role"), ROLES)
def test_known_names_have_kind_layer_direction_and_axes(name, axes, role):
    names = {name, *POINTS}  # inducing points belong to their own layer
    actual = role_of(name, names, axes)
    assert (actual.kind, actual.layer, actual.direction, actual.queries, actual.keys) == role
    assert actual.kind in KINDS


@pytest.mark.parametrize(
    "name",
    [
        "attention.read",
        "mycore.read",
        "core.readers",
        "core.decoder.0.cross.read.more",
        "core.decoder.x.cross.read",
        "core.encoder.0.other.read",
        "",
    ],
)
def test_unknown_names_have_axes_of_their_own(name):
    assert role_of(name, {name}, SETS) == Role(kind="other", queries=f"{name}: queries", keys=f"{name}: keys")
