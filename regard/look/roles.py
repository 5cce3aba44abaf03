"""Role of a read in its model, by its name: its kind, its layer, and the axes of its queries and keys.

core.encoder.2.attention.read      encoder self, layer 3        source x source
core.decoder.0.attention.read      decoder self, layer 1        output x decoder input; queries x queries in sets
core.decoder.0.cross.read          cross, layer 1               output x source; queries x source in sets
core.read                          recurrent                    output x source; queries x source in sets
core.cells.0.read                  chain, layer 1               decoder input x decoder input
core.encoder.forward_cells.0.read  chain, layer 1, forward      source x source
pool.attention.read                pooling                      queries x source
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["encoder self", "decoder self", "cross", "recurrent", "chain", "pooling", "other"]
KINDS: tuple[Kind, ...] = ("encoder self", "decoder self", "cross", "recurrent", "chain", "pooling", "other")

_LAYER = r"(?:^|\.)core\.{}\.(?P<layer>\d+)\.{}$"
_GATHER = re.compile(_LAYER.format("encoder", r"gather\.read"))
_PATTERNS: dict[Kind, re.Pattern[str]] = {
    "encoder self": re.compile(_LAYER.format("encoder", r"attention\.read")),
    "decoder self": re.compile(_LAYER.format("decoder", r"attention\.read")),
    "cross": re.compile(_LAYER.format("decoder", r"cross\.read")),
    "chain": re.compile(_LAYER.format(r"(?:cells|encoder\.(?P<direction>forward_cells|backward_cells))", "read")),
    "recurrent": re.compile(r"(?:^|\.)core\.read$"),
    "pooling": re.compile(r"(?:^|\.)pool\.attention\.read$"),
}
_DIRECTIONS = {"forward_cells": "forward", "backward_cells": "backward", None: ""}


@dataclass(frozen=True, kw_only=True)
class Role:
    """Role of a read in its model."""

    kind: Kind
    layer: int = 1
    """From 1."""
    direction: str = ""
    """Direction of a chain, "forward" or "backward"; else empty."""
    queries: str = "queries"
    """Name of the axis of its queries."""
    keys: str = "keys"
    """Name of the axis of its keys."""


def role_of(name: str, names: Collection[str], axes: Mapping[str, object]) -> Role:
    """Return the role of a read.

    names: names of all reads of the model: an encoder layer with a `gather` read attends through inducing points.
    axes:  axes of the sample: includes "queries" if the model writes a set or a vector.
    """
    output_axis = "queries" if "queries" in axes else "output"
    if match := _GATHER.search(name):
        layer = int(match["layer"]) + 1
        return Role(kind="encoder self", layer=layer, queries=f"inducing points of layer {layer}", keys="source")
    for kind, pattern in _PATTERNS.items():
        if match := pattern.search(name):
            groups = match.groupdict()
            layer, direction = int(groups.get("layer", 0)) + 1, groups.get("direction")
            queries, keys = _axes_of(kind, output_axis, direction)
            if kind == "encoder self" and name.replace(".attention.read", ".gather.read") in names:
                keys = f"inducing points of layer {layer}"
            return Role(kind=kind, layer=layer, direction=_DIRECTIONS[direction], queries=queries, keys=keys)
    return Role(kind="other", queries=f"{name}: queries", keys=f"{name}: keys")


def _axes_of(kind: str, output_axis: str, direction: str | None) -> tuple[str, str]:
    """Return the names of the axes of queries and keys of a kind of read."""
    if kind == "chain":
        axis = {None: "decoder input", "forward_cells": "source", "backward_cells": "reversed source"}[direction]
        return axis, axis
    if kind == "decoder self":
        return output_axis, "queries" if output_axis == "queries" else "decoder input"
    return {"encoder self": "source", "pooling": "queries"}.get(kind, output_axis), "source"
