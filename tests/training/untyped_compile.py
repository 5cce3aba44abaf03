"""`train.compile` compiles blocks: run by test_transforms.py, without shape checks."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.cli.main import main
from regard.errors import UserError
from regard.layers.blocks import DecoderBlock, EncoderBlock
from regard.layers.positions.config import RotaryConfig
from regard.models.cores.transformer import Transformer
from regard.training.distribution import Replica, World
from regard.training.step import add_gradients
from tests.helpers import close
from tests.recipes.tiny import quick_options
from tests.training.minimal import Rows, model_of
from tests.training.toy import ToyModel

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the graphs that are compiled; they run as they are."""
    compiled: list[Any] = []
    original = nn.Module.compile

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **options: original(self, backend=backend, **options)
    )
    torch.compiler.reset()
    return compiled


@pytest.mark.parametrize("writer", ["tokens", "tags", "language"])
def test_compiled_blocks_have_the_same_gradients(graphs: list[Any], writer: str) -> None:
    eager = model_of("transformer", writer)
    replica = Replica(copy.deepcopy(eager), World(), shard="none", compiled=True)
    options = {"epoch": 0, "step": 1, "seed": 1, "precision": "float32"}
    rows = Rows(writer)
    first, _ = add_gradients(Replica(eager, World(), shard="none"), rows, [(0, 1, 2, 3)], **options)
    second, _ = add_gradients(replica, rows, [(0, 1, 2, 3)], **options)
    close(second, first)
    assert graphs
    for value, other in zip(replica.model.parameters(), eager.parameters(), strict=True):
        assert (value.grad is None) == (other.grad is None)
        if value.grad is not None:
            close(value.grad, other.grad)
    with replica.evaluation_model() as model:
        blocks = [part for part in model.modules() if isinstance(part, EncoderBlock | DecoderBlock)]
        assert blocks
        assert all(block._compiled_call_impl is None for block in blocks)


@pytest.mark.parametrize(
    "recipe",
    [
        "dates",
        "boxes",
        pytest.param("language", marks=pytest.mark.slow),
        pytest.param("caption", marks=pytest.mark.slow),
    ],
)
def test_layers_and_lengths_share_a_few_graphs(
    graphs: list[Any], tmp_path: Path, recipe: str
) -> None:
    words = ["train", recipe, "--run", str(tmp_path), *quick_options(recipe)]
    words[words.index("--train.steps") + 1] = "6"
    torch._dynamo.utils.counters.clear()
    assert main([*words, "--train.compile", "true", "--train.precision", "float32"]) == 0
    assert 0 < len(graphs) <= 3
    assert not torch._dynamo.utils.counters["graph_break"]


def test_rotary_positions_with_yarn_are_compiled_and_exported(graphs: list[Any]) -> None:
    positions = RotaryConfig(scaling="yarn", original_max_length=16)
    fields = {"layers": 1, "width": 8, "heads": 2, "feedforward": 8, "positions": positions}
    block, items = Transformer(**fields, encodes=False).decoder[0], torch.randn(2, 9, 8)
    expected = block(items, None)
    exported = torch.export.export(block, (items, None)).module()
    close(exported(items, None), expected)
    torch._dynamo.utils.counters.clear()
    block.compile(dynamic=True)
    close(block(items, None), expected)
    assert graphs
    assert not torch._dynamo.utils.counters["graph_break"]


def test_model_without_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="blocks of a Transformer: this model has none"):
        Replica(ToyModel(), World(), shard="none", compiled=True)
