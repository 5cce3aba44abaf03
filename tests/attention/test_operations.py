"""Operations that reads, blocks, cores and searches dispatch, as docs/kernels.md lists them.

Of a GPU where tensors are on the device "meta"; elsewhere with the kernel and the plain operations
that a GPU takes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.peers.gpt_own import Sizes, SmallGPT
from regard.attention.attend import attend
from regard.attention.choices import Hard, Proportional
from regard.attention.masks import Causal, Mask, Padded, causal, dense, padding, window
from regard.attention.masks.base import additive_mask
from regard.attention.positions import Positions
from regard.attention.scores import Additive, FeatureMap
from regard.decode.beam import beam
from regard.decode.config import SampleConfig
from regard.decode.greedy import greedy
from regard.decode.sample import sample
from regard.layers.linear import _join
from regard.models.cores.core import Core
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.self_attentive import SelfAttentive
from regard.models.cores.transformer import Transformer, TransformerState
from tests.helpers import close
from tests.operations import count

DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"
WIDTH, ROWS, SOURCE, TARGETS, VOCAB, BOS, EOS = 24, 4, 9, 7, 11, 2, 3
LENGTHS = [9, 5, 3, 1]
KERNELS: dict[str, dict[str, Any]] = {
    "reference": {},
    "products": {},
    "sdpa": {},
    "additive": {"score": Additive(5, 5, hidden=6)},
    "gather": {"choice": Hard()},
    "linear": {"score": FeatureMap(), "choice": Proportional()},
}


def masks(device: str = "cpu") -> dict[str, Mask | None]:
    lengths = torch.tensor(LENGTHS, device=device)
    allowed = torch.ones(SOURCE, SOURCE, dtype=torch.bool, device=device).tril()
    both = Causal() & padding(lengths)
    parts = {"none": None, "causal": Causal(), "padding": padding(lengths), "both": both}
    return {**parts, "window": window(3), "dense": dense(allowed)}


def counts_of_docs(name: str) -> list[str]:
    """Return the cells of the row of this name."""
    for line in DOCS.read_text().split("## Operations")[1].splitlines():
        head, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if head == name:
            return cells
    raise AssertionError(f"{DOCS.name} must have a row {name!r}")


def reads(kernel: str, *, device: str = "cpu", warm: bool = True) -> list[str]:
    """Return the number of operations of a read with each mask; empty if it is refused."""
    query, found = torch.ones(ROWS, 2, SOURCE, 5, device=device), []
    for mask in masks(device).values():
        options = {"kernel": kernel, **KERNELS[kernel]}

        def read(mask: Mask | None = mask, options: dict[str, Any] = options) -> Tensor:
            return attend(query, (query, query), mask=mask, **options)

        try:
            with torch.no_grad():
                found.append(str(len(count(read, warm=warm).computed)))
        except ValueError:
            found.append("")
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_reads_dispatch_the_documented_operations(kernel: str) -> None:
    assert reads(kernel) == counts_of_docs(kernel)


def test_first_read_with_a_mask_builds_it_and_later_ones_do_not() -> None:
    assert reads("sdpa", warm=False) == counts_of_docs("sdpa, first read")
    assert reads("sdpa", device="meta") == counts_of_docs("sdpa, lengths on a GPU")


def test_kept_masks_are_those_of_the_read() -> None:
    mask = causal() & padding([3, 1])
    single, double = torch.float32, torch.float64
    for queries, keys, dtype in ((3, 3, single), (2, 3, double), (2, 4, double), (3, 3, double)):
        query = torch.randn(2, queries, 5, dtype=dtype)
        memory = torch.randn(2, keys, 5, dtype=dtype)
        for kernel in ("sdpa", "products", "reference"):
            allowed = (causal() & padding([3, 1])).tensor(queries, keys)
            expected = attend(query, (memory, memory), mask=dense(allowed), kernel="reference")
            close(attend(query, (memory, memory), mask=mask, kernel=kernel), expected)
    mask, query = causal() & padding([3, 1]), torch.randn(2, 3, 5, requires_grad=True)
    with torch.inference_mode():
        attend(query, (query, query), mask=mask, kernel="sdpa")
    attend(query, (query, query), mask=mask, kernel="sdpa").sum().backward()  # no inference tensor


def test_rows_of_masks_on_a_gpu_begin_at_multiples_of_8() -> None:
    mask = causal() & padding(torch.tensor(LENGTHS, device="meta"))
    positions = Positions(SOURCE, SOURCE, torch.device("meta"))
    added, _ = additive_mask(mask, positions, torch.float32)
    assert added.shape == (ROWS, SOURCE, SOURCE)
    assert added.stride() == (SOURCE * 16, 16, 1)


def train(module: nn.Module, *inputs: Any) -> None:
    module.zero_grad()
    module(*inputs).sum().backward()


def test_block_of_a_gpt_dispatches_about_as_many_operations_as_one_by_hand() -> None:
    items = torch.randn(ROWS, TARGETS, WIDTH, device="meta", requires_grad=True)
    sizes = {"layers": 1, "width": WIDTH, "heads": 3}
    own = SmallGPT(Sizes(**sizes), dropout=0.0, attention_dropout=0.0).blocks[0].to("meta")
    ours = Transformer(
        **sizes, feedforward=4 * WIDTH, activation="gelu", norm_order="pre", encodes=False
    )
    block = ours.decoder[0].to("meta")
    by_hand, forward = count(lambda: own(items)), count(lambda: block(items, None))
    assert len(forward.computed) <= 1.15 * len(by_hand.computed)
    both = count(lambda: train(block, items, None))
    assert len(both.computed) <= 1.15 * len(count(lambda: train(own, items)).computed)
    assert [str(len(forward.computed))] == counts_of_docs("forward of a GPT's decoder block")
    assert [str(len(both.computed))] == counts_of_docs(
        "forward and backward of a GPT's decoder block"
    )


def test_joined_layers_are_the_layers() -> None:
    layers = [nn.Linear(5, size, dtype=torch.float64) for size in (3, 7, 2)]
    weight, bias = _join([layer.weight for layer in layers], [layer.bias for layer in layers])
    items = torch.randn(2, 5, dtype=torch.float64)
    out = nn.functional.linear(items, weight, bias)
    close(out, torch.cat([layer(items) for layer in layers], -1))


def make_core(name: str) -> tuple[Core, str]:
    """Return a core, and the device on which its operations are counted."""
    if name == "Recurrent":  # packing needs numbers
        return Recurrent(width=WIDTH), "cpu"
    if name == "SelfAttentive":
        return SelfAttentive(width=WIDTH), "cpu"
    core = Transformer(layers=1, width=WIDTH, heads=3, positions="learned", kernel="sdpa")
    return core.to("meta"), "meta"


@pytest.mark.parametrize("name", ["Transformer", "Recurrent", "SelfAttentive"])
def test_training_step_of_a_core_dispatches_the_documented_operations(name: str) -> None:
    core, device = make_core(name)
    source = Padded(torch.randn(ROWS, SOURCE, WIDTH), torch.tensor(LENGTHS)).to(device)
    targets = torch.randn(ROWS, TARGETS, WIDTH, device=device)

    def step() -> None:
        core.zero_grad()
        core(targets, core.start(source)).sum().backward()

    assert [str(len(count(step).computed))] == counts_of_docs(f"training step of {name}")


@dataclass(frozen=True)
class ByHand:
    """Decoding step of a Transformer in plain torch, with a static key-value cache."""

    core: Transformer
    caches: tuple[tuple[Tensor, ...], ...]
    position: int = 0

    @classmethod
    def start(cls, core: Transformer, source: Padded, capacity: int) -> "ByHand":
        encoded, caches = core.encode(source).items, []
        for block in core.decoder:
            own = [encoded.new_zeros(ROWS, 3, capacity, WIDTH // 3) for _ in range(2)]
            cross = [_heads(part(encoded)) for part in (block.cross.key, block.cross.value)]
            caches.append((*own, *cross))
        return cls(core, tuple(caches))

    def reorder(self, index: Tensor) -> "ByHand":
        caches = []
        for keys, values, *cross in self.caches:
            caches.append((keys.index_select(0, index), values.index_select(0, index), *cross))
        return replace(self, caches=tuple(caches))

    def step(self, items: Tensor) -> Tensor:
        attention, end = nn.functional.scaled_dot_product_attention, self.position + 1
        h = items[:, None] + self.core.positions.weight[self.position]
        for block, (keys, values, source_keys, source_values) in zip(
            self.core.decoder, self.caches, strict=True
        ):
            own, cross, mlp = block.attention, block.cross, block.feedforward
            keys[:, :, self.position : end].copy_(_heads(own.key(h)))
            values[:, :, self.position : end].copy_(_heads(own.value(h)))
            read = attention(_heads(own.query(h)), keys[:, :, :end], values[:, :, :end])
            h = block.add_attention.norm(h + own.output(read.transpose(1, 2).flatten(2)))
            read = attention(_heads(cross.query(h)), source_keys, source_values)
            h = block.add_cross.norm(h + cross.output(read.transpose(1, 2).flatten(2)))
            h = block.add_feedforward.norm(h + mlp.contract(mlp.expand(h).relu()))
        return h[:, 0]


def _heads(items: Tensor) -> Tensor:
    return items.unflatten(-1, (3, -1)).transpose(1, 2)


@torch.no_grad()
def test_decoding_step_dispatches_about_as_many_operations_as_one_by_hand() -> None:
    options = {"positions": "learned", "norm_order": "post", "kernel": "sdpa"}
    core = Transformer(layers=6, width=WIDTH, heads=3, **options).eval()
    source = Padded(torch.randn(ROWS, SOURCE, WIDTH), torch.full((ROWS,), SOURCE))
    item, index = torch.randn(ROWS, WIDTH), torch.tensor([1, 0, 3, 2])
    state, by_hand = core.start(source), ByHand.start(core, source, TARGETS)
    for _ in range(2):
        hidden, state = core.step(item, state)
        close(hidden, by_hand.step(item))
        by_hand = replace(by_hand, position=by_hand.position + 1)
    found = count(lambda: core.step(item, state)[1].reorder(index)).computed
    theirs = count(lambda: (by_hand.step(item), by_hand.reorder(index))).computed
    assert len(found) <= 1.1 * len(theirs)
    without = [name for name in found if name != "index_select"]
    assert len(without) <= 1.1 * len([name for name in theirs if name != "index_select"])
    assert [str(len(without))] == counts_of_docs("decoding step of 6+6 layers")
    assert [str(len(found))] == counts_of_docs("decoding step of 6+6 layers, reordered")


class Translator:
    """Stepper of a core whose outputs never end."""

    def __init__(self) -> None:
        self.core = Transformer(layers=1, width=WIDTH, heads=3, positions="learned", kernel="sdpa")
        self.core.eval()
        self.table, self.bias = torch.randn(VOCAB, WIDTH), torch.zeros(VOCAB)
        self.bias[EOS] = -1e4

    def start(self, source: Padded) -> TransformerState:
        return self.core.start(source)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        hidden, state = self.core.step(self.table[tokens], state)
        return nn.functional.linear(hidden, self.table, self.bias), state


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_step_of_a_search_dispatches_the_documented_operations(name: str) -> None:
    stepper = Translator()
    source = Padded(torch.randn(ROWS, SOURCE, WIDTH), torch.tensor(LENGTHS))
    options = {"bos": BOS, "eos": EOS, "banned": (0,)}

    def operations(steps: int) -> int:
        return len(count(lambda: search(steps)).computed)

    def search(steps: int) -> None:
        if name == "greedy":
            greedy(stepper, source, max_length=steps, **options)
        else:
            beam(stepper, source, beam=3, max_length=steps, **options)

    assert [str(operations(5) - operations(4))] == counts_of_docs(f"step of {name}, 1+1 layers")


class Generator:
    """Language model of a core."""

    def __init__(self) -> None:
        options = {"layers": 1, "width": WIDTH, "heads": 3, "positions": "learned"}
        self.core = Transformer(**options, kernel="sdpa", encodes=False).eval()
        self.table, self.slide = torch.randn(VOCAB, WIDTH), self.core.slide

    def start(self, source: None = None, *, rows: int = 1) -> TransformerState:
        return self.core.start(source, rows=rows)

    def steps(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        hidden, state = self.core.steps(self.table[tokens], state)
        return nn.functional.linear(hidden, self.table), state


@torch.no_grad()
def test_sampling_dispatches_the_documented_operations() -> None:
    model, options = Generator(), {"window": None, "seed": 1, "banned": [0]}

    def operations(prompt: int, length: int) -> int:
        config = SampleConfig(length=length, temperature=1, top_k=3)
        return len(count(lambda: list(sample(model, [4] * prompt, config, **options))).computed)

    step = operations(5, 5) - operations(5, 4)
    assert [str(step)] == counts_of_docs("step of sampling, 1 layer")
    assert [str(operations(5, 1))] == counts_of_docs("sampling of one token after 5, 1 layer")
