"""Reader of point clouds: sampling, groups, any order of points, and proposals at places."""

import math

import numpy as np
import pytest
import torch

from regard.attention.masks import Padded, Placed, Unpadded
from regard.data.elements import LabeledRegions
from regard.layers.positions.config import NoPositionsConfig
from regard.models.build import build_detector
from regard.models.config import DetectorConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.models.outline import outline
from regard.models.readers.points import PointReader, farthest_points, nearest_points, sort_points
from regard.models.writers.matching import task_aligned_assignment
from regard.models.writers.sets import SetWriter
from tests.helpers import close

SIZES = {"layers": 1, "width": 12, "heads": 3, "feedforward": 17}
CORES = {
    "transformer": TransformerConfig(**SIZES, positions=NoPositionsConfig()),
    "induced": TransformerConfig(**SIZES, positions=NoPositionsConfig(), inducing_points=3),
    "recurrent": RecurrentConfig(width=12, hidden=14, attention_hidden=9),
}
LENGTHS = (40, 3, 25)


def make_reader(**settings) -> PointReader:
    torch.manual_seed(1)
    options = {"features": 1, "groups": 7, "neighbors": 4, "radius": 1.2}
    return PointReader(12, **{"extent": (6.0, 5.0, 3.0)} | options | settings)


def make_clouds(features: int = 1) -> Padded:
    torch.manual_seed(2)
    return Padded(torch.randn(3, max(LENGTHS), 3 + features), torch.tensor(LENGTHS))


def make_detector(core: str, queries: str = "proposed"):
    torch.manual_seed(3)
    config = DetectorConfig(core=CORES[core], num_queries=5, dropout=0.0, queries=queries)
    return build_detector(config, make_reader(), num_classes=3, axes=3)


def absent(count: int, *lengths: int) -> torch.Tensor:
    return torch.arange(count) >= torch.tensor(lengths)[:, None]


def permuted(clouds: Padded) -> Padded:
    """Return the clouds with the points of each row in another order, and other padding."""
    items = torch.full_like(clouds.items, 77.0)
    for row, length in enumerate(clouds.lengths.tolist()):
        items[row, :length] = clouds.items[row, torch.randperm(length)]
    return Padded(items, clouds.lengths)


def test_points_are_sorted_by_their_first_number_then_the_second():
    points = torch.tensor([[[2.0, 1], [1, 5], [2, 0], [1, 5], [9, 9]]])
    assert sort_points(points, absent(5, 4)).tolist() == [[[1, 5], [1, 5], [2, 0], [2, 1], [0, 0]]]


def test_farthest_points_are_sampled_as_defined():
    """Each point has the largest distance from those before it, computed one by one."""
    draw = np.random.default_rng(4)
    points = draw.normal(size=(17, 3))
    selected = [0]
    while len(selected) < 6:
        nearest = [min(math.dist(point, points[i]) for i in selected) for point in points]
        selected.append(int(np.argmax(nearest)))
    padded = torch.full((2, 20, 3), 50.0, dtype=torch.float64)  # padding is never sampled
    padded[0, :17], padded[1, :4] = torch.from_numpy(points), torch.from_numpy(points[:4])
    index = farthest_points(padded, absent(20, 17, 4), 6)
    assert index[0].tolist() == selected
    assert sorted(index[1, :4].tolist()) == [0, 1, 2, 3]


def test_nearest_points_are_those_within_the_radius():
    torch.manual_seed(5)
    points = torch.randn(2, 9, 3, dtype=torch.float64)
    near, inside = nearest_points(points, absent(9, 9, 5), points[:, :3], 4, 1.1)
    for row, length in enumerate((9, 5)):
        for center in range(3):
            distance = (points[row, :length] - points[row, center]).norm(dim=-1)
            expected = [int(i) for i in distance.argsort()[:4] if distance[i] <= 1.1]
            assert near[row, center][inside[row, center]].tolist() == expected
            assert expected[0] == center


@pytest.mark.usefixtures("in_float64")
def test_items_are_the_formula():
    """One row, one group after the other, in plain torch."""
    reader, clouds = make_reader().double().eval(), make_clouds()
    items, lengths = reader(clouds)
    assert lengths.tolist() == [7, 3, 7]
    points = clouds.items[0]
    points = points[sorted(range(len(points)), key=lambda i: points[i].tolist())]
    index = farthest_points(points[None, :, :3], absent(40, 40), 7)[0]
    extent = torch.tensor([6.0, 5.0, 3.0])
    first, norm, _, second = reader.local
    third, fourth = reader.place[0], reader.place[2]
    for group, center in enumerate(points[index, :3]):
        distance = (points[:, :3] - center).norm(dim=1)
        members = [i for i in distance.argsort()[:4].tolist() if distance[i] <= 1.2]
        vectors = []
        for i in members:
            x = torch.cat(((points[i, :3] - center) / 1.2, points[i, 3:]))
            hidden = first.weight @ x + first.bias
            deviation = (hidden.var(correction=0) + norm.eps).sqrt()
            hidden = (hidden - hidden.mean()) / deviation * norm.weight + norm.bias
            vectors.append(second.weight @ hidden.clamp(min=0) + second.bias)
        least, most = points[:, :3].amin(0), points[:, :3].amax(0)
        distances = torch.cat(((center - least) / extent, (most - center) / extent))
        angles = torch.stack([p * math.pi * 2**rate for p in distances for rate in range(4)])
        wave = third.weight @ torch.cat((distances, angles.sin(), angles.cos())) + third.bias
        wave = wave * 0.5 * (1 + torch.erf(wave / math.sqrt(2)))
        joined = torch.cat((torch.stack(vectors).amax(0), fourth.weight @ wave + fourth.bias))
        close(items[0, group], reader.combine.weight @ joined + reader.combine.bias)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.usefixtures("in_float64", "no_shape_checks")
def test_the_order_of_the_points_changes_nothing(core):
    model, clouds = make_detector(core).double().eval(), make_clouds()
    expected = model(clouds)
    for _ in range(3):
        actual = model(permuted(clouds))
        assert torch.equal(actual.logits, expected.logits)
        assert torch.equal(actual.regions, expected.regions)
    clouds.items[0, 5] += 0.1
    # Untrained regions are those of the groups.
    assert not torch.equal(model(clouds).logits[0], expected.logits[0])


def test_equal_coordinates_are_told_apart_by_features():
    reader = make_reader(groups=2, neighbors=2).eval()
    same = torch.tensor([[[1.0, 1, 1, 5], [1, 1, 1, -2], [0, 0, 0, 1]]])
    lengths = torch.tensor([3])
    expected = reader(Padded(same, lengths)).items
    assert torch.equal(reader(Padded(same[:, [1, 2, 0]], lengths)).items, expected)


def test_padding_is_never_proposed():
    clouds, model = make_clouds(), make_detector("transformer").eval()
    placed = model.reader(clouds)
    assert isinstance(placed, Placed)
    encoded = model.core.encode(placed)
    proposed = model.writer.propose(encoded, placed.centers)
    assert (proposed.logits[1, 3:] == -100).all()
    targets, real = torch.rand(3, 2, 6), torch.ones(3, 2, dtype=torch.bool)
    assigned, _ = task_aligned_assignment(
        torch.rand(3, 7, 2), proposed.regions, placed.centers, targets, real
    )
    assert (assigned[1, 3:] == -1).all()
    assert (assigned[1, :3] >= 0).any()


def test_centers_just_outside_a_box_are_assigned_to_it():
    clouds, model = make_clouds(), make_detector("transformer").eval()
    assert model.writer.margin == tuple(1.2 / 4 / side for side in (6.0, 5.0, 3.0))
    hidden = model.writer.read(model.core, model.core.encode(model.reader(clouds)))
    # 0.02 from the lower corner of the box, and not the nearest to its middle
    center = hidden.centers[0, 0]
    box = torch.cat((center + 0.02 + 0.4, torch.full((3,), 0.8)))
    target = LabeledRegions(torch.tensor([[0], [-1], [-1]]), box.expand(3, 1, 6))
    near = model.writer.loss(hidden, target).total
    model.writer.margin = (0.0, 0.0, 0.0)
    assert model.writer.loss(hidden, target).total != near


def test_centers_of_a_batch_equal_those_of_all_rows():
    torch.manual_seed(6)
    arguments = torch.rand(2, 5, 3), torch.rand(2, 5, 4), torch.rand(5, 2)
    targets, real = torch.rand(2, 3, 4), torch.tensor([[True, True, False], [True, True, True]])
    expected = task_aligned_assignment(*arguments, targets, real)
    probability, regions, centers = arguments
    actual = task_aligned_assignment(probability, regions, centers.expand(2, -1, -1), targets, real)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_outline_names_points_groups_and_queries():
    names = {"proposed": "queries of the best proposals", "learned": "learned queries"}
    for queries, name in names.items():
        encoding, (start, *_) = outline(make_detector("transformer", queries))
        assert encoding[0].shape == ("batch", "points", 4)
        assert encoding[1].shape == ("batch", "groups", 12)
        assert start.name == name


def test_learned_queries_need_no_places():
    model = make_detector("transformer", queries="learned").eval()
    assert not model.writer.proposes
    assert model(make_clouds()).regions.shape == (3, 5, 6)


@pytest.mark.usefixtures("no_shape_checks")
def test_parts_that_do_not_fit_are_refused():
    for name, value in {"groups": 0, "radius": 0.0, "extent": (1.0, 0.0, 1.0)}.items():
        with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
            make_reader(**{name: value})
    with pytest.raises(ValueError, match="extent must be three sides, got 2"):
        make_reader(extent=(1.0, 2.0))
    writer = SetWriter(12, 3, axes=3, num_queries=4, blocks=1, centers="items")
    core = make_detector("transformer").core
    with pytest.raises(TypeError, match=r'must be Placed with centers="items", got Unpadded'):
        writer.read(core, Unpadded.of(torch.zeros(1, 5, 12)))
