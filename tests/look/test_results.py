"""Figures of predictions: contents, and refused names and files."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from regard.look.figures import results
from regard.look.figures.results import plot_boxes, plot_events, plot_images
from regard.look.sample import DetectedBox, DetectedEvent, Image, format_score
from tests.look.pictures import draw, texts_of

BANDS = np.zeros((8, 50), np.float32)


def box(label: str, score: float, *place: float) -> DetectedBox:
    return DetectedBox(label=label, score=score, place=tuple(place), query=0)


def image(*boxes: DetectedBox, **options) -> Image:
    return Image(pixels=np.zeros((30, 40, 3), np.uint8), boxes=boxes, **options)


def event(label: str, onset: float, duration: float = 0.2) -> DetectedEvent:
    return DetectedEvent(label=label, score=0.5, onset=onset, duration=duration, query=0)


def test_images_are_side_by_side_with_their_names(figures, tmp_path):
    pictures = [("cat_$\\frac$", np.ones((1, 4, 4))), ("dog", np.ones((3, 4, 4)))]
    plot_images(pictures, tmp_path / "x.svg")
    assert {"cat_$\\frac$", "dog"} <= set(texts_of(tmp_path / "x.svg"))
    assert len(figures[0].axes) == 2


def test_labels_of_events_are_legible_on_their_color(figures, tmp_path):
    """The contrast of text and background is at least 4.5 : 1 (WCAG 2)."""

    def luminance(color: str) -> float:
        rgb = np.array(to_rgb(color))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    names = "abcdefgh"
    events = [event(name, 0.2 * i) for i, name in enumerate(names)]
    draw(tmp_path / "x.png", plot_events, BANDS, events, seconds=1.6, title="t")
    texts = figures[0].axes[0].texts
    assert [text.get_text() for text in texts] == [f"{name} 0.50" for name in names]
    for text in texts:
        colors = text.get_color(), text.get_bbox_patch().get_facecolor()[:3]
        dark, light = sorted(luminance(color) for color in colors)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_the_color_of_a_label_is_that_of_the_model(figures, tmp_path):
    """It does not depend on which labels are found."""
    models = ("zebra", "cat", "dog")
    path = tmp_path / "x.png"
    for found in (("dog",), ("cat", "dog", "zebra")):
        boxes = [box(name, 0.5, 0.05 + 0.3 * i, 0.6, 0.2, 0.2) for i, name in enumerate(found)]
        draw(path, plot_boxes, image(*boxes, labels=models), title="t")
        events = [event(name, i, 0.4) for i, name in enumerate(found)]
        draw(path, plot_events, BANDS, events, seconds=3, title="t", labels=models)
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
    path = tmp_path / "x.svg"
    words = texts_of(draw(path, plot_events, BANDS, [], seconds=2, hertz=4000, title="a.wav"))
    assert {"0 Hz", "500 Hz", "1 kHz", "4 kHz", "no event found above the threshold"} <= set(words)
    assert "8 kHz" not in words
    words = texts_of(draw(path, plot_events, BANDS, [event("dog", 1)], seconds=2, title="a.wav"))
    assert "mel band" in words
    assert "no event found above the threshold" not in words


def test_labels_of_many_boxes_do_not_overlap(tmp_path):
    boxes = [
        box("cell", 0.9 - 0.01 * i, 0.2 + 0.0075 * (i % 5), 0.27 + 0.01 * (i // 5), 0.22, 0.3)
        for i in range(25)
    ]
    drawn = texts_of(draw(tmp_path / "x.svg", plot_boxes, image(*boxes), title="t"))
    words = [text for text in drawn if text.startswith("cell")]
    assert words[0] == "cell 0.90"
    assert 1 < len(words) < 25


def test_an_image_with_boxes_has_at_least_its_own_size(tmp_path):
    boxes = (box("cat", 0.5, 0.005, 0.02, 0.05, 0.2),)
    wide = Image(pixels=np.zeros((600, 2000, 3), np.uint8), boxes=boxes)
    pixels = imread(draw(tmp_path / "x.png", plot_boxes, wide, title="t"))
    assert 2000 <= pixels.shape[1] <= 2200
    assert pixels.shape[0] >= 600
