"""Interpreter of a lowered form in plain torch, and comparison of a form with its model.

    logits(form, source, target)[t] = logits of the token after target[: t + 1]
    probe(form, model)              raises unless the steps of the model give the same logits

The interpreter is written from the formulas alone and shares no code with the modules. So a wrong
form, a replaced method or a patched function of torch results in a difference.

Source: lattner2004 (lowering); the formulas are those of vaswani2017, section 3.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.attention.scores import InnerProduct
from regard.layers import forms
from regard.layers.positions.sinusoidal import sinusoids

_TOLERANCE = 1e-4
"""Largest difference of logits due to rounding, relative to the largest logit."""
_LENGTHS = (1, 3, 6)
_STEPS = 4
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + (x * math.sqrt(0.5)).erf()) / 2,
    "gelu-tanh": lambda x: x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()) / 2,
    "silu": lambda x: x / (1 + (-x).exp()),
}


def logits(form: forms.TextForm, source: Tensor | None, target: Tensor) -> Tensor:
    """Return the logits (target, vocab) of the token after each of `target`.

    form:   a form that `regard.engines.lowering.lower` returned.
    source: None for a language model.
    Raises: ValueError or RuntimeError if sizes of the form do not match.
    """
    core, writer = form.core, form.writer
    _require(len(writer.inputs.weight) == len(writer.output.weight), "it has two vocabularies")
    memory = None
    if form.source is not None and source is not None:
        memory = _add_positions(form, _embed(form.source, source))
        for block in core.encoder:
            memory = _block(block, memory, None, causal=False)
        memory = _normalize(core.encoder_norm, memory)
    items = _add_positions(form, _embed(writer.inputs, target))
    for block in core.decoder:
        items = _block(block, items, memory, causal=True)
    hidden, table = _normalize(core.decoder_norm, items), writer.output
    return (hidden if table.projection is None else hidden @ table.projection) @ table.weight.T


def probe(form: forms.TextForm, model: Any) -> None:
    """Run the model for a few steps and compare its logits with those of the form.

    Raises: forms.NoFormError with the reason if they differ or cannot be computed.
    """
    limit = form.max_positions or max(_LENGTHS)
    steps, rows = min(_STEPS, limit), range(len(_LENGTHS))
    targets = torch.stack([_ids(len(form.writer.output.weight), steps, row) for row in rows])
    sources = None
    if form.source is not None:
        ids = len(form.source.weight)
        sources = [_ids(ids, min(_LENGTHS[row], limit), row) for row in rows]
    try:
        # Weights created in inference mode are only read here.
        with (
            torch.inference_mode(mode=False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            expected = _steps_of(model, sources, targets)
            inputs = [None] * len(rows) if sources is None else sources
            pairs = zip(inputs, targets, strict=True)
            actual = torch.stack([logits(form, source, target) for source, target in pairs])
    except (ValueError, RuntimeError, TypeError, AttributeError, IndexError) as error:
        reason = str(error).splitlines()[0][:200]
        raise forms.NoFormError(model, f"cannot be computed: {reason}") from error
    if actual.shape != expected.shape:
        shapes = f"{tuple(expected.shape)}, but its modules give {tuple(actual.shape)}"
        raise forms.NoFormError(model, f"gives logits of shape {shapes}")
    finite = expected.isfinite()  # logits that are not finite are an error in every engine
    if not finite.any():
        return
    difference = (actual - expected)[finite].abs().amax().item()
    if not difference <= _TOLERANCE * max(1.0, expected[finite].abs().amax().item()):
        reason = f"they differ by {difference:.3g} in a test"
        raise forms.NoFormError(model, f"gives other logits than its modules: {reason}")


def _steps_of(model: Any, sources: list[Tensor] | None, targets: Tensor) -> Tensor:
    """Return the logits (row, step, vocab) of a batch of sources of any lengths, token by token."""
    if sources is None:
        state = model.start(rows=len(targets))
    else:
        lengths = torch.tensor([len(ids) for ids in sources])
        state = model.start(Padded(nn.utils.rnn.pad_sequence(sources, batch_first=True), lengths))
    collected = []
    for tokens in targets.unbind(1):
        step_logits, state = model.step(tokens, state)
        collected.append(step_logits)
    return torch.stack(collected, 1)


def _ids(vocab: int, count: int, row: int) -> Tensor:
    """Return ids spread over the vocabulary, including the last one."""
    return (vocab - 1 - (torch.arange(count) + row) * max(1, vocab // (count + 1))) % vocab


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)


def _embed(table: forms.TableForm, ids: Tensor) -> Tensor:
    items = table.weight[ids] * table.scale
    return items if table.projection is None else items @ table.projection.T


def _add_positions(form: forms.TextForm, items: Tensor) -> Tensor:
    match form.core.positions:
        case forms.SinusoidsForm(dim):
            encodings = sinusoids(0, len(items), dim)
        case forms.LearnedForm(weight):
            encodings = weight[: len(items)]
        case None:
            return items
    sizes = f"{tuple(encodings.shape)} for items {tuple(items.shape)}"
    _require(encodings.shape == items.shape, f"positions are {sizes}")
    return items + encodings


def _block(block: forms.BlockForm, items: Tensor, memory: Tensor | None, *, causal: bool) -> Tensor:
    def read(x: Tensor) -> Tensor:
        return _attention(block.attention, x, x, causal, block.window)

    items = _add_norm(block.add_attention, items, read)
    cross, add_cross = block.cross, block.add_cross
    if cross is not None and add_cross is not None and memory is not None:
        items = _add_norm(add_cross, items, lambda x: _attention(cross, x, memory, False, None))
    return _add_norm(block.add_feedforward, items, lambda x: _feedforward(block.feedforward, x))


def _feedforward(form: forms.FeedForwardForm, items: Tensor) -> Tensor:
    activation, hidden = _ACTIVATIONS[form.activation], _linear(form.expand, items)
    if form.gate is None:
        return _linear(form.contract, activation(hidden))
    return _linear(form.contract, activation(_linear(form.gate, items)) * hidden)


def _add_norm(form: forms.AddNormForm, items: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
    if form.order == "pre":
        return items + layer(_normalize(form.norm, items))
    return _normalize(form.norm, items + layer(items))


def _normalize(form: forms.NormForm | None, items: Tensor) -> Tensor:
    if form is None:
        return items
    sizes = {part.shape for part in (form.scale, form.shift) if part is not None}
    fits = sizes | {torch.Size((form.size,))} == {items.shape[-1:]}
    _require(fits, f"a norm of {form.size} numbers does not fit")
    centered = items if form.is_rms else items - items.mean(-1, keepdim=True)
    out = centered / (centered.square().mean(-1, keepdim=True) + form.eps).sqrt()
    out = out if form.scale is None else out * form.scale
    return out if form.shift is None else out + form.shift


def _linear(form: forms.LinearForm, items: Tensor) -> Tensor:
    out = items @ form.weight.T
    if form.bias is None:
        return out
    fits = form.bias.shape == form.weight.shape[:1]
    _require(fits, f"a bias of {tuple(form.bias.shape)} does not fit")
    return out + form.bias


def _rotate(form: forms.RotaryForm | None, vectors: Tensor) -> Tensor:
    """Rotate vectors (head, time, size): each pair is a complex number, times e^(i angle)."""
    if form is None:
        return vectors
    count = len(form.rates)
    _require(vectors.shape[-1] >= 2 * count, f"rotary positions of {2 * count} numbers do not fit")
    pairs, rest = vectors[..., : 2 * count], vectors[..., 2 * count :]
    if form.interleaved:
        pairs = pairs.unflatten(-1, (count, 2))
    else:
        pairs = pairs.unflatten(-1, (2, count)).mT
    angles = torch.arange(vectors.shape[1], dtype=torch.float64)[:, None] * form.rates
    factors = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    rotated = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * factors)
    return torch.cat(((rotated if form.interleaved else rotated.mT).flatten(-2), rest), -1)


def _attention(
    form: forms.AttentionForm, items: Tensor, memory: Tensor, causal: bool, window: int | None
) -> Tensor:
    read, heads, key_heads = form.read, form.num_heads, form.key_heads
    assert isinstance(read.score, InnerProduct)
    query = _linear(form.query, items).unflatten(-1, (heads, -1)).transpose(0, 1)
    key = _linear(form.key, memory).unflatten(-1, (key_heads, -1)).transpose(0, 1)
    query, key = _rotate(form.rotary, query), _rotate(form.rotary, key)
    key = key.repeat_interleave(heads // key_heads, 0)
    value = _linear(form.value, memory).unflatten(-1, (key_heads, -1)).transpose(0, 1)
    scores = query @ key.transpose(1, 2) * read.score.scale
    distance = torch.arange(len(memory)) - torch.arange(len(items))[:, None]
    if read.bias is not None:
        bias = read.bias.at(distance, scores.dtype)
        fits = bias.dim() == 2 or (bias.dim() == 3 and len(bias) in (1, heads))
        _require(fits, "its positional bias has another number of heads")
        scores = scores + bias
    if causal:
        hidden = (distance > 0) | (distance <= -(window or math.inf))
        scores = scores.masked_fill(hidden, -math.inf)
    out = scores.softmax(-1) @ value.repeat_interleave(heads // key_heads, 0)
    return _linear(form.output, out.transpose(0, 1).flatten(1))
