"""Figures of predictions: contents, and refused names and files."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from regard.look.figures import results
from regard.look.figures.results import plot_boxes, plot_events, plot_images, plot_tracks
from regard.look.sample import format_score
from tests.look.pictures import texts_of

IMAGE = np.zeros((30, 40, 3), np.uint8)
TRACKS = np.array([[[0.0, 0], [1, 0]], [[5, 5], [5, 4]], [[9, 9], [9, 9]]])
PLOTS = {
    "boxes": lambda path, **options: plot_boxes(
        IMAGE,
        [("cat_$\\frac$", 0.91, (2, 3, 10, 10)), ("dog", 0.5, (20, 5, 8, 8))],
        path,
        title="a <b>",
        **options,
    ),
    "events": lambda path, **options: plot_events(
        np.zeros((8, 50), np.float32),
        [("cat_$\\frac$", 0.91, 0.2, 0.5), ("dog", 0.5, 1, 1)],
        path,
        seconds=2,
        title="t",
        **options,
    ),
    "images": lambda path, **options: plot_images(
        [("cat_$\\frac$", np.ones((1, 4, 4))), ("dog", np.ones((3, 4, 4)))], path, **options
    ),
    "tracks": lambda path, **options: plot_tracks(
        ["cat_$\\frac$", "dog", "7"],
        TRACKS,
        TRACKS + 1,
        path,
        weights=[(1, 0.6), (2, 0.1)],
        title="t",
        **options,
    ),
}


@pytest.mark.parametrize("name", PLOTS)
def test_labels_are_text_in_the_figure(name, tmp_path):
    PLOTS[name](tmp_path / "x.svg")
    words = texts_of(tmp_path / "x.svg")
    assert any(word.startswith("cat_$\\frac$") for word in words)
    assert any(word.startswith("dog") for word in words)


def test_labels_of_events_are_legible_on_their_color(figures, tmp_path):
    """The contrast of text and background is at least 4.5 : 1 (WCAG 2)."""

    def luminance(color: str) -> float:
        parts = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in to_rgb(color)
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    names = "abcdefgh"
    events = [(name, 0.5, 0.2 * i, 0.2) for i, name in enumerate(names)]
    bands = np.zeros((8, 50), np.float32)
    plot_events(bands, events, tmp_path / "x.png", seconds=1.6, title="t")
    texts = figures[0].axes[0].texts
    assert [text.get_text() for text in texts] == [f"{name} 0.50" for name in names]
    for text in texts:
        light, dark = sorted(
            (luminance(text.get_color()), luminance(text.get_bbox_patch().get_facecolor()[:3]))
        )[::-1]
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_the_color_of_a_label_is_that_of_the_model(figures, tmp_path):
    """It does not depend on which labels are found."""
    models = ("zebra", "cat", "dog")
    path, bands = tmp_path / "x.png", np.zeros((8, 50), np.float32)
    for found in (("dog",), ("cat", "dog", "zebra")):
        boxes = [(label, 0.5, (2 + 12 * i, 20, 8, 8)) for i, label in enumerate(found)]
        events = [(label, 0.5, i, 0.4) for i, label in enumerate(found)]
        options = {"title": "t", "labels": models, "overwrite": True}
        plot_boxes(IMAGE, boxes, path, **options)
        plot_events(bands, events, path, seconds=3, **options)
        colors = {f"{label} 0.50": to_rgb(results._COLORS[models.index(label)]) for label in found}
        for figure in figures[-2:]:
            tags = figure.axes[0].texts
            assert {
                tag.get_text(): tag.get_bbox_patch().get_facecolor()[:3] for tag in tags
            } == colors


@pytest.mark.parametrize(
    ("score", "text"),
    [(0.99999, ">.99"), (0.994, "0.99"), (1.0, "1.00"), (0.004, "<.01"), (0.0, "0.00")],
)
def test_a_score_is_not_rounded_to_0_or_1(score, text):
    assert format_score(score) == text


def test_a_sound_has_the_frequencies_of_the_page_and_says_if_nothing_is_found(tmp_path):
    bands = np.zeros((8, 50), np.float32)
    plot_events(bands, [], tmp_path / "x.svg", seconds=2, hertz=4000, title="a.wav")
    words = texts_of(tmp_path / "x.svg")
    assert {"0 Hz", "500 Hz", "1 kHz", "4 kHz", "no event found above the threshold"} <= set(words)
    assert "8 kHz" not in words
    plot_events(bands, [("dog", 0.5, 1, 1)], tmp_path / "y.svg", seconds=2, title="a.wav")
    words = texts_of(tmp_path / "y.svg")
    assert "mel band" in words
    assert "no event found above the threshold" not in words


def test_labels_of_many_boxes_do_not_overlap(tmp_path):
    boxes = [
        ("cell", 0.9 - 0.01 * i, (8 + 0.3 * (i % 5), 8 + 0.3 * (i // 5), 9, 9)) for i in range(25)
    ]
    plot_boxes(IMAGE, boxes, tmp_path / "x.svg", title="t")
    words = [text for text in texts_of(tmp_path / "x.svg") if text.startswith("cell")]
    assert words[0] == "cell 0.90"
    assert 1 < len(words) < 25


def test_an_image_with_boxes_has_at_least_its_own_size(tmp_path):
    wide = np.zeros((600, 2000, 3), np.uint8)
    plot_boxes(wide, [("cat", 0.5, (10, 10, 100, 100))], tmp_path / "x.png", title="t")
    with Image.open(tmp_path / "x.png") as image:
        assert 2000 <= image.width <= 2200
        assert image.height >= 600
