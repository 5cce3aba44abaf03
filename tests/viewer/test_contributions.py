"""Contributions on the page: colors by the items, not by the bias."""

from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Page

from regard.look.measures import contribution_maps
from regard.look.sample import Axis, Image, Sample
from tests.look.maps import capture_of
from tests.viewer.conftest import save_svg

ITEMS = torch.tensor([[0.02, -0.01, 0.0], [0.01, -0.01, 0.0]])
BIAS = 3.0


def write_page(path: Path, sample: Sample, terms: torch.Tensor = ITEMS) -> Path:
    """Write the page of the contributions (head, item), by default of two heads to three items."""
    maps = contribution_maps(
        sample,
        [f"head {head + 1}" for head in range(len(terms))],
        terms[None],
        torch.tensor([BIAS]),
        names=["yes"],
        quantity="log-odds of a very long quantity with many words, to its end",
    )
    return capture_of(maps).save(path)


@pytest.fixture
def text_page(tmp_path, open_page):
    axis = Axis(labels=("a", "b", "c"), kind="token")
    sample = Sample(title="long words " * 200, axes={"source": axis})
    return open_page(write_page(tmp_path / "text.html", sample))


def image_sample(places: tuple[tuple[float, ...], ...]) -> Sample:
    """Return a black image with patches at these places."""
    labels = tuple(f"{i + 1}" for i in range(len(places)))
    axis = Axis(labels=labels, kind="patch", picture="image", places=places)
    pictures = {"image": Image(pixels=np.zeros((6, 12, 3), np.uint8))}
    return Sample(title="image", axes={"source": axis}, pictures=pictures)


@pytest.fixture
def image_page(tmp_path, open_page):
    sample = image_sample(((0.0, 0.0, 0.25, 1.0), (0.25, 0.0, 0.25, 1.0), (0.5, 0.0, 0.5, 1.0)))
    return open_page(write_page(tmp_path / "image.html", sample))


def color_at(page: Page, query: int, key: int) -> list[int]:
    """Return red, green and blue of a place of the drawing, off its middle, where numbers are."""
    return page.evaluate(
        """([query, key]) => {
          const {x, y} = window.regard.place(query, key);
          const canvas = document.querySelector(".stage canvas");
          const box = canvas.getBoundingClientRect(), ratio = canvas.width / box.width;
          const at = [(x - box.left) * ratio, (y - box.top + 16) * ratio];
          const copy = document.createElement("canvas").getContext("2d");
          copy.drawImage(canvas, ...at, 1, 1, 0, 0, 1, 1);
          return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [query, key],
    )


def test_items_set_the_scale_of_a_text_and_the_bias_saturates(text_page):
    largest = float(ITEMS.sum(0).abs().max())
    legend = text_page.locator(".legend").inner_text()
    assert f"\u2264 -{largest:.2g}" in legend
    assert f"\u2265 {largest:.2g}" in legend
    red, _, blue = color_at(text_page, 0, 0)
    assert blue - red > 30
    red, _, blue = color_at(text_page, 0, 1)
    assert red - blue > 30


def test_a_long_title_has_two_lines_and_its_text_as_tooltip(text_page):
    title = text_page.locator("h1")
    assert title.get_attribute("title").count("long words") == 200
    assert title.bounding_box()["height"] < 2.5 * 14 * 1.35
    assert title.evaluate("h1 => h1.scrollHeight > h1.clientHeight")


def test_an_image_has_the_colors_of_its_legend_on_a_pale_picture(image_page):
    scale = image_page.locator(".heat-scale")
    colors = scale.evaluate("scale => getComputedStyle(scale).backgroundImage")
    below, above = [213, 94, 0], [12, 86, 165]
    for color in (below, above):
        assert ", ".join(map(str, color)) in colors
    positive, negative, zero = (np.array(color_at(image_page, 0, key)) for key in range(3))
    assert zero.min() == zero.max() == 102  # black pixels are paler; no color near 0
    # The largest number has the full color: the overlay's opacity is 0.75.
    assert positive == pytest.approx(0.25 * zero + 0.75 * np.array(above), abs=3)
    share = 0.75 * float(ITEMS.sum(0)[1].abs() / ITEMS.sum(0)[0])
    assert negative == pytest.approx((1 - share) * zero + share * np.array(below), abs=3)
    legend = image_page.locator(".heat-legend").inner_text()
    assert [*legend.split()[:2], legend.split("clear: ")[1]] == [
        "-0.03",
        "0.03",
        "within \u00b10, half of the places",
    ]


def test_the_picture_is_in_sight_where_all_contributions_are_alike(open_page, tmp_path):
    """Half of the places are clear; the legend states up to which number."""
    sample = image_sample(tuple((0.25 * i, 0.0, 0.25, 1.0) for i in range(4)))
    terms = torch.tensor([[0.05, 0.051, 0.052, 0.053]])
    page = open_page(write_page(tmp_path / "alike.html", sample, terms))
    colors = [color_at(page, 0, key) for key in range(4)]
    assert colors[:2] == [[102] * 3] * 2
    assert 102 < colors[2][2] < colors[3][2] < 165
    legend = page.locator(".heat-legend").inner_text()
    assert legend.endswith("clear: within \u00b10.051, half of the places")


@pytest.mark.parametrize("width", [400, 1280])
def test_the_sum_is_shown_to_its_end(width, image_page):
    image_page.set_viewport_size({"width": width, "height": 800})
    image_page.evaluate("window.regard.ready")
    facts = image_page.locator(".facts")
    assert "many words, to its end: yes +3.010" in facts.inner_text()
    assert facts.evaluate("p => p.scrollWidth <= p.clientWidth")


def test_axes_of_contributions_are_parts_and_items(text_page):
    _, texts = save_svg(text_page)
    assert {"parts", "tokens"} <= set(texts)
    assert not any("queries" in text or "keys" in text for text in texts)


def test_the_last_row_of_a_picture_is_inside_its_place(image_page):
    canvas = image_page.locator(".stage canvas").bounding_box()
    stage = image_page.locator(".stage").bounding_box()
    assert canvas["y"] + canvas["height"] <= stage["y"] + stage["height"] + 0.5
