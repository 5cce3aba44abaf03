"""Pictures of masks and biases: contents, file sizes, and saving."""

import builtins
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image, ImageColor
from torch import Tensor

import regard
from docs.gallery.masks import main
from regard.attention.biases import Alibi, RelativeBias, ShawBias, TensorBias
from regard.attention.masks import causal, dense, documents, padding, window
from regard.attention.picture import Picture, side_by_side
from regard.errors import UserError

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def cell_counts(picture: Picture) -> list[Tensor]:
    """Count how often the paths of the file paint each cell of each panel over the background."""
    counts = []
    for group in ElementTree.fromstring(picture.svg).iter(f"{SVG}g"):
        if "scale" not in group.get("transform", ""):
            continue
        ground = group.find(f"{SVG}rect")
        table = torch.zeros(int(ground.get("height")), int(ground.get("width")), dtype=torch.int64)
        for path in group.iter(f"{SVG}path"):
            for x, y, width, height in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-\3z", path.get("d")):
                table[int(y) : int(y) + int(height), int(x) : int(x) + int(width)] += 1
        counts.append(table)
    return counts


def texts(picture: Picture) -> list[str]:
    return [
        "".join(text.itertext()) for text in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")
    ]


@pytest.mark.parametrize("sizes", [(5, 7), (7, 5), (1, 1), (1, 13), (13, 17)])
def test_every_allowed_pair_is_painted_once(sizes):
    allowed = torch.rand(sizes) > 0.4
    (table,) = cell_counts(dense(allowed).picture(*sizes))
    assert torch.equal(table, allowed.long())


def test_axes_are_labeled_with_positions():
    labels = texts(causal().picture(2, 5))
    assert {"causal()", "key", "query", "may attend", "masked"} <= set(labels)
    numbers = [int(word) for word in labels if re.fullmatch(r"-?\d+", word)]
    assert numbers == [0, 1, 2, 3, 4, 3, 4]
    assert [int(w) for w in texts(causal().picture(3, 1)) if re.fullmatch(r"-?\d+", w)] == [
        0,
        -2,
        -1,
        0,
    ]


def test_ticks_are_sparser_in_small_cells():
    numbers = [int(word) for word in texts(causal().picture(300, 300)) if word.isdigit()]
    keys, queries = numbers[: numbers.index(0, 1)], numbers[numbers.index(0, 1) :]
    for positions in (keys, queries):
        assert 4 <= len(positions) <= 25
        assert len({b - a for a, b in pairwise(positions)}) == 1


def test_rows_and_heads_are_panels():
    picture = dense(torch.rand(2, 3, 5, 7) > 0.5).picture(5, 7, title="a mask")
    assert [panel.title for panel in picture.panels] == [
        f"row {b}, head {h}" for b in (1, 2) for h in (1, 2, 3)
    ]
    assert picture.heading == "a mask"
    heads = [panel.title for panel in TensorBias(torch.ones(1, 3, 5, 5)).picture(5, 5).panels]
    assert heads == ["head 1", "head 2", "head 3"]
    assert [panel.title for panel in padding([3]).picture(5, 5).panels] == [""]


def test_panels_after_the_first_16_are_left_out_with_a_note():
    picture = padding(torch.arange(20)).picture(2, 20)
    assert len(picture.panels) == 16
    assert "the first 16 of 20" in texts(picture)
    assert not any("first" in word for word in texts(padding(torch.arange(16)).picture(2, 16)))


@pytest.mark.parametrize("share", [0.5, 0.001])
def test_large_pictures_make_files_below_a_megabyte(share):
    allowed = torch.rand(4096, 4096) < share
    assert len(dense(allowed).picture(4096, 4096).svg) < 1_000_000
    bias = torch.randn(16, 256, 256) if share < 0.5 else torch.randn(1, 200, 200)
    assert len(TensorBias(bias).picture(*bias.shape[-2:]).svg) < 1_000_000


def test_darkness_of_a_cell_is_the_allowed_fraction_in_quarters_rounded_up():
    allowed = torch.zeros(401, 401, dtype=torch.bool)
    picture = dense(allowed).picture(401, 401)
    (pairs,) = {panel.pairs for panel in picture.panels}
    assert pairs == 3
    assert f"a cell is {pairs} x {pairs} pairs" in texts(picture)
    allowed[0, 0] = True  # 1 of 9
    allowed[:3, 3:6] = True  # all
    allowed[3:6, :1] = True  # 3 of 9
    allowed[3:6, 3:5] = True  # 6 of 9
    allowed[-2:, -2:] = True  # all of the partial cell in the corner: 401 = 133 * 3 + 2
    levels = torch.tensor(dense(allowed).picture(401, 401).panels[0].levels)
    assert levels[:2, :2].tolist() == [[1, 4], [2, 3]]
    assert levels[-1, -1] == 4
    assert int((levels > 0).sum()) == 5


def test_long_read_of_one_query_is_drawn():
    (panel,) = causal().picture(1, 4096).panels
    assert len(panel.levels) == 1
    assert len(panel.levels[0]) <= 400
    assert all(level == 4 for level in panel.levels[0])


def test_strips_do_not_change_the_picture(monkeypatch):
    bias = TensorBias(torch.randn(2, 450, 250))
    svg = bias.picture(450, 250).svg
    monkeypatch.setattr("regard.attention.picture._STRIP", 2000)
    assert bias.picture(450, 250).svg == svg


def test_bias_is_drawn_from_its_minimum_to_its_maximum():
    values = torch.tensor([[-2.0, 2.0, 0.0, 0.1], [1.0, -1.0, float("-inf"), -0.5]])
    picture = TensorBias(values).picture(2, 4)
    assert picture.panels[0].levels == ((0, 12, 6, 6), (9, 3, 13, 4))
    assert {"-2", "2", "masked (-inf)"} <= set(texts(picture))
    assert "masked (-inf)" not in texts(TensorBias(values[:, :2]).picture(2, 2))
    (table,) = cell_counts(picture)
    assert table.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_bias_of_a_cell_is_the_mean_of_finite_values():
    values = torch.full((402, 402), 4.0)
    values[:3, :3] = torch.tensor([[0.0, 4.0, float("-inf")]])
    values[3:6, :3] = float("-inf")
    levels = TensorBias(values).picture(402, 402).panels[0].levels
    assert (levels[0][0], levels[1][0], levels[0][1]) == (9, 13, 12)


def test_bias_of_zeros_and_without_finite_values_is_drawn():
    assert TensorBias(torch.zeros(2, 3)).picture(2, 3).panels[0].levels == ((6,) * 3,) * 2
    assert (
        TensorBias(torch.full((2, 3), float("-inf"))).picture(2, 3).panels[0].levels
        == ((13,) * 3,) * 2
    )


def test_bias_that_depends_on_queries_requires_them():
    bias = ShawBias(5, 2)
    with pytest.raises(ValueError, match="query must have size 5 for this ShawBias, got 1"):
        bias.picture(3, 4)
    torch.nn.init.normal_(bias.table)
    query = torch.randn(2, 3, 5)
    assert len(bias.picture(3, 4, query=query).panels) == 2


def test_picture_is_saved_and_overwrites_only_on_request(tmp_path):
    picture, path = causal().picture(3, 3), tmp_path / "causal.svg"
    assert picture.save(path) == path
    assert path.read_text() == picture.svg
    other = padding([2]).picture(3, 3)
    with pytest.raises(UserError, match=r"causal\.svg already exists: .* overwrite=True"):
        other.save(path)
    assert path.read_text() == picture.svg
    other.save(str(path), overwrite=True)
    assert path.read_text() == other.svg
    with pytest.raises(
        UserError, match=r"must end in one of \.png, \.svg, \.pdf, got 'causal\.txt'"
    ):
        picture.save(tmp_path / "causal.txt")


def test_a_picture_for_slides_has_the_colors_of_its_cells(tmp_path):
    path = Alibi(4).picture(6, 9).save(tmp_path / "alibi.png")
    with Image.open(path) as image:
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 24)}
    picture = Alibi(4).picture(6, 9)
    levels = {level for panel in picture.panels for row in panel.levels for level in row}
    assert {ImageColor.getrgb(picture.scale.colors[level]) for level in levels} <= colors
    with pytest.raises(UserError, match=r"alibi\.png already exists: .* overwrite=True"):
        picture.save(path)
    picture.save(path, overwrite=True)
    padding(torch.arange(20)).picture(2, 20).save(tmp_path / "many.pdf")
    assert (tmp_path / "many.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", ["mask.svg", "mask.png"])
def test_a_cell_that_saves_a_picture_can_be_run_again(name, tmp_path, monkeypatch):
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    picture, path = causal().picture(3, 3), tmp_path / name
    for _ in range(2):
        assert picture.save(path) == path
    path.write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        picture.save(path)
    assert path.read_text() == "mine"


def test_each_head_has_the_colors_of_its_own_magnitude():
    """The slopes of four heads are 2^-2, 2^-4, 2^-6, 2^-8; the largest distance is 4."""
    picture = Alibi(4).picture(5, 5)
    expected = [f"head {head}, up to \u00b1{4 * 2.0 ** (-2 * head):.3g}" for head in (1, 2, 3, 4)]
    assert [panel.title for panel in picture.panels] == expected
    assert len({panel.levels for panel in picture.panels}) == 1
    assert {*expected, "-largest", "largest of the panel"} <= set(texts(picture))


def test_titles_of_sums_are_whole():
    bias = RelativeBias(num_heads=1, buckets=8) + Alibi(1)
    assert repr_line(bias) in texts(bias.picture(3, 3))


def repr_line(bias) -> str:
    return f"RelativeBias({bias.left.extra_repr()}) + Alibi({bias.right.extra_repr()})"


def test_notebooks_draw_masks_and_biases_with_sizes_of_their_own():
    allowed = torch.rand(5, 7) > 0.5
    mask = dense(allowed)
    for shown, expected in (
        (mask, allowed),
        (~mask, ~allowed),
        (mask & mask, allowed),
        (mask | ~mask, allowed | ~allowed),
    ):
        assert shown._repr_svg_() == shown.picture(5, 7).svg
        assert torch.equal(shown.tensor(5, 7), expected)
    assert (causal() & mask)._repr_svg_() == (causal() & mask).picture(5, 7).svg
    assert (
        dense(torch.ones(1, 5, dtype=torch.bool))._repr_svg_()
        == dense(allowed.new_ones(1, 5)).picture(8, 5).svg
    )
    bias = TensorBias(torch.randn(5, 7))
    assert bias._repr_svg_() == bias.picture(5, 7).svg
    assert (Alibi(2) + bias)._repr_svg_() == (Alibi(2) + bias).picture(5, 7).svg
    assert ShawBias(4, 2)._repr_svg_() is None  # it needs queries


def test_picture_has_svg_and_text_representations():
    picture = causal().picture(3, 3)
    assert picture._repr_svg_() == picture.svg
    assert repr(picture) == "<picture of causal(), 1 panel; .save(path) writes it>"


def test_titles_are_escaped_and_truncated():
    picture = causal().picture(3, 3, title="a < b & " + "c" * 180)
    (title,) = [
        text
        for text in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")
        if text.find(f"{SVG}title") is not None
    ]
    assert title.find(f"{SVG}title").text == "a < b & " + "c" * 180
    assert title.find(f"{SVG}title").tail.endswith("...")
    assert ElementTree.fromstring(picture.svg).get("aria-label").startswith("a < b & c")


def test_pictures_side_by_side_need_the_same_scale():
    combined = side_by_side([causal().picture(3, 3), padding([1, 2]).picture(3, 3)])
    assert [panel.title for panel in combined.panels] == [
        "causal()",
        "padding([1, 2]) row 1",
        "padding([1, 2]) row 2",
    ]
    with pytest.raises(ValueError, match="pictures side by side must have the same scale"):
        side_by_side([causal().picture(3, 3), Alibi(1).picture(3, 3)])


def test_empty_and_nan_pictures_are_refused():
    with pytest.raises(ValueError, match="num_queries of a picture must be at least 1, got 0"):
        causal().picture(0, 3)
    with pytest.raises(ValueError, match="num_keys of a picture must be at least 1, got 0"):
        causal().picture(3, 0)
    with pytest.raises(ValueError, match="values must not be NaN to be drawn, got 1 NaN"):
        TensorBias(torch.tensor([[0.0, float("nan")]])).picture(1, 2)


def test_script_draws_the_image_in_the_docs(tmp_path, capsys):
    main([str(tmp_path / "masks.svg")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "masks.svg")
    assert (tmp_path / "masks.svg").read_text() == (
        ROOT / "docs" / "images" / "masks.svg"
    ).read_text()


def test_notebooks_draw_masks_and_biases_of_any_size():
    assert causal()._repr_svg_() == causal().picture(8, 8).svg
    assert (causal() & ~window(2))._repr_svg_() == (causal() & ~window(2)).picture(8, 8).svg
    assert Alibi(2)._repr_svg_() == Alibi(2).picture(8, 8).svg


def test_kernels_are_described_line_by_line_in_a_notebook():
    text = regard.kernels()
    assert repr(text) == str(text)
    assert text.splitlines()[0] in text._repr_html_()
    assert text._repr_html_().startswith("<pre>")


def test_notebooks_show_documents_of_few_items() -> None:
    assert documents((5,))._repr_svg_() == documents((5,)).picture(1, 1).svg
