"""Measures of attention: entropy, mean distance, rollout, weight times gradient; contributions.

Source: vig2019; abnar2020; chefer2021; elhage2021.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.look.maps import CONTRIBUTION, LOGITS, AttentionMap, SampleMaps
from regard.look.recording import Call, Recording
from regard.look.sample import Axis, Sample

MAX_ROLLOUT = 1024
"""Longest sequence that rollout is computed for: its cost per layer is cubic in the length."""
MAX_SCORES = 10
"""Maximum number of scores that are explained, the best first."""
ITEMS = "items and bias"


def entropy(weights: Float[Tensor, "query key"]) -> float | None:
    """Return the mean entropy in nats over the queries not fully masked; None if all are."""
    return _mean(weights, torch.special.entr(weights.double().clamp(min=0)))


def distance(weights: Float[Tensor, "query key"]) -> float | None:
    """Return the weighted mean |i - j| over the queries not fully masked; None if all are."""
    query, key = torch.arange(len(weights))[:, None], torch.arange(weights.shape[1])
    return _mean(weights, weights.double() * (query - key).abs())


def summaries(attention_map: AttentionMap) -> dict[str, list[float | None]]:
    """Return the entropy and, within a sequence, the distance of each head of a map of weights."""
    if attention_map.measure != "weight":
        return {}
    measures: dict[str, Callable[[Tensor], float | None]] = {"entropy": entropy}
    axes = {attention_map.queries, attention_map.keys}
    if len(axes) == 1 or axes == {"output", "decoder input"}:
        measures["distance"] = distance
    found: dict[str, list[float | None]] = {name: [] for name in measures}
    for head in range(len(attention_map.heads)):
        weights = attention_map.head(head).double()  # those of sinks and sigmoids may sum to less
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)
        for name, measure in measures.items():
            found[name].append(measure(weights))
    return found


def with_rollout(sample_maps: SampleMaps) -> SampleMaps:
    """Add maps of measure "rollout": of each layer of an encoder (or decoder), and a pooling query.

    Returns the sample unchanged if a layer is missing, or the sequence is longer than MAX_ROLLOUT.
    """
    layers = [own for own in sample_maps.find("encoder self") if own.queries == own.keys]
    if not layers and not sample_maps.find("cross"):
        for own in sample_maps.find("decoder self"):
            if len(sample_maps.queries(own)) == len(sample_maps.keys(own)):
                layers.append(own)
    is_complete = [own.layer for own in layers] == list(range(1, len(layers) + 1))
    has_same_axes = len({(own.queries, own.keys) for own in layers}) == 1
    if not is_complete or not has_same_axes or len(sample_maps.queries(layers[0])) > MAX_ROLLOUT:
        return sample_maps
    identity = torch.eye(len(sample_maps.queries(layers[0])), dtype=torch.float64)
    total, maps = identity, []
    for layer in layers:
        total = (layer.weights.double().mean(0) + identity) / 2 @ total
        maps.append(_rollout_map(layer, total))
    if layers[0].kind == "encoder self":
        for pooling in sample_maps.find("pooling"):
            if pooling.keys == layers[0].queries:
                maps.append(_rollout_map(pooling, pooling.weights.double().mean(0) @ total))
    return SampleMaps(sample=sample_maps.sample, maps=(*sample_maps.maps, *maps))


def _rollout_map(own: AttentionMap, numbers: Tensor) -> AttentionMap:
    values = numbers.float()
    return replace(
        own,
        key=f"rollout/{own.key}",
        measure="rollout",
        heads=("",),
        facts={},
        head=lambda _: values,
        vectors=None,
    )


def _mean(weights: Tensor, terms: Tensor) -> float | None:
    """Return the mean, over queries not fully masked, of the sum of their terms."""
    sums = terms.sum(-1)[weights.double().sum(-1) > 0]
    return float(sums.mean()) if len(sums) else None


def contribution_maps(
    sample: Sample,
    parts: Sequence[str],
    terms: Tensor,
    bias: Tensor,
    *,
    names: Sequence[str],
    quantity: str,
) -> SampleMaps:
    """Return the map of contributions to some scores of one sample (regard.models.writers.vector).

        parts \\ items      x_1   x_2  ...  x_n   bias
        all parts                                        the sum of the rows below
        head 1, counts ...
        bias

    sample:   whose axis "source" names the items.
    terms:    (score, part, item), with the padding after the items, if there is any.
    bias:     (score,)
    names:    of the scores: each is a head of the map.
    quantity: what a score is: "log-odds".
    """
    source = sample.axes["source"]
    terms, bias = terms.detach().cpu().double()[..., : len(source)], bias.detach().cpu().double()
    rows = torch.nn.functional.pad(terms, (0, 1))
    last = torch.cat((terms.new_zeros(len(terms), terms.shape[-1]), bias[:, None]), -1)[:, None]
    values = torch.cat((rows.sum(1, keepdim=True) + last, rows, last), 1).float()
    places = (*source.places, None) if source.places else ()
    axes = {
        "parts": Axis(labels=("all parts", *parts, "bias"), kind="part"),
        ITEMS: replace(source, labels=(*source.labels, "(bias)"), places=places),
    }
    sums = zip(names, values[:, 0].sum(-1).tolist(), strict=True)
    fact = f"{quantity}: {', '.join(f'{name} {total:+.3f}' for name, total in sums)}"
    return _contributions(sample, axes, values, names, fact)


def decoder_contribution_map(
    sample: Sample, parts: Sequence[str], terms: Tensor, bias: Tensor, *, tokens: Sequence[str]
) -> SampleMaps:
    """Return the map of contributions to each output token's logit (regard.models.decoder_terms).

    terms:  (part, step)
    bias:   (step,), what the shifts of norms add
    tokens: labels of the output tokens.
    """
    rows, last = terms.detach().cpu().double(), bias.detach().cpu().double()[None]
    labels = ["all parts", *parts]
    if bool(last.any()):
        rows = torch.cat((rows, last))
        labels.append("shifts of norms")
    values = torch.cat((rows.sum(0, keepdim=True), rows)).float()[None]
    axes = {
        "parts of the decoder": Axis(labels=tuple(labels), kind="part"),
        LOGITS: Axis(labels=tuple(tokens), kind="output token"),
    }
    fact = "logit of the output token minus the mean logit over the vocabulary"
    return _contributions(sample, axes, values, ["logit of each output token"], fact)


def _contributions(
    sample: Sample, axes: dict[str, Axis], values: Tensor, names: Sequence[str], fact: str
) -> SampleMaps:
    """Return the map of contributions (score, part, item); axes: of parts and of items."""
    queries, keys = axes
    own = AttentionMap(
        key=CONTRIBUTION,
        name="writes",
        kind="other",
        layer=1,
        measure=CONTRIBUTION,
        queries=queries,
        keys=keys,
        heads=tuple(names),
        facts={"sum": fact},
        head=lambda head: values[head],
    )
    return SampleMaps(sample=replace(sample, axes=sample.axes | axes), maps=(own,))


class GradientCall(NamedTuple):
    """Call whose output is part of an autograd graph."""

    name: str
    call: Call
    values: Tensor
    """([batch, [head,]] key, value_dim), with as many heads as the queries"""
    output: Tensor
    """([batch, [head,]] query, value_dim)"""


def multiply_by_gradients(
    recording: Recording, graph_calls: Sequence[GradientCall], number: Tensor
) -> Recording:
    """Return a recording of the same calls that holds weight times gradient of `number`.

    Raises: ValueError without gradients, or if `number` does not depend on a call of the recording.
    """
    if not graph_calls:
        raise ValueError(
            "there is no graph to differentiate: run the model with gradients inside the recording"
        )
    outputs = [call.output for call in graph_calls]
    gradients = torch.autograd.grad(number, outputs, retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise ValueError("the number does not depend on any read that was recorded")
    result = Recording({name: recording.roles[name] for name in recording.names})
    for (name, call, values, _), gradient in zip(graph_calls, gradients, strict=True):
        weights = torch.from_numpy(call.weights).float()
        if gradient is None:
            products = torch.zeros_like(weights)
        else:
            by_weight = gradient.float() @ values.detach().float().transpose(-1, -2)
            products = weights * by_weight.cpu().reshape(weights.shape)
        result.calls[name].append(replace(call, weights=products.numpy(), vectors=None, state=None))
    return result
