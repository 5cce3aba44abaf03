"""Models, reads, memories and searches compute on a device what they compute on the CPU."""

import copy
import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.choices import Hard, Proportional
from regard.attention.masks import causal, dense, padding
from regard.attention.memory import (
    LinearState,
    Memory,
    QuantizedMemory,
    RingMemory,
    SlidingMemory,
    StaticMemory,
)
from regard.attention.scores import Additive, FeatureMap
from regard.data.batches import Batch
from regard.decode.beam import beam
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.config import AutoencoderConfig, ContractiveConfig, KLConfig
from regard.models.autoencoders.latent import LatentVariableModel
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from tests.contracts import test_cores as cores
from tests.contracts import test_grid as reads
from tests.devices.pretended import CPU, CUDA, pretended_cuda
from tests.helpers import close
from tests.models import test_grid as models

CELLS = [
    (reader, core, writer)
    for (core, writer), reader in zip(
        itertools.product(models.CORES, models.WRITERS), itertools.cycle(models.READERS)
    )
]
"""Every core with every writer, and every reader with four of these."""
_LIKE_OTHERS = r"-(post|pre)-|[12]x[12]$|-sizes|-values$|elu$|silu$|no-bias$"
CORES = [name for name in cores.CONFIGS if not re.search(_LIKE_OTHERS, name)]
"""Cores that differ in more than sizes, norms, biases and activations."""
AUTOENCODERS: dict[str, tuple[type, dict[str, Any], tuple[int, ...]]] = {
    "dense": (Autoencoder, {"hidden": 7}, (1, 4, 4)),
    "contractive": (Autoencoder, {"layers": 1, "regularizer": ContractiveConfig()}, (6,)),
    "kl": (Autoencoder, {"hidden": 7, "regularizer": KLConfig()}, (6,)),
    "convolutional": (Autoencoder, {"kind": "convolutional", "channels": 4}, (2, 8, 8)),
    "quantized": (
        QuantizedAutoencoder,
        {"kind": "quantized", "channels": 4, "codebook_size": 8},
        (2, 8, 8),
    ),
    "latent": (LatentVariableModel, {"kind": "latent", "hidden": 7}, (6,)),
}


def move_to(value: Any, device: torch.device) -> Any:
    """Return a tensor, batch, source or target on a device."""
    if isinstance(value, models.Example):
        return type(value)(move_to(value.source, device), move_to(value.target, device))
    return value.to(device)


def train(model: nn.Module, batch: Any) -> list[Tensor]:
    """Train a step; return the loss and the gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(3)
    loss = model.train().loss(batch)
    loss.total.backward()
    optimizer.step()
    model.eval()
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    return [x.detach().cpu() for x in (loss.total, *gradients)]


def compare(model: nn.Module, batch: Any, run: Any) -> None:
    """Fail unless a training step and an evaluation are the same on the device."""
    own = copy.deepcopy(model)
    expected = train(model, batch), run(model, batch)
    with pretended_cuda() as device:
        own, batch = own.to(CUDA), move_to(batch, CUDA)
        actual = train(own, batch), run(own, batch)
    assert not device.indices()
    for one, other in zip(itertools.chain(*actual), itertools.chain(*expected), strict=True):
        close(one, other)


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_readers_cores_and_writers(cell: tuple[str, str, str]) -> None:
    reader, core, writer = cell
    model = models.make_model(reader, core, writer).double()
    example = models.make_example(reader, writer)
    example.source = models.to_double(example.source)
    compare(model, example, lambda model, batch: [models.predict(model, batch).detach().cpu()])


@pytest.mark.parametrize("name", CORES)
def test_cores_train_and_decode(name: str) -> None:
    torch.manual_seed(1)
    model, pair = cores.model_of(cores.CONFIGS[name]), cores.batch()
    ids = {"bos": 2, "eos": 3, "banned": (0, 2)}

    def decode(model: Any, pair: Any) -> list[Tensor]:
        found = beam(model, pair.source, beam=2, max_length=5, **ids)
        return [torch.tensor(best[0].tokens) for best in found]

    compare(model, pair, decode)


@pytest.mark.parametrize("name", AUTOENCODERS)
def test_autoencoders(name: str) -> None:
    kind, options, shape = AUTOENCODERS[name]
    torch.manual_seed(1)
    model = kind(AutoencoderConfig(**options), shape).double()
    batch = Batch(torch.rand(5, *shape, dtype=torch.float64), torch.zeros(5), tuple(range(5)))

    def rebuild(model: Any, batch: Any) -> list[Tensor]:
        run = model if name == "kl" else model.energy
        return [run(batch.source).detach().cpu()]

    compare(model, batch, rebuild)


def read_all(score: str, choice: str, device: torch.device) -> list[Tensor]:
    """Return the result of each read with a mask and a bias, and the gradient of the query."""
    results = []
    biases = itertools.cycle(reads.BIASES)
    for mask in reads.MASKS:
        torch.manual_seed(7)
        parts = reads.make_parts(score, choice, mask, next(biases))
        tensors = [torch.randn(3, 2, *shape, dtype=torch.float64) for shape in reads.SHAPES]
        if mask == "holes":
            parts["mask"] = dense(reads.HOLES.to(device)) & padding([6, 7, 2])
        for name, part in parts.items():
            if isinstance(part, nn.Module | Tensor):
                parts[name] = part.double().to(device)
        query, *memory = (tensor.to(device) for tensor in tensors)
        query.requires_grad_()
        out = attend(query, tuple(memory), **parts)
        (gradient,) = torch.autograd.grad(out.sin().sum(), query, allow_unused=True)
        results += [out.detach().cpu(), out.new_zeros(1) if gradient is None else gradient.cpu()]
    return [result.cpu() for result in results]


@pytest.mark.parametrize(("score", "choice"), reads.READS)
def test_reads(score: str, choice: str, gpu: torch.device) -> None:
    pairs = zip(read_all(score, choice, gpu), read_all(score, choice, CPU), strict=True)
    for one, other in pairs:
        close(one, other)


@pytest.mark.parametrize("gradient", ["none", "straight-through", "gumbel"])
def test_estimators_of_hard_choices(gradient: Any) -> None:
    def run(device: torch.device) -> list[Tensor]:
        torch.manual_seed(2)
        query, keys = torch.randn(2, 3, 7).to(device).requires_grad_(), torch.randn(2, 5, 7)
        keys = keys.to(device)
        out = attend(query, (keys, keys), choice=Hard(gradient))
        if out.requires_grad:
            out.sum().backward()
        return [out.detach().cpu(), (torch.zeros(1) if query.grad is None else query.grad).cpu()]

    expected = run(CPU)
    with pretended_cuda():
        for one, other in zip(run(CUDA), expected, strict=True):
            close(one, other)


def make_memory(kind: str, keys: Tensor, values: Tensor) -> Any:
    """Return an empty memory, or one of these pairs."""
    sizes = {"key_dim": 7, "value_dim": 5, "device": keys.device}
    if kind == "static":
        return StaticMemory.empty((3, 2), capacity=20, **sizes).extend(keys, values)
    if kind == "ring":
        return RingMemory.empty((3, 2), window=6, most=4, **sizes).extend(keys, values)
    memory = Memory(keys, values)
    if kind == "sliding":
        return SlidingMemory.of(memory, window=4)
    return QuantizedMemory.of(memory) if kind == "quantized" else memory


def use_memory(kind: str, device: torch.device) -> list[Tensor]:
    torch.manual_seed(4)
    score = Additive(7, 7, hidden=3).to(device)
    query, keys, values = (torch.randn(3, 2, 4, dim).to(device) for dim in (7, 7, 5))
    memory, results = make_memory(kind, keys, values), []
    for change in ("none", "extend", "select", "map", "extend"):
        if change == "extend":
            more = score.map_keys(keys[..., :2, :]) if memory.mapped_by else keys[..., :2, :]
            memory = memory.extend(more, values[..., :2, :])
        elif change == "select":
            memory = memory.select(torch.tensor([2, 0, 1], device=device))
        elif change == "map":
            memory = memory.map_keys_with(score)
        results.append(attend(query[..., :2, :], memory, score=score, mask=causal()))
    return [result.cpu() for result in results]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["growing", "static", "ring", "sliding", "quantized"])
def test_memories(kind: str, gpu: torch.device) -> None:
    for one, other in zip(use_memory(kind, gpu), use_memory(kind, CPU), strict=True):
        close(one, other)


def look_up(device: torch.device) -> list[Tensor]:
    keys, values = torch.arange(12.0).view(2, 3, 2).to(device), torch.ones(2, 3, 4).to(device)
    memory = (
        Memory(keys[:, :0], values[:, :0]).put(keys, values).put(keys[:, :2], 2 * values[:, :2])
    )
    found = [memory.get(keys), memory.contains(keys + 1), memory.counts]
    memory = memory.delete(keys[:, 1])
    return [x.cpu() for x in (*found, memory.get(keys, 7.0), memory.contains(keys))]


def summarize(device: torch.device) -> list[Tensor]:
    torch.manual_seed(4)
    score = FeatureMap().to(device)
    query, keys, values = (torch.randn(3, 2, 4, dim).to(device) for dim in (7, 7, 5))
    state = LinearState.of(Memory(keys, values).map_keys_with(score))
    state = state.extend(score.map_keys(keys[..., :1, :]), values[..., :1, :])
    return [attend(query[..., :1, :], state, score=score, choice=Proportional()).cpu()]


@torch.no_grad()
@pytest.mark.parametrize("run", [look_up, summarize])
def test_memories_without_single_pairs(run: Any, gpu: torch.device) -> None:
    for one, other in zip(run(gpu), run(CPU), strict=True):
        close(one, other)
