"""Constants survive the meta device, `to_empty`, a strict load and casts, in every part."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention.biases import Bias, ShawBias
from regard.attention.biases.base import SumOfBiases, TensorBias
from regard.attention.masks import Padded
from regard.data.elements import LabeledRegions
from regard.layers.positions.base import PositionalEncoding
from regard.layers.positions.config import GridRotaryConfig
from regard.layers.positions.grid import GridPositions
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.models.build import build_detector, build_language_model
from regard.models.config import DetectorConfig, LanguageModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.models.readers.points import PointReader
from tests.helpers import SEQUENCE_POSITIONS
from tests.models.test_grid import READERS, WRITERS, Example, make_example, make_model

pytestmark = pytest.mark.usefixtures("no_shape_checks")

Case = tuple[Callable[[], Model], Callable[[], Example]]


def grid(reader: str, core: str, writer: str) -> Case:
    return lambda: make_model(reader, core, writer), lambda: make_example(reader, writer)


def language(positions: Any) -> Case:
    def make() -> Model:
        core = TransformerConfig(layers=1, width=12, heads=2, feedforward=9, positions=positions)
        return build_language_model(LanguageModelConfig(core=core), vocab=9)

    def example() -> Example:
        return Example(None, Padded(torch.randint(9, (3, 7)), torch.tensor([7, 5, 2])))

    return make, example


def detector(read: Callable[[], Any], source: Callable[[], Any], axes: int, **own: Any) -> Case:
    def make() -> Model:
        core = TransformerConfig(layers=1, width=12, heads=2, feedforward=9, **own)
        config = DetectorConfig(core=core, num_queries=3)
        return build_detector(config, read(), num_classes=2, axes=axes)

    def example() -> Example:
        regions = torch.rand(3, 2, 2 * axes) * 0.5 + 0.2
        return Example(source(), LabeledRegions(torch.tensor([[0, 1], [1, -1], [-1, -1]]), regions))

    return make, example


CASES: dict[str, Case] = {
    **{f"reader {name}": grid(name, "transformer", "classes") for name in READERS},
    **{f"writer {name}": grid("tracks", "recurrent", name) for name in WRITERS},
    "self-attentive": grid("tokens", "self-attentive", "tokens"),
    **{f"positions {kind.name}": language(kind()) for kind in SEQUENCE_POSITIONS},
    "boxes": detector(
        lambda: ImageReader((1, 8, 8), 12),
        lambda: torch.rand(3, 1, 8, 8),
        2,
        positions=GridRotaryConfig(),
        head_dim=4,
    ),
    "points": detector(
        lambda: PointReader(12, extent=(4.0, 4.0, 3.0), groups=5, neighbors=3),
        lambda: Padded(torch.randn(3, 9, 3), torch.tensor([9, 1, 4])),
        3,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors_of(part)]


def run(model: Model, example: Example) -> list[Tensor]:
    torch.manual_seed(3)
    return [*tensors_of(model(example.source, example.target)), *model.loss(example)[:2]]


@every_case
def test_a_model_of_the_meta_device_is_its_saved_weights(case):
    make, make_input = case
    torch.manual_seed(0)
    model, example = make().eval(), make_input()
    with torch.device("meta"):
        empty = make().eval()
    empty = empty.to_empty(device="cpu")
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.data.fill_(math.nan)
    empty.load_state_dict(model.state_dict())
    for ours, theirs in zip(run(empty, example), run(model, example), strict=True):
        assert torch.equal(ours, theirs)


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_half_precision_is_that_of_its_weights(case, dtype):
    make, make_input = case
    torch.manual_seed(0)
    half, example = make().to(dtype).eval(), make_input()
    wide = copy.deepcopy(half).float()
    source = example.source
    if isinstance(source, Tensor):
        source = source.to(dtype)
    elif source is not None and source.items.is_floating_point():
        source = source._replace(items=source.items.to(dtype))
    loss = half.loss(Example(source, example.target)).total
    loss.backward()
    assert all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)
    source = source.float() if isinstance(source, Tensor) else source
    if isinstance(source, Padded) and source.items.is_floating_point():
        source = source._replace(items=source.items.float())
    expected = wide.loss(Example(source, example.target)).total
    assert loss.float().item() == pytest.approx(expected.item(), rel=0.05)


def leaves(base: type) -> set[type]:
    """Return the classes of the package below a class that have no classes below them."""
    below = [kind for kind in base.__subclasses__() if kind.__module__.startswith("regard.")]
    return set().union(*map(leaves, below)) if below else {base}


def test_every_encoding_and_bias_is_in_a_case():
    """Biases of tensors hold what their user gave; Shaw's is a table of parameters."""
    used: set[type] = set()
    for make, _ in CASES.values():
        used |= {type(module) for module in make().modules()}
    assert leaves(PositionalEncoding) - used == set()
    assert leaves(Bias) - used == {ShawBias, SumOfBiases, TensorBias}
    assert GridPositions in used


@every_case
def test_no_module_holds_a_tensor_that_is_not_saved(case):
    model = case[0]()
    assert set(dict(model.named_buffers())) <= set(model.state_dict())
    for module in model.modules():
        assert not [name for name, value in vars(module).items() if isinstance(value, Tensor)]


def test_sinusoids_are_exact_in_the_dtype_of_the_model():
    items = nn.Module.double(Sinusoidal(6)).add(torch.zeros(1, 900, 6, dtype=torch.float64))[0]
    for position in (1, 17, 255, 256, 899):
        for pair in range(3):
            angle = position * math.exp(-2 * pair / 6 * math.log(10000.0))
            assert items[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert items[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
