"""Chain figures: one line per step with the tokens so far, boxes as dark as the weights."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.image import imread

from regard.errors import UserError
from regard.look.figures.alignment import weight_colors
from regard.look.figures.chain import MAX_WORDS, Chain, plot_chain
from tests.look.pictures import SVG, check_picture

WORDS = ["$a_1$", "\u043c\u0430\u0440\u0442", "<b>&", " "]
SHOWN = ["$a_1$", "\u043c\u0430\u0440\u0442", "<b>&", "\u2423"]


def chain_of(words: list[str] = WORDS, **options) -> Chain:
    weights = torch.randn(len(words), len(words)).masked_fill(
        torch.ones(len(words), len(words)).triu() > 0, -torch.inf
    )
    weights = weights.softmax(-1).nan_to_num()
    return Chain(labels=words, weights=weights, **options)


def texts(path: Path) -> list[str]:
    return ["".join(text.itertext()).strip() for text in ElementTree.parse(path).iter(f"{SVG}text")]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_picture_is_written_in_the_format_of_its_name(tmp_path, suffix):
    path = tmp_path / f"chain{suffix}"
    assert plot_chain([chain_of(title="toy")], path) == path
    check_picture(path)


def test_each_line_has_one_word_more(tmp_path):
    words_drawn = texts(plot_chain([chain_of(title="toy")], tmp_path / "chain.svg"))
    assert [words_drawn.count(word) for word in SHOWN] == [4, 3, 2, 1]
    assert words_drawn.count("toy") == 1
    words = [text for text in words_drawn if text in SHOWN]
    assert words == [word for step in range(4) for word in SHOWN[: step + 1]]


def test_boxes_have_the_colors_of_the_weights(tmp_path):
    weights = torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [0.25, 0.75, 0]])
    path = plot_chain([Chain(labels=["a", "b", "c"], weights=weights)], tmp_path / "chain.svg")
    drawn = path.read_text(encoding="utf-8")
    for weight in (1.0, 0.25, 0.75):
        assert f"fill: {to_hex(weight_colors()(weight))}" in drawn
    assert drawn.count("stroke: #c01722") == 3  # the current token, once per line


def test_boxes_are_darker_for_larger_weights(tmp_path):
    last = torch.zeros(2, 2)
    last[1, 0] = 1
    dark, light = (
        imread(
            plot_chain(
                [Chain(labels=["mm", "mm"], weights=weight * last)], tmp_path / f"{weight}.png"
            )
        )
        for weight in (1.0, 0.2)
    )
    assert dark.shape == light.shape
    assert np.mean(dark[..., :3]) < np.mean(light[..., :3])


def test_last_layer_is_plotted_by_default(tmp_path):
    chains = [
        chain_of(["one", "two"], layer=layer, direction=direction)
        for layer, direction in ((1, "forward"), (2, "forward"), (1, "backward"), (2, "backward"))
    ]
    chains[0] = chain_of(["low", "two"], layer=1, direction="forward")
    last, first = (
        texts(plot_chain(chains, tmp_path / f"{layer}.svg", layer=layer)) for layer in (None, 1)
    )
    assert "low" not in last
    assert first.count("low") == 2
    for labels in (last, first):
        assert [text for text in labels if text in ("forward", "backward")] == [
            "forward",
            "backward",
        ]
    with pytest.raises(UserError, match="layer must be between 1 and 2, got 3"):
        plot_chain(chains, tmp_path / "3.svg", layer=3)


def test_invalid_chains_are_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(
        UserError, match="a figure of a chain must have at most 100 tokens, got 101"
    ):
        plot_chain([chain_of(["a"] * (MAX_WORDS + 1))], tmp_path / "long.png")
    with pytest.raises(UserError, match="must end in one of"):
        plot_chain([chain_of()], tmp_path / "chain.jpg")
    with pytest.raises(ValueError, match="chains must not be empty"):
        plot_chain([], tmp_path / "none.png")
    (tmp_path / "there.png").write_bytes(b"mine")
    with pytest.raises(UserError, match="already exists"):
        plot_chain([chain_of()], tmp_path / "there.png")
    assert [path.name for path in tmp_path.iterdir()] == ["there.png"]
