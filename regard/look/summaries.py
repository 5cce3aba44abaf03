"""What people say of a head in one number, and what all layers together read.

    entropy    H = mean_i  - sum_j a_ij ln a_ij            nats; 0: one key each, ln n: all n alike
    distance   D = mean_i  sum_j a_ij |i - j|              entries; only between entries of one sequence
    rollout    R_0 = I      R_l = (mean_h A_l^h + I) / 2  R_{l-1}
               of a pooling query: mean_h a^h R_L

Means are over the queries that read something. Rollout takes half of each layer's output to be its input (the
residual), and values, norms and feed-forward networks to change nothing: it is a picture of paths, no proof of
influence. None of these says why a model answered as it did. (jain2019, wiegreffe2019)

Source: rollout abnar2020, section 3; entropy of heads clark2019, section 3; mean distance vig2019, section 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.look.map import Map, Seen

MAX_ROLLOUT = 1024
"""Entries of the longest sequence that rollout is computed for: it costs their number to the third, a layer."""

_BLOCK = 1 << 18


def entropy(weights: Float[Tensor, "query key"]) -> float | None:
    """Mean entropy of the queries that read, in nats; None if none does."""
    return _mean(weights, lambda rows, _first: torch.special.entr(rows.clamp(min=0)))


def distance(weights: Float[Tensor, "query key"]) -> float | None:
    """Mean |i - j|, by the weights, of the queries that read; None if none does."""
    key = torch.arange(weights.shape[1])

    def far(rows: Tensor, first: int) -> Tensor:
        return rows * (torch.arange(first, first + len(rows))[:, None] - key).abs()

    return _mean(weights, far)


def measures(one: Map) -> dict[str, Callable[[Tensor], float | None]]:
    """The summaries that a head of a map can have, by name: none if the map holds no weights."""
    if one.measure != "weight":
        return {}
    is_sequence = one.queries == one.keys or {one.queries, one.keys} == {"said", "fed"}
    found: dict[str, Callable[[Tensor], float | None]] = {"entropy": entropy}
    return found | {"distance": distance} if is_sequence else found


def summaries(one: Map) -> dict[str, list[float | None]]:
    """The summaries of each head."""
    heads = range(len(one.heads))
    return {name: [measure(one.head(head)) for head in heads] for name, measure in measures(one).items()}


def with_rollout(seen: Seen) -> Seen:
    """The scene with maps of measure "rollout": of each layer of an encoder (or of a decoder that reads no source) and
    of a pooling query; as it is if a layer is missing, or the sequence is longer than MAX_ROLLOUT."""
    layers = _layers(seen)
    if not layers or len(seen.queries(layers[0])) > MAX_ROLLOUT:
        return seen
    size = len(seen.queries(layers[0]))
    total, maps = torch.eye(size, dtype=torch.float64), []
    for one in layers:
        total = (one.weights.double().mean(0) + torch.eye(size, dtype=torch.float64)) / 2 @ total
        maps.append(_rolled(one, total))
    if layers[0].kind == "encoder self":
        pools = (one for one in seen.find("pooling") if one.keys == layers[0].queries)
        maps += [_rolled(one, one.weights.double().mean(0) @ total) for one in pools]
    return Seen(scene=seen.scene, maps=(*seen.maps, *maps))


def _layers(seen: Seen) -> Sequence[Map]:
    """The self-attention of all layers, from the first on; empty if that is not what there is."""
    layers = [one for one in seen.find("encoder self") if one.queries == one.keys]
    if not layers and not seen.find("cross"):
        layers = [one for one in seen.find("decoder self") if len(seen.queries(one)) == len(seen.keys(one))]
    is_whole = [one.layer for one in layers] == list(range(1, len(layers) + 1))
    same = len({(one.queries, one.keys) for one in layers}) == 1
    return layers if is_whole and same else []


def _rolled(one: Map, numbers: Tensor) -> Map:
    kept = numbers.float()
    return replace(one, key=f"rollout/{one.key}", measure="rollout", heads=("",), facts={}, load=lambda _head: kept)


def _mean(weights: Tensor, terms: Callable[[Tensor, int], Tensor]) -> float | None:
    """Mean over the queries that read of the sum of their terms; some rows at a time."""
    step = max(1, _BLOCK // max(1, weights.shape[1]))
    total, count = 0.0, 0
    for first in range(0, len(weights), step):
        rows = weights[first : first + step].double()
        reads = rows.sum(-1) > 0
        total += float(terms(rows, first).sum(-1)[reads].sum())
        count += int(reads.sum())
    return total / count if count else None
