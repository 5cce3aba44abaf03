"""torch.export of the model of every recipe: a program for batches and lengths of any size.

Run by test_transforms.py in a process of its own, without the shape checks of the other tests.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.readers.points import PointReader
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter
from regard.recipes.registry import RECIPES
from tests.recipes.untrained import untrained

SIZES = (3, 13, 7), (2, 9, 4), (5, 41, 15), (1, 300, 301)
"""Rows, and lengths of sources and targets; the last are beyond the rows of a table of sines."""
_TRANSFORMER = "--model.core.layers 1 --model.core.width 8 --model.core.heads 2"
_DECODER = "--model.core.decoder-layers 1"
_RECURRENT = "--model.core.width 8 --model.core.hidden 8"
_DATES = "dates --data.locales en --data.epoch-size 8 --data.val-size 4 --data.test-size 4 "
_DATES += "--source-tokenizer.kind char"
_OTHER = {
    "gru": f"{_DATES} {_RECURRENT} --model.core recurrent",
    "lstm": f"{_DATES} {_RECURRENT} --model.core recurrent --model.core.cell lstm "
    "--model.core.layers 2",
    "rnn": f"{_DATES} {_RECURRENT} --model.core recurrent --model.core.cell rnn "
    "--model.core.directions 1 --model.core.attention dot",
    "additive": f"{_DATES} {_TRANSFORMER} {_DECODER} --model.core.score additive",
    "relative": f"{_DATES} {_TRANSFORMER} {_DECODER} --model.core.positions relative "
    "--model.core.window 3 --model.core.pattern S",
    "grouped-top-k": f"{_DATES} {_TRANSFORMER} {_DECODER} --model.core.positions rotary "
    "--model.core.key-heads 1 --model.core.choice topk --model.core.top-k 2",
    "learned-queries": "boxes --data.width 32 --data.height 24 --model.queries learned "
    f"{_TRANSFORMER} {_DECODER} --model.num-queries 4",
    "joint": f"tracks {_TRANSFORMER} --model.joint true --model.paths 3",
}
"""Recipe and settings of parts that no recipe has by default."""


class Program(nn.Module):
    """A model of plain tensors."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, source: tuple[Tensor, ...], target: tuple[Tensor, ...]) -> Any:
        given = [None if not part else part[0] for part in (source, target)]
        for i, part in enumerate((source, target)):
            if len(part) > 1:
                given[i] = Padded(*part)
        return self.model(given[0]) if given[1] is None else self.model(*given)


def make_lengths(rows: int, most: int) -> Tensor:
    return torch.cat((torch.tensor([most]), torch.randint(1, most + 1, (rows - 1,))))


def make_inputs(model: Any, rows: int, source: int, target: int) -> tuple[Any, Any]:
    """Return random tensors of source and target."""
    reader, writer = getattr(model, "reader", None), getattr(model, "writer", None)
    given: tuple[Tensor, ...] = ()
    if reader is None:
        given = () if writer is not None else (torch.rand(rows, *model.shape),)
    elif isinstance(reader, TokenReader):
        given = (torch.randint(reader.table.num_embeddings, (rows, source)),)
    else:
        sizes = reader.shapes()[0][1:]
        given = (torch.randn(rows, *(source if isinstance(size, str) else size for size in sizes)),)
    if hasattr(reader, "table") or hasattr(reader, "observed") or isinstance(reader, PointReader):
        given = (*given, make_lengths(rows, source))
    if not isinstance(writer, TokenWriter):
        return given, ()
    tokens = torch.randint(writer.output_table.num_embeddings, (rows, target))
    return given, (tokens, make_lengths(rows, target))


def make_shapes(inputs: Any, others: Any) -> Any:
    """Return the dynamic axes: those in which the inputs of two sizes differ."""
    shapes = []
    for part, other in zip(inputs, others, strict=True):
        sizes = [zip(a.shape, b.shape, strict=True) for a, b in zip(part, other, strict=True)]
        axes = [[i for i, (a, b) in enumerate(pairs) if a != b] for pairs in sizes]
        shapes.append(tuple(dict.fromkeys(own, torch.export.Dim.DYNAMIC) for own in axes))
    return tuple(shapes)


_FIRST = "translate", "images", "rnn"
_NAMES = [
    name if name in _FIRST else pytest.param(name, marks=pytest.mark.slow)
    for name in (*RECIPES, *_OTHER)
]


@pytest.mark.parametrize("name", _NAMES)
def test_exported_model_answers_batches_of_any_size_and_length(tmp_path: Path, name: str):
    recipe, *options = _OTHER.get(name, name).split()
    model: Any = untrained(recipe, tmp_path, *options)[1]
    program = Program(model).eval()
    inputs, *others = [make_inputs(model, *sizes) for sizes in SIZES]
    with torch.no_grad():
        expected = program(*inputs)
        exported = torch.export.export(
            program, inputs, dynamic_shapes=make_shapes(inputs, others[0]), strict=False
        ).module()
        for given in (inputs, *others):
            actual, wanted = exported(*given), program(*given)
            torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)
        # No tensor of the export is kept by masks and other caches.
        torch.testing.assert_close(program(*inputs), expected, rtol=0, atol=0)
