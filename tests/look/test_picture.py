"""Pictures of masks, biases and matrices: panels, files, and notebooks."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from docs.gallery import maps, masks
from regard.attention.biases import Alibi, RelativeBias, ShawBias, TensorBias
from regard.attention.masks import causal, dense, documents, padding, window
from regard.attention.picture import draw_matrix, side_by_side
from regard.errors import UserError
from tests.look.pictures import check_picture, texts_of

ROOT = Path(__file__).parents[2]


def test_rows_are_queries_whose_last_is_at_the_last_key(tmp_path):
    allowed = torch.rand(2, 5) > 0.4
    picture = dense(allowed).picture(2, 5)
    (panel,) = picture.panels
    assert torch.equal(panel.numbers > 0, allowed)
    assert (picture.first, picture.heading) == (3, "dense((2, 5))")
    words = texts_of(picture.save(tmp_path / "mask.svg"))
    assert {"query", "key", "3", "blue: may attend, white: masked"} <= set(words)


def test_rows_and_heads_are_panels_counted_from_1():
    picture = dense(torch.rand(2, 3, 5, 7) > 0.5).picture(5, 7, title="a mask")
    names = [f"row {row}, head {head}" for row in (1, 2) for head in (1, 2, 3)]
    assert [panel.title for panel in picture.panels] == names
    heads = TensorBias(torch.ones(1, 3, 5, 5)).picture(5, 5)
    assert [panel.title for panel in heads.panels] == ["head 1", "head 2", "head 3"]
    assert [panel.title for panel in padding([3]).picture(5, 5).panels] == [""]


def test_the_first_panels_of_many_are_drawn(tmp_path):
    picture = padding(torch.arange(20)).picture(2, 20)
    assert (len(picture.panels), picture.left_out) == (16, 4)
    words = texts_of(picture.save(tmp_path / "many.svg"))
    assert "the first 16 panels" in words


def test_colors_of_a_bias_reach_its_largest_magnitude(figures, tmp_path):
    values = torch.tensor([[-2.0, 0.0, 1.0, float("-inf")], [4.0, -4.0, 0.5, 2.0]])
    path = TensorBias(values).picture(2, 4).save(tmp_path / "bias.svg")
    (image,) = figures[0].axes[0].images
    assert image.get_array().filled(-99).tolist() == values.nan_to_num(neginf=-99).tolist()
    assert image.get_clim() == (-4, 4)
    words = texts_of(path)
    assert "2 x 4, up to \u00b14" in words
    assert "blue: above zero, orange: below zero, gray: masked (-inf)" in words


def test_a_bias_of_the_queries_needs_them():
    bias = ShawBias(5, 4, num_heads=2)
    torch.nn.init.normal_(bias.table)
    query = torch.randn(2, 3, 5)
    assert len(bias.picture(3, 4, query=query).panels) == 2
    assert bias._repr_svg_() is None


def test_a_matrix_has_names_of_its_axes(figures, tmp_path):
    picture = draw_matrix(torch.randn(3, 2), title="P", names=("position", "dimension"), first=11)
    words = texts_of(picture.save(tmp_path / "matrix.svg"))
    assert {"P", "position", "dimension", "11", "13", "0"} <= set(words)
    (axes,) = figures[0].axes
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("position", "dimension")


def test_magnitudes_have_a_scale_from_0_and_numbers(figures, tmp_path):
    norms = torch.tensor([[5.0, 0.25], [0.5, 2.0]])
    picture = draw_matrix(norms, title="norms", is_signed=False)
    words = texts_of(picture.save(tmp_path / "norms.svg"))
    (image,) = figures[0].axes[0].images
    assert image.get_clim() == (0, 5)
    assert {"5.00", "0.25", "0.50", "2.00", "2 x 2"} <= set(words)
    assert "5 x 30, up to 2" in texts_of(
        draw_matrix(torch.full((5, 30), 2.0), title="", is_signed=False).save(tmp_path / "x.svg")
    )


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_picture_is_saved_and_overwrites_only_on_request(suffix, tmp_path):
    picture, path = causal().picture(3, 3), tmp_path / f"causal{suffix}"
    assert picture.save(path) == path
    check_picture(path)
    before = path.read_bytes()
    other = padding([2]).picture(3, 3)
    with pytest.raises(UserError, match=r"already exists: .* overwrite=True"):
        other.save(path)
    assert path.read_bytes() == before
    other.save(str(path), overwrite=True)
    assert path.read_bytes() != before
    with pytest.raises(UserError, match=r"must end in one of \.png, \.svg, \.pdf, got 'causal\.t"):
        picture.save(tmp_path / "causal.txt")


def test_a_picture_for_slides_shows_masked_cells(tmp_path):
    path = causal().picture(3, 3).save(tmp_path / "causal.png")
    with Image.open(path) as image:
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 24)}
    assert {(255, 255, 255), (3, 39, 81)} <= colors  # white and the darkest blue


def test_titles_of_sums_are_whole():
    bias = RelativeBias(num_heads=1, buckets=8) + Alibi(1)
    heading = f"RelativeBias({bias.left.extra_repr()}) + Alibi({bias.right.extra_repr()})"
    assert bias.picture(3, 3).heading == heading


def test_matrices_side_by_side_keep_their_names_numbers_and_scale():
    norms, names = torch.rand(2, 3), ("output", "input")
    one, other = (
        draw_matrix(norms * by, title=f"times {by}", names=names, is_signed=False) for by in (1, 2)
    )
    both = side_by_side([one, other])
    assert (both.names, both.is_signed, both.has_numbers) == (names, False, True)
    assert [panel.title for panel in both.panels] == ["times 1", "times 2"]
    assert torch.equal(both.panels[1].numbers, 2 * norms)


def test_pictures_side_by_side_are_panels_of_one():
    combined = side_by_side([causal().picture(3, 3), padding([1, 2]).picture(3, 3)])
    titles = ["causal()", "padding([1, 2]) row 1", "padding([1, 2]) row 2"]
    assert [panel.title for panel in combined.panels] == titles
    assert combined.is_mask


def test_notebooks_draw_masks_and_biases():
    """Of eight queries and keys, or of sizes of their own."""
    mask, bias = dense(torch.rand(5, 7) > 0.5), TensorBias(torch.randn(5, 7))
    for shown in (mask, ~mask, mask & mask, causal() & mask, bias, Alibi(2) + bias):
        assert shown._repr_svg_() == shown.picture(5, 7).svg
    row = dense(torch.ones(1, 5, dtype=torch.bool))
    assert row._repr_svg_() == row.picture(8, 5).svg
    for shown in (causal(), causal() & ~window(2), Alibi(2)):
        assert shown._repr_svg_() == shown.picture(8, 8).svg
    assert documents((5,))._repr_svg_() == documents((5,)).picture(1, 1).svg
    assert repr(causal().picture(3, 3)) == "<picture of causal(), 1 panel; .save(path) writes it>"


@pytest.mark.parametrize(("name", "script"), [("masks.svg", masks.main), ("maps.svg", maps.main)])
def test_script_draws_the_image_in_the_docs(name, script, tmp_path, capsys):
    script([str(tmp_path / name)])
    assert capsys.readouterr().out.strip() == str(tmp_path / name)
    image = ROOT / "docs" / "images" / name
    assert (tmp_path / name).read_text() == image.read_text()
