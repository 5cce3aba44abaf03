"""Chain figures: one line per step with the tokens so far, boxes as dark as the weights."""

import pytest
import torch
from matplotlib.colors import to_hex

from regard.errors import UserError
from regard.look.figures.canvas import weight_colors
from regard.look.figures.chain import MAX_WORDS, Chain, plot_chain
from tests.look.pictures import draw, texts_of

WORDS = ["$a_1$", "\u043c\u0430\u0440\u0442", "<b>&", " "]
SHOWN = ["$a_1$", "\u043c\u0430\u0440\u0442", "<b>&", "\u2423"]


def chain_of(words: list[str] = WORDS, direction: str = "") -> Chain:
    later = torch.ones(len(words), len(words)).triu() > 0
    weights = torch.randn(later.shape).masked_fill(later, -torch.inf).softmax(-1)
    return Chain(words, weights.nan_to_num(), direction)


def test_each_line_has_one_word_more(tmp_path):
    drawn = texts_of(draw(tmp_path / "chain.svg", plot_chain, [chain_of()], title="toy"))
    assert drawn.count("toy") == 1
    words = [text for text in drawn if text in SHOWN]
    assert words == [word for step in range(4) for word in SHOWN[: step + 1]]


def test_boxes_have_the_colors_of_the_weights(tmp_path):
    weights = torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [0.25, 0.75, 0]])
    path = draw(tmp_path / "chain.svg", plot_chain, [Chain(["a", "b", "c"], weights)])
    drawn = path.read_text(encoding="utf-8")
    for weight in (1.0, 0.25, 0.75):
        assert f"fill: {to_hex(weight_colors()(weight))}" in drawn
    assert drawn.count("stroke: #c01722") == 3  # the current token, once per line


def test_directions_are_one_above_the_other(tmp_path):
    chains = [chain_of(["one", "two"], "forward"), chain_of(["two", "one"], "backward")]
    drawn = texts_of(draw(tmp_path / "x.svg", plot_chain, chains))
    titles = [text for text in drawn if text.endswith("ward")]
    assert titles == ["forward", "backward"]


def test_a_long_text_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(UserError, match="at most 100 tokens, got 101"):
        draw(tmp_path / "long.png", plot_chain, [chain_of(["a"] * (MAX_WORDS + 1))])
    assert not list(tmp_path.iterdir())
