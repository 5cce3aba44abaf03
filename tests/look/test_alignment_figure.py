"""Alignment figures: files, formats, labels and colors."""

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.image import imread

from regard.errors import UserError
from regard.look.figures.alignment import Alignment, plot_alignment, weight_colors
from regard.look.figures.output import SUFFIXES
from tests.look.pictures import SVG, check_picture

TITLE = "3 \u043c\u0430\u0440\u0442 = 2019"
SIGNATURES = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF"}
SOURCE = ["3", " ", "\u043c\u0430\u0440\u0442", "\u4e09\u6708", "$x_1$", "<b>&", "</s>"]
TARGET = ["\u0645\u0627\u0631\u0633", "2019", "\u0301"]


def alignment_of(heads: int = 1, *, layer: str = "", title: str = TITLE) -> Alignment:
    weights = torch.randn(heads, len(TARGET), len(SOURCE)).softmax(-1)
    return Alignment(source=SOURCE, target=TARGET, weights=weights, layer=layer, title=title)


def texts(path: Path) -> list[str]:
    elements = ElementTree.parse(path).iter(f"{SVG}text")
    return ["".join(text.itertext()).strip() for text in elements]


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".PNG"])
def test_picture_is_written_in_the_format_of_its_name(tmp_path, suffix):
    path = tmp_path / f"figure{suffix}"
    assert plot_alignment(alignment_of(), path) == path
    assert path.read_bytes().startswith(SIGNATURES[suffix.lower()])
    check_picture(path)


def test_svg_contains_every_label_as_text(tmp_path):
    labels = texts(plot_alignment(alignment_of(), tmp_path / "figure.svg"))
    shown = [
        label.replace(" ", "\u2423").replace("\u0301", "\u25cc\u0301")
        for label in [*SOURCE, *TARGET]
    ]
    for label in [*shown, TITLE, "weight", "source", "target"]:
        assert labels.count(label) == 1, label


def test_several_heads_are_plotted_with_their_mean(tmp_path):
    labels = texts(plot_alignment(alignment_of(3), tmp_path / "figure.svg"))
    assert [text for text in labels if "head" in text] == [
        "mean of 3 heads",
        "head 1",
        "head 2",
        "head 3",
    ]
    assert labels.count("</s>") == 4
    assert labels.count("2019") == 1


@pytest.mark.parametrize(("masked_heads", "hatched"), [([], 0), ([1], 1), ([0, 1], 3)])
def test_masked_pairs_are_hatched_in_a_head_and_in_the_mean_if_all_heads_mask_them(
    tmp_path, masked_heads, hatched
):
    weights = alignment_of(2).weights.clone()
    weights[..., 2] = 0.0
    weights[masked_heads, :, 2] = -0.0
    path = plot_alignment(
        Alignment(source=SOURCE, target=TARGET, weights=weights), tmp_path / "figure.svg"
    )
    # One panel for the mean, one for each head; the column has a cell in each row.
    assert path.read_text().count("fill: url(#") == hatched * len(TARGET)


@pytest.mark.parametrize(("layer", "shown"), [(None, "layer 3"), (2, "layer 2")])
def test_one_of_several_layers_is_shown_beside_the_mean_of_all(tmp_path, layer, shown):
    layers = [alignment_of(2, layer=f"layer {number}") for number in (1, 2, 3)]
    labels = texts(plot_alignment(layers, tmp_path / "figure.svg", layer=layer))
    titles = [text for text in labels if "layer" in text]
    assert titles == [
        "mean of 3 layers",
        f"{shown}, mean of 2 heads",
        f"{shown}, head 1",
        f"{shown}, head 2",
    ]


def test_layers_of_one_head_need_no_mean_of_heads(tmp_path):
    layers = [alignment_of(layer=f"layer {number}") for number in (1, 2)]
    labels = texts(plot_alignment(layers, tmp_path / "figure.svg", layer=1))
    assert [text for text in labels if "layer" in text or "head" in text] == [
        "mean of 2 layers",
        "layer 1",
    ]


def test_cells_have_the_colors_of_their_weights(tmp_path):
    weights = torch.tensor([[[0.0, 1.0, 0.25], [0.5, 0.0, 0.75]]])
    alignment = Alignment(source=list("abc"), target=list("xy"), weights=weights)
    svg = plot_alignment(alignment, tmp_path / "figure.svg").read_text(encoding="utf-8")
    mesh = svg[svg.index('id="QuadMesh_1"') :]
    filled = re.findall(r"fill: (#[0-9a-f]{6})", mesh)[:6]
    expected = [
        matplotlib.colors.to_hex(weight_colors()(weight)) for weight in weights.flatten().tolist()
    ]
    assert filled == expected


def test_colors_go_from_white_to_dark_in_equal_steps_of_lightness():
    rgb = weight_colors()(np.linspace(0, 1, 33))[:, :3]
    assert rgb[0].tolist() == [1, 1, 1]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lightness = (
        116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16
    )  # CIELAB, all above its linear part
    np.testing.assert_allclose(np.diff(lightness), -84 / 32, atol=0.5)


def test_large_alignment_shows_its_largest_weights(tmp_path):
    weights = torch.zeros(1, 9, 4000)
    weights[0, 7, 2500] = 1
    alignment = Alignment(source=["a"] * 4000, target=["b"] * 9, weights=weights)
    picture = imread(plot_alignment(alignment, tmp_path / "figure.png"))
    assert max(picture.shape[:2]) < 3500
    inside = picture[:, : int(picture.shape[1] * 0.9), :3]
    darkest = inside.sum(-1) < 0.35 * 3
    bluish = inside[..., 2] > inside[..., 0] + 0.1  # the weight's dark blue; ink is nearly gray
    assert (darkest & bluish).any()


def test_same_weights_make_the_same_file(tmp_path):
    alignment = alignment_of()
    for suffix in SUFFIXES:
        first, second = (plot_alignment(alignment, tmp_path / f"{name}{suffix}") for name in "ab")
        assert first.read_bytes() == second.read_bytes()


def test_settings_of_matplotlib_are_neither_used_nor_changed(tmp_path):
    alignment = alignment_of()
    plain = plot_alignment(alignment, tmp_path / "plain.svg").read_bytes()
    with matplotlib.rc_context(
        {"axes.facecolor": "black", "font.size": 30, "svg.fonttype": "path"}
    ):
        before = dict(matplotlib.rcParams)
        assert plot_alignment(alignment, tmp_path / "styled.svg").read_bytes() == plain
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unusual_tokens_are_drawn(tmp_path, suffix):
    tokens = [
        "\ud800",
        "\x00",
        "",
        "\U0001f642",
        "\u0e21\u0e35\u0e19\u0e32\u0e04\u0e21",
        "x" * 99,
        "\\frac{",
    ]
    alignment = Alignment(
        source=tokens, target=tokens[:3], weights=torch.rand(2, 3, 7), title="$ \x07 " * 80
    )
    check_picture(plot_alignment(alignment, tmp_path / f"figure{suffix}"))


def test_file_is_not_overwritten_by_default(tmp_path):
    path = tmp_path / "figure.png"
    path.write_text("mine")
    with pytest.raises(UserError, match=r"figure\.png already exists"):
        plot_alignment(alignment_of(), path)
    assert path.read_text() == "mine"
    plot_alignment(alignment_of(), path, overwrite=True)
    assert path.read_bytes().startswith(SIGNATURES[".png"])


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.png.bak"])
def test_other_formats_are_refused(tmp_path, name):
    with pytest.raises(UserError, match=rf"\.png, \.svg, \.pdf, got '{re.escape(name)}'"):
        plot_alignment(alignment_of(), tmp_path / name)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"the folder .*nowhere does not exist"):
        plot_alignment(alignment_of(), tmp_path / "nowhere" / "figure.png")


@pytest.mark.parametrize("layer", [0, 3, -1])
def test_missing_layer_is_refused(tmp_path, layer):
    with pytest.raises(UserError, match=rf"layer must be between 1 and 2, got {layer}"):
        plot_alignment([alignment_of(), alignment_of()], tmp_path / "figure.png", layer=layer)
    assert list(tmp_path.iterdir()) == []


def test_alignments_of_different_tokens_are_refused(tmp_path):
    other = Alignment(source=["a"], target=["b"], weights=torch.ones(1, 1, 1))
    with pytest.raises(ValueError, match=r"the same source and target"):
        plot_alignment([alignment_of(), other], tmp_path / "figure.png")


def test_no_alignment_is_refused(tmp_path):
    with pytest.raises(ValueError, match="alignments must not be empty"):
        plot_alignment([], tmp_path / "figure.png")
