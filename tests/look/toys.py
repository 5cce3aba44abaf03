"""Small sequence-to-sequence models, captures of their searches, and the expected weights."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.decode.config import DecodeConfig
from regard.decode.search import search
from regard.layers.multihead import MultiHead
from regard.look.capture import Capture
from regard.look.hooks import record_weights
from regard.look.record import record
from regard.look.sample import Axis, Sample
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import (
    CoreConfig,
    RecurrentConfig,
    SelfAttentiveConfig,
    TransformerConfig,
)
from regard.models.model import Model

BOS, EOS, PAD = 2, 3, 0
SOURCES = [[5, 4, 9, 6, 3], [7, 3], [8, 8, 4, 3], [10, 9, 6, 5, 4, 7, 3]]
_READING = {"width": 6, "hidden": 8, "attention_hidden": 5}
CORES: dict[str, CoreConfig] = {
    "transformer": TransformerConfig(layers=1, decoder_layers=3, width=6, heads=2, feedforward=5),
    "recurrent": RecurrentConfig(layers=2, **_READING),
    "lstm": SelfAttentiveConfig(layers=2, self_attention_hidden=3, **_READING),
    "rnn": SelfAttentiveConfig(layers=2, self_attention_hidden=3, cell="rnn", **_READING),
}


def model_of(core: CoreConfig, seed: int = 1) -> Model:
    """Return a new model in float64 with dropout, in evaluation mode."""
    torch.manual_seed(seed)
    return (
        build(ModelConfig(core=core, dropout=0.4), source_vocab=11, target_vocab=11).double().eval()
    )


def small(seed: int = 1) -> Model:
    """Return a Transformer in float32 with large weights, whose beams diverge."""
    model = model_of(CORES["transformer"], seed).float()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    return model


def source_of(*rows: list[int]) -> Padded:
    """Return a padded batch of rows of ids."""
    items = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return Padded(items, torch.tensor([len(row) for row in rows]))


def sample_of(ids: list[int]) -> Sample:
    """Return a sample whose tokens have the labels t0, t1, ..."""
    return Sample(
        title=f"source {ids}",
        axes={"source": Axis(labels=_labels(ids), kind="token")},
        tokens=_labels,
        text=lambda ids: " ".join(_labels(ids)),
        begin="begin",
    )


def _labels(ids) -> tuple[str, ...]:
    return tuple(f"t{number}" for number in ids)


def capture_sources(
    model: Model, sources: list[list[int]], *, vectors: bool = False, **options: int
) -> Capture:
    """Return the capture of a search; options as in DecodeConfig."""
    config = DecodeConfig(max_ratio=0, max_extra=6, **options)
    with (
        record(model, dtype=next(model.parameters()).dtype, vectors=vectors) as capture,
        capture.trace.segment([sample_of(ids) for ids in sources]),
    ):
        search(model, sources, config=config, bos=BOS, eos=EOS, pad=PAD, trace=capture.trace)
    return capture


def output_ids_of(sample_maps) -> list[int]:
    """Return the ids of an output."""
    return [int(label[1:]) for label in sample_maps.sample.axes["output"].labels]


def stack_steps(calls: Sequence[Tensor]) -> Tensor:
    """Return calls of one query as one tensor; keys of later calls have weight zero."""
    num_keys = max(call.shape[-1] for call in calls)
    padded = [nn.functional.pad(call, (0, num_keys - call.shape[-1])) for call in calls]
    return torch.cat(padded, -2)


def forced_weights(model: Model, source: list[int], target: list[int]) -> dict[str, Tensor]:
    """Return the weights of all reads of one row with teacher forcing; single queries stacked."""
    with record_weights(model, dtype=torch.float64) as maps, torch.no_grad():
        model(source_of(source), source_of([BOS, *target]))
    return {
        name: (stack_steps(maps[name]) if maps[name][0].shape[-2] == 1 else maps[name][0])[0]
        for name in maps.names
    }


def step_weights(model: Model, source: list[int], target: list[int]) -> dict[str, Tensor]:
    """Return the weights of the reads of one row in the steps of a target only."""
    with torch.no_grad():
        state = model.start(source_of(source))
        with record_weights(model, dtype=torch.float64) as maps:
            for token in [BOS, *target[:-1]]:
                _, state = model.step(torch.tensor([token]), state)
    return {name: stack_steps(maps[name])[0] for name in maps.names}


def head_formulas(
    heads: MultiHead, head: int, x: Tensor, source: Tensor, *, is_causal: bool = False
) -> dict[str, Tensor]:
    """Return the matrices of a head for given items, written anew. (lectures, C.6)"""
    found = {}
    for letter, name, items in (("Q", "query", x), ("K", "key", source), ("V", "value", source)):
        linear = getattr(heads, name)
        size = linear.out_features // heads.num_heads
        rows = slice(head * size, (head + 1) * size)
        found[f"W_{letter}"] = linear.weight.detach()[rows].T
        found[letter] = items @ found[f"W_{letter}"] + linear.bias.detach()[rows]
    scores = found["Q"] @ found["K"].T / math.sqrt(found["Q"].shape[-1])
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape).triu(1) > 0, -torch.inf)
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return found | {"S": scores, "A": weights, "Z": weights @ found["V"]}


def encoder_formulas(model: Model, head: int) -> dict[str, Tensor]:
    """Return the matrices of the encoder's first layer for SOURCES[0], and its output."""
    attention, inputs = model.core.encoder[0].attention, []
    handle = attention.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0]))
    with torch.no_grad():
        model(source_of(SOURCES[0]), source_of([BOS]))
        found = {"X": inputs[0], "out": attention(inputs[0][None])[0]}
    handle.remove()
    return found | head_formulas(attention, head, found["X"], found["X"])
