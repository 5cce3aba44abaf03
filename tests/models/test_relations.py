"""Relations of the items: a bias or a mask that a reader returns, in the reads of the encoder."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded, Related, dense, padding
from regard.data.batches import Batch
from regard.layers.pool import ClassToken
from regard.models.cores.recurrent import Recurrent
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.reader import Reader
from regard.models.writers.classes import ClassWriter
from regard.testing import check
from tests.helpers import close

ROWS, TIME, WIDTH, HEADS = 3, 5, 8, 2
LENGTHS = torch.tensor([5, 2, 4])
pytestmark = pytest.mark.usefixtures("no_shape_checks")


class AsGiven(Reader):
    """Items and relations as they are."""

    dim = WIDTH

    def forward(self, source: Padded) -> Padded:
        return source


def make_relations(kind: str) -> Tensor:
    if kind == "mask":
        return (torch.rand(ROWS, TIME, TIME) > 0.5) | torch.eye(TIME, dtype=torch.bool)
    return torch.randn(ROWS, HEADS, TIME, TIME, dtype=torch.float64)


def make_core(**options) -> Transformer:
    sizes = {"layers": 1, "width": WIDTH, "heads": HEADS, "feedforward": 9}
    return Transformer(**sizes, positions="sinusoidal", decodes=False, **options).double().eval()


@pytest.mark.parametrize("kind", ["mask", "bias"])
@pytest.mark.parametrize("window", [None, 3])
@torch.no_grad()
def test_encoder_reads_along_the_relations_within_padding_and_window(kind, window):
    core, relations = make_core(window=window), make_relations(kind)
    items = torch.randn(ROWS, TIME, WIDTH, dtype=torch.float64)
    encoded = core.encode(Related.of(items, LENGTHS, relations))
    assert torch.equal(encoded.relations, relations)
    (block,), mask = core.encoder, padding(LENGTHS)
    if window is not None:
        near = torch.ones(TIME, TIME, dtype=torch.bool).tril(1).triu(-1)
        mask = mask & dense(near)
    bias = None if kind == "mask" else relations
    mask = mask & dense(relations) if kind == "mask" else mask

    def attend(x: Tensor) -> Tensor:
        memory = block.attention.memory(x)
        return block.attention(x, memory, mask=mask, bias=bias)

    expected = block.add_attention(core.positions(items), attend)
    expected = core.encoder_norm(block.add_feedforward(expected, block.feedforward))
    close(encoded.items, expected)
    plain = core.encode(Padded(items, LENGTHS)).items
    assert (encoded.items - plain).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["mask", "bias"])
@pytest.mark.parametrize("pool", [None, ClassToken(WIDTH, distillation=True)])
def test_rows_with_relations_do_not_depend_on_their_batch(kind, pool):
    model = Model(reader=AsGiven(), core=make_core(), writer=ClassWriter(WIDTH, 3, pool=pool))
    nn.init.normal_(model.writer.output.weight)
    items, relations = torch.randn(ROWS, TIME, WIDTH).double(), make_relations(kind)
    check(model, Batch(Related.of(items, LENGTHS, relations), None))
    neutral = torch.full_like(relations, kind == "mask")
    model = model.double()
    close(model(Related.of(items, LENGTHS, neutral)), model(Padded(items, LENGTHS)))


@pytest.mark.parametrize("kind", ["Recurrent", "Transformer"])
def test_core_that_cannot_read_relations_refuses_them_by_name(kind):
    core = make_core(inducing_points=2)
    if kind == "Recurrent":
        core = Recurrent(width=WIDTH, hidden=6, attention_hidden=4, decodes=False).double()
    model = Model(reader=AsGiven(), core=core, writer=ClassWriter(core.memory_dim, 3))
    source = Related.of(torch.randn(ROWS, TIME, WIDTH), LENGTHS, make_relations("mask"))
    with pytest.raises(ValueError, match=f"to read the relations of a AsGiven, got a {kind}"):
        model(source)


def test_relations_move_with_their_items():
    source = Related.of(torch.randn(ROWS, TIME, WIDTH), LENGTHS, make_relations("bias"))
    moved = source.to("meta")
    assert {moved.items.device.type, moved.relations.device.type} == {"meta"}
