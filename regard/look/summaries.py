"""Summaries of a head in one number, and attention rollout through all layers.

    entropy    H = mean_i  - sum_j a_ij ln a_ij            nats; 0: one key per query, ln n: n keys equally
    distance   D = mean_i  sum_j a_ij |i - j|              entries; only if queries and keys are the same sequence
    rollout    R_0 = I      R_l = (mean_h A_l^h + I) / 2  R_{l-1}
               of a pooling query: mean_h a^h R_L

Means are over the queries that are not fully masked. Rollout assumes that half of each layer's output is its input (the
residual connection), and ignores values, norms and feed-forward networks: it shows paths, it does not prove influence.
None of these explains why a model made a prediction. (jain2019, wiegreffe2019)

Source: rollout abnar2020, section 3; entropy of heads clark2019, section 3; mean distance vig2019, section 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.look.map import AttentionMap, SampleMaps

MAX_ROLLOUT = 1024
"""Longest sequence that rollout is computed for: its cost per layer is cubic in the length."""

_BLOCK = 1 << 18


def entropy(weights: Float[Tensor, "query key"]) -> float | None:
    """Return the mean entropy in nats over the queries that are not fully masked; None if all are."""
    return _mean(weights, lambda rows, _first: torch.special.entr(rows.clamp(min=0)))


def distance(weights: Float[Tensor, "query key"]) -> float | None:
    """Return the mean |i - j|, weighted, over the queries that are not fully masked; None if all are."""
    key = torch.arange(weights.shape[1])

    def weighted_distances(rows: Tensor, first: int) -> Tensor:
        return rows * (torch.arange(first, first + len(rows))[:, None] - key).abs()

    return _mean(weights, weighted_distances)


def measures(attention_map: AttentionMap) -> dict[str, Callable[[Tensor], float | None]]:
    """Return the functions that summarize a head of a map, by name; none if its values are not weights."""
    if attention_map.measure != "weight":
        return {}
    queries, keys = attention_map.queries, attention_map.keys
    is_sequence = queries == keys or {queries, keys} == {"said", "fed"}
    functions: dict[str, Callable[[Tensor], float | None]] = {"entropy": entropy}
    return functions | {"distance": distance} if is_sequence else functions


def summaries(attention_map: AttentionMap) -> dict[str, list[float | None]]:
    """Return the summaries of each head, by name."""
    heads = range(len(attention_map.heads))
    return {
        name: [measure(attention_map.head(head)) for head in heads] for name, measure in measures(attention_map).items()
    }


def with_rollout(sample_maps: SampleMaps) -> SampleMaps:
    """Add maps of measure "rollout": of each layer of an encoder (or of a decoder-only model), and of a pooling query.

    Returns the sample unchanged if a layer is missing, or the sequence is longer than MAX_ROLLOUT.
    """
    layers = _layers(sample_maps)
    if not layers or len(sample_maps.queries(layers[0])) > MAX_ROLLOUT:
        return sample_maps
    size = len(sample_maps.queries(layers[0]))
    total, maps = torch.eye(size, dtype=torch.float64), []
    for layer in layers:
        total = (layer.weights.double().mean(0) + torch.eye(size, dtype=torch.float64)) / 2 @ total
        maps.append(_rollout_map(layer, total))
    if layers[0].kind == "encoder self":
        poolings = (pooling for pooling in sample_maps.find("pooling") if pooling.keys == layers[0].queries)
        maps += [_rollout_map(pooling, pooling.weights.double().mean(0) @ total) for pooling in poolings]
    return SampleMaps(sample=sample_maps.sample, maps=(*sample_maps.maps, *maps))


def _layers(sample_maps: SampleMaps) -> Sequence[AttentionMap]:
    """Return the self-attention maps of all layers in order; empty if a layer is missing or their axes differ."""
    layers = [layer for layer in sample_maps.find("encoder self") if layer.queries == layer.keys]
    if not layers and not sample_maps.find("cross"):
        layers = [
            layer
            for layer in sample_maps.find("decoder self")
            if len(sample_maps.queries(layer)) == len(sample_maps.keys(layer))
        ]
    is_complete = [layer.layer for layer in layers] == list(range(1, len(layers) + 1))
    has_same_axes = len({(layer.queries, layer.keys) for layer in layers}) == 1
    return layers if is_complete and has_same_axes else []


def _rollout_map(attention_map: AttentionMap, numbers: Tensor) -> AttentionMap:
    values, key = numbers.float(), f"rollout/{attention_map.key}"
    return replace(attention_map, key=key, measure="rollout", heads=("",), facts={}, load=lambda _head: values)


def _mean(weights: Tensor, terms: Callable[[Tensor, int], Tensor]) -> float | None:
    """Return the mean over queries that are not fully masked of the sum of their terms, computed in blocks of rows."""
    step = max(1, _BLOCK // max(1, weights.shape[1]))
    total, count = 0.0, 0
    for first in range(0, len(weights), step):
        rows = weights[first : first + step].double()
        reads = rows.sum(-1) > 0
        total += float(terms(rows, first).sum(-1)[reads].sum())
        count += int(reads.sum())
    return total / count if count else None
