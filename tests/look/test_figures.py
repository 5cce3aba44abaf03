"""Figures of captures: each view of a small synthetic sample."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle
from torch import Tensor

from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import (
    Axis,
    DetectedBox,
    DetectedEvent,
    Image,
    Plane,
    Sound,
    Track,
)
from tests.look.maps import capture_of, map_of, sample_maps_of
from tests.look.pictures import texts_of

CROSS = ("cross", "queries", "source")


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def words(*labels: str) -> Axis:
    return Axis(labels=labels, kind="token")


def text() -> SampleMaps:
    axes = {
        "source": words("drei", "$mai$"),
        "output": words("3", "-", "5"),
        "decoder input": words("<s>", "3", "-"),
    }
    maps = (
        map_of(random(2, 2, 2), "encoder self", "source", "source"),
        map_of(random(1, 3, 3), "decoder self", "output", "decoder input"),
        map_of(torch.tensor([[[0.9, 0.1]] * 3] * 2)),
        map_of(torch.tensor([[[0.25, 0.75]] * 3] * 2), layer=2),
    )
    return sample_maps_of("drei mai -> 3-5", axes, *maps)


def chain() -> SampleMaps:
    axes = {"decoder input": words("the", "cat", "sat")}
    maps = []
    for layer, share in enumerate((0.25, 0.75), 1):
        weights = torch.tensor([[[0, 0, 0], [1, 0, 0], [share, 1 - share, 0]]])
        maps.append(map_of(weights, "chain", "decoder input", "decoder input", layer=layer))
    return sample_maps_of("the cat sat", axes, *maps)


def classified() -> SampleMaps:
    axes = {"source": Axis.grid(2, 3, picture="image"), "queries": words("standing")}
    pooling = torch.tensor([[[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]], [[0, 0, 0, 0, 0, 1.0]]])
    maps = (
        map_of(random(2, 6, 6), "encoder self", "source", "source"),
        map_of(pooling, "pooling", "queries"),
    )
    image = Image(pixels=np.zeros((20, 30), np.uint8))
    return sample_maps_of("0.png -> standing", axes, *maps, image=image)


def drawn() -> SampleMaps:
    axes = {
        "source": words("a", "three", "</s>"),
        "output": Axis.grid(1, 2, picture="drawn", kind="code"),
        "decoder input": Axis.grid(1, 2, picture="drawn", kind="code"),
    }
    weights = [[[0.8, 0.1, 0.1], [0.4, 0.5, 0.1]], [[0.2, 0.3, 0.5], [0.0, 0.9, 0.1]]]
    first, second = torch.tensor(weights)
    maps = (
        map_of(random(2, 3, 3), "encoder self", "source", "source"),
        map_of(torch.stack((first, first))),
        map_of(torch.stack((second, second)), layer=2),
        map_of(random(1, 2, 2), "chain", "decoder input", "decoder input"),
    )
    return sample_maps_of("a three", axes, *maps, drawn=Image(pixels=np.zeros((8, 16), np.uint8)))


def captioned() -> SampleMaps:
    axes = {"source": Axis.grid(1, 2, picture="image"), "output": words("a", "cat", "</s>")}
    weights = [[[0.8, 0.2], [0.4, 0.6], [0.5, 0.5]], [[0.2, 0.8], [0, 1], [0.1, 0.9]]]
    first, second = torch.tensor(weights)
    maps = map_of(torch.stack((first, second))), map_of(torch.stack((second, second)), layer=2)
    image = Image(pixels=np.zeros((8, 16, 3), np.uint8))
    return sample_maps_of("1.png -> a cat", axes, *maps, image=image)


def boxes(*detected: DetectedBox) -> SampleMaps:
    labels, places = ("cat 0.90", "dog 0.80"), ((0, 0, 1, 1), (0, 0, 1, 1))
    queries = Axis(labels=labels, kind="box", picture="image", places=places)
    axes = {"source": Axis.grid(2, 2, picture="image"), "queries": queries}
    image = Image(pixels=np.full((50, 100, 3), 200, np.uint8), boxes=detected)
    return sample_maps_of("1.png -> pets", axes, map_of(random(2, 2, 4), *CROSS), image=image)


BOXES = (
    DetectedBox(label="cat_$x", score=0.9, place=(0.1, 0.2, 0.5, 0.25), query=0),
    DetectedBox(label="dog", score=0.8, place=(0.5, 0.5, 0.5, 0.5), query=1),
)


def events() -> SampleMaps:
    axes = {"source": words("0 to 1 s", "1 to 2 s"), "queries": words("low 0.90")}
    detected = (
        DetectedEvent(label="low", score=0.9, onset=0.25, duration=0.5, query=0),
        DetectedEvent(label="high", score=0.75, onset=1, duration=0.5, query=1),
    )
    sound = Sound(bands=np.zeros((4, 20), np.float32), seconds=2, events=detected)
    return sample_maps_of("a.wav -> low", axes, map_of(random(2, 1, 2), *CROSS), sound=sound)


def tracks(*, is_reversed: bool = False) -> SampleMaps:
    """Return the weights of the second of three people: on itself, the third, the first."""
    labels, places = ("b (self)", "c", "a"), ((1.0,), (2.0,), (0.0,))
    source = Axis(labels=labels, kind="person", picture="plane", places=places)
    people, maps = [], []
    for name, y in zip("abc", (0.0, 1.0, 3.0), strict=True):
        path = ((0.0, y), (1.0, y), (2.0, y))
        people.append(Track(label=name, history=path, future=path))
    kind, axis = ("chain", "reversed source") if is_reversed else ("encoder self", "source")
    for layer, shares in enumerate(SHARES, 1):
        weights = torch.tensor([[shares, (1, 0, 0), (0, 0, 1)]])
        weights = weights.flip(1, 2) if is_reversed else weights
        maps.append(map_of(weights, kind, axis, axis, layer=layer))
    axes = {"source": source, "reversed source": source.reverse()}
    return sample_maps_of("now.txt: b", axes, *maps, plane=Plane(tracks=tuple(people)))


SHARES = ((0.2, 0.7, 0.1), (0.3, 0.1, 0.6))
SAMPLES = {
    "alignment": text,
    "chain": chain,
    "heat": classified,
    "boxes": lambda: boxes(*BOXES),
    "events": events,
    "tracks": tracks,
}


@pytest.mark.parametrize("view", SAMPLES)
def test_each_sample_is_plotted_in_its_default_view(view, tmp_path):
    fitting, named = tmp_path / "fitting.png", tmp_path / "named.png"
    result = capture_of(SAMPLES[view]())
    assert result.plot(fitting) == fitting
    result.plot(named, view=view)
    assert fitting.read_bytes() == named.read_bytes()
    assert min(imread(fitting).shape[:2]) > 100
    with pytest.raises(UserError, match="already exists"):
        result.plot(fitting)


def test_alignments_have_the_labels_of_the_nearest_read_and_the_chosen_layer(tmp_path):
    result = capture_of(text())
    labels = texts_of(result.plot(tmp_path / "cross.svg"))
    assert {"drei", "$mai$", "3", "-", "5", "drei mai -> 3-5"} <= set(labels)
    panels = ["layer 2, mean of 2 heads", "layer 2, head 1", "layer 2, head 2"]
    assert [label for label in labels if "layer" in label][1:] == panels
    first = texts_of(result.plot(tmp_path / "cross.svg", layer=1, overwrite=True))
    assert "layer 1, head 2" in first
    assert not any(label.startswith("layer 2") for label in first)
    own = texts_of(result.plot(tmp_path / "own.svg", kind="decoder self"))
    about = "queries down: output (token), keys across: decoder input (token)"
    assert {"<s>", about} <= set(own)
    assert "drei" not in own


def test_an_alignment_of_one_head_is_one_panel(figures, tmp_path):
    result = capture_of(text())
    labels = texts_of(result.plot(tmp_path / "x.svg", layer=1, head=2))
    assert [label for label in labels if "head" in label] == ["layer 1, head 2 of 2"]
    cells = figures[0].axes[0].images[0].get_array()
    assert np.asarray(cells) == pytest.approx(result[0].find("cross", layer=1)[0].head(1).numpy())


def test_alignments_are_at_most_as_wide_as_asked(tmp_path):
    """The default is 18 cm."""
    axes = {"output": words(*"abc"), "source": words(*(f"w{i}" for i in range(20)))}
    result = capture_of(sample_maps_of("t", axes, map_of(random(6, 3, 20))))
    for width in (8, None, 30):
        path = result.plot(tmp_path / f"{width}.svg", width=width)
        points = re.search(r'width="([\d.]+)pt"', path.read_text(encoding="utf-8"))[1]
        assert 0.5 * (width or 18) < float(points) / 72 * 2.54 <= (width or 18)


def test_chains_are_of_the_chosen_layer(tmp_path):
    result = capture_of(chain())
    paths = [result.plot(tmp_path / f"{i}.svg", layer=i) for i in (None, 1, 2)]
    last, first, second = (path.read_bytes() for path in paths)
    assert last == second != first
    assert texts_of(tmp_path / "1.svg").count("the") == 3


def test_heat_of_an_image_has_the_mean_and_each_head(figures, tmp_path):
    capture_of(classified()).plot(tmp_path / "x.png")
    _, *panels, _ = figures[0].axes
    titles = [axes.get_title() for axes in panels]
    assert titles == ["mean over heads (up to 0.55)", "head 1 (up to 0.5)", "head 2 (up to 1)"]
    shades = [axes.collections[0].get_array().tolist() for axes in panels]
    assert shades[0] == pytest.approx([0.25, 0.05, 0.05, 0.05, 0.05, 0.55])
    assert shades[2] == [0, 0, 0, 0, 0, 1]
    assert panels[0].collections[0].get_paths()[5].get_extents().bounds == (20, 10, 10, 10)


def test_sides_of_a_title_from_right_to_left_are_ordered_apart(tmp_path):
    sample_maps = text()
    sample_maps.sample.title = "\u05d0 3 -> 2019-03-03"
    path = capture_of(sample_maps).plot(tmp_path / "x.svg")
    assert "\u2068\u05d0 3\u2069 -> \u20682019-03-03\u2069" in texts_of(path)


@pytest.mark.parametrize(
    ("sample_maps", "layer", "titles"),
    [
        (drawn, None, ["a  0.35 (up to 0.5)", "three  0.45 (up to 0.7)", "</s>  0.20 (up to 0.3)"]),
        (drawn, 2, ["a  0.10 (up to 0.2)", "three  0.60 (up to 0.9)", "</s>  0.30 (up to 0.5)"]),
        (captioned, 1, ["a (up to 0.5)", "cat (up to 0.8)", "</s> (up to 0.7)"]),
        (captioned, None, ["a (up to 0.65)", "cat (up to 0.9)", "</s> (up to 0.8)"]),
    ],
)
def test_heat_has_a_panel_a_word_of_the_chosen_layer(sample_maps, layer, titles, figures, tmp_path):
    """Other reads, such as a chain, do not matter."""
    path = capture_of(sample_maps()).plot(tmp_path / "x.svg", layer=layer)
    panels = figures[0].axes[1:-1]
    assert [axes.get_title() for axes in panels if axes.has_data()] == titles
    if layer is None:
        about = "attention weights: cross, mean over 2 layers and their heads; uniform 0."
        assert any(line.startswith(about) for line in texts_of(path))
    if layer is None and sample_maps is captioned:
        shades = [axes.collections[0].get_array().tolist() for axes in panels]
        assert shades == [pytest.approx(row) for row in ([0.35, 0.65], [0.1, 0.9], [0.2, 0.8])]


def test_boxes_are_frames_on_the_image(figures, tmp_path):
    path = capture_of(boxes(*BOXES)).plot(tmp_path / "x.svg")
    frames = [patch for patch in figures[0].axes[0].patches if isinstance(patch, Rectangle)]
    bounds = np.array([frame.get_bbox().bounds for frame in frames])
    assert bounds == pytest.approx(np.array([(9.5, 9.5, 50, 12.5), (49.5, 24.5, 50, 25)]))
    assert {"cat_$x 0.90", "dog 0.80", "1.png -> pets"} <= set(texts_of(path))


def test_an_image_without_boxes_is_shown_as_it_is(figures, tmp_path):
    path = capture_of(boxes()).plot(tmp_path / "x.svg")
    assert not figures[0].axes[0].patches
    assert texts_of(path) == ["1.png -> pets"]


def test_gray_images_have_boxes_as_well(figures, tmp_path):
    sample_maps = boxes(*BOXES)
    pixels = np.arange(5000, dtype=np.uint8).reshape(50, 100)
    sample_maps.sample.pictures["image"] = Image(pixels=pixels, boxes=BOXES)
    capture_of(sample_maps).plot(tmp_path / "x.png")
    axes = figures[0].axes[0]
    shown = axes.images[0].make_image(None, unsampled=True)[0]
    assert (shown[..., :3] == pixels[..., None]).all()
    assert len(axes.patches) == 2


def test_events_are_spans_of_the_spectrogram(figures, tmp_path):
    path = capture_of(events()).plot(tmp_path / "x.svg")
    spans = [(patch.get_bbox().x0, patch.get_bbox().x1) for patch in figures[0].axes[0].patches]
    assert spans == [pytest.approx((0.25, 0.75)), pytest.approx((1, 1.5))]
    assert {"low 0.90", "high 0.75", "seconds", "a.wav -> low"} <= set(texts_of(path))


def test_the_attention_of_events_is_below_the_spectrogram(figures, tmp_path):
    """Each event has a row of its weights over the places of the keys, averaged over heads."""
    places = ((0.0, 1.0), (1.0, 2.0))
    keys = Axis(labels=("0 to 1 s", "1 to 2 s"), kind="time", picture="sound", places=places)
    detected = (
        DetectedEvent(label="high", score=0.9, onset=1, duration=0.5, query=0),
        DetectedEvent(label="low", score=0.9, onset=0.25, duration=0.5, query=2),
    )
    sound = Sound(bands=np.zeros((4, 20), np.float32), seconds=2, events=detected)
    weights = random(2, 3, 2)
    axes = {"source": keys, "queries": words("a", "b", "c")}
    sample_maps = sample_maps_of("t", axes, map_of(weights, *CROSS), sound=sound)
    path = capture_of(sample_maps).plot(tmp_path / "x.svg")
    rows = figures[0].axes[1].collections
    for row, query in zip(rows, (2, 0), strict=True):  # by onset
        assert row.get_array().tolist() == pytest.approx(weights.double().mean(0)[query].tolist())
        extents = [path.get_extents() for path in row.get_paths()]
        assert [(extent.x0, extent.x1) for extent in extents] == list(places)
    assert [label.get_text() for label in figures[0].axes[1].get_yticklabels()] == ["low", "high"]
    about = "attention of each event, its largest weight darkest: cross, layer 1, mean over 2 heads"
    assert about in texts_of(path)


def chunk(name: str, begin: float, level: float, *onsets: float) -> SampleMaps:
    detected = []
    for onset in onsets:
        label = f"{name}{onset:g}"
        event = DetectedEvent(label=label, score=0.5, onset=onset, duration=0.25, query=0)
        detected.append(event)
    bands = np.full((2, 8), level, np.float32)
    sound = Sound(bands=bands, seconds=2, begin=begin, events=tuple(detected))
    axes = {"source": words("0 to 2 s"), "queries": words("x 0.50")}
    title = f"{name}, {begin:g} to {begin + 2:g} s -> x"
    return sample_maps_of(title, axes, map_of(random(2, 1, 1), *CROSS), s=sound)


@pytest.mark.parametrize(
    "sample", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_all_chunks_of_a_sound_are_one_figure(sample, figures, tmp_path):
    """Three chunks of two seconds, at 0, 1 and 1.5 seconds, between chunks of other sounds."""
    long = [chunk("b", 0, 1, 0.5), chunk("b", 1, 2, 0.75), chunk("b", 1.5, 3, 0.5, 1.5)]
    result = capture_of(chunk("a", 0, 9, 0.5), *long, chunk("c", 0, 9, 0.5))
    path = result.plot(tmp_path / "x.svg", sample=sample)
    axes = figures[0].axes[0]
    assert [patch.get_bbox().x0 for patch in axes.patches] == pytest.approx([0.5, 1.75, 2, 3])
    (image,) = axes.images
    assert image.get_extent() == [0, 3.5, 0, 2]
    # Chunks of eight frames begin at frames 0, 4 and 6; each half of an overlap is from one chunk.
    assert image.get_array()[0].tolist() == [1] * 6 + [2] * 3 + [3] * 5
    labels = texts_of(path)
    assert "b" in labels
    assert sum(label.endswith(" 0.50") for label in labels) == 4
    for other, name in ((0, "a"), (4, "c")):
        alone = texts_of(result.plot(tmp_path / f"{name}.svg", sample=other))
        assert f"{name}, 0 to 2 s -> x" in alone
        assert f"{name}0.5 0.50" in alone


def lines_to_others(figure: Figure) -> Sequence[tuple[float, tuple[float, float]]]:
    """Return the width and the end of each line from the person of the sample."""
    lines = [line for line in figure.axes[0].lines if line.get_alpha() == 0.7]
    for line in lines:
        assert (line.get_xdata()[0], line.get_ydata()[0]) == (2, 1)  # position of the second person
    return [(line.get_linewidth(), (line.get_xdata()[1], line.get_ydata()[1])) for line in lines]


@pytest.mark.parametrize(
    ("layer", "shares", "is_reversed"),
    [
        (None, SHARES[1], False),
        (1, SHARES[0], True),
        (2, SHARES[1], False),
        pytest.param(1, SHARES[0], False, marks=pytest.mark.slow),
        pytest.param(2, SHARES[1], True, marks=pytest.mark.slow),
    ],
)
def test_lines_are_as_wide_as_the_weights_of_the_chosen_layer(
    layer, shares, is_reversed, figures, tmp_path
):
    path = capture_of(tracks(is_reversed=is_reversed)).plot(tmp_path / "x.svg", layer=layer)
    widths = {end: width for width, end in lines_to_others(figures[0])}
    _, third, first = shares
    assert widths == {(2, 3): pytest.approx(8 * third), (2, 0): pytest.approx(8 * first)}
    assert {"a", "b", "c", "meters", "now.txt: b"} <= set(texts_of(path))


def test_a_read_of_no_people_has_no_lines(figures, tmp_path):
    sample_maps = tracks()
    axes = sample_maps.sample.axes | {"inducing points of layer 1": Axis.from_count(2)}
    points = map_of(random(1, 3, 2), "encoder self", "source", "inducing points of layer 1")
    pictures = sample_maps.sample.pictures
    capture_of(sample_maps_of("x", axes, points, **pictures)).plot(tmp_path / "x.png")
    assert not lines_to_others(figures[0])


BAD = [
    ("text", {"sample": 2}, "sample must be between 0 and 1, got 2"),
    ("text", {"view": "boxes"}, "this sample has no image"),
    ("text", {"view": "heat"}, "this sample has no attention weights over an image"),
    ("text", {"view": "chain"}, "this sample has no recurrent self-attention"),
    ("text", {"kind": "pooling"}, "only of kind encoder self, decoder self, cross"),
    ("drawn", {"layer": 3}, "layer must be one of 1, 2, got 3"),
    ("tracks", {"layer": 0}, "layer must be one of 1, 2, got 0"),
    ("chain", {"layer": 3}, "layer must be one of 1, 2, got 3"),
    ("text", {"head": 3}, "head must be between 1 and 2, got 3"),
    ("text", {"view": "pie"}, "view must be one of alignment, chain, heat, "),
    ("text", {"view": "multihead", "head": 1}, "`head` is an option of alignment, links, walk, "),
    ("text", {"view": "walk"}, "has no items, queries, keys and values: record them with "),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD)
def test_missing_parts_are_named_and_nothing_is_written(name, options, message, tmp_path):
    sample_maps = {"text": text, "drawn": drawn, "tracks": tracks, "chain": chain}[name]()
    with pytest.raises(UserError, match=re.escape(message)):
        capture_of(sample_maps, sample_maps).plot(tmp_path / "x.png", **options)
    assert list(tmp_path.iterdir()) == []
