"""Walk, multihead and links figures: numbers equal formulas of the model's weights."""

import re

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.measures import contribution_maps, decoder_contribution_map
from regard.look.sample import Axis, Sample, format_score
from tests.look.maps import capture_of
from tests.look.pictures import check_picture
from tests.look.toys import CORES, SOURCES, capture_sources, encoder_formulas, model_of


@pytest.fixture(scope="module")
def model():
    return model_of(CORES["transformer"])


@pytest.fixture(scope="module")
def capture(model, tmp_path_factory) -> Capture:
    """A capture from its file alone."""
    path = tmp_path_factory.mktemp("walk") / "x.safetensors"
    capture_sources(model, SOURCES[:1], vectors=True).save(path, dtype=torch.float64)
    return Capture.open(path)


def matrices_of(figure: Figure) -> dict[str, np.ndarray]:
    """Return the drawn numbers by the title above them; masked cells are NaN."""
    # A matrix has a title and a caption, in this order.
    captions = [i for i, text in enumerate(figure.texts) if re.match(r"[\d,]+ x ", text.get_text())]
    titles = [figure.texts[i - 1].get_text() for i in captions]
    drawn = [axes.get_images()[0].get_array().filled(np.nan) for axes in figure.axes]
    return dict(zip(titles, drawn, strict=True))


@pytest.mark.parametrize("head", [1, 2])
def test_walk_draws_every_step_of_a_head(head, model, capture, figures, tmp_path):
    capture.plot(tmp_path / "w.svg", view="walk", kind="encoder self", head=head)
    drawn, expected = matrices_of(figures[0]), encoder_formulas(model, head - 1)
    titles = ["X", "Q = X W_Q + b", "K = X W_K + b", "V = X W_V + b"]
    titles += ["S = Q K^T / sqrt(3)", "A = softmax(S)", "Z = A V"]
    assert list(drawn) == titles
    for title, name in zip(titles, "XQKVSAZ", strict=True):
        assert drawn[title] == pytest.approx(expected[name].numpy(), abs=1e-6), name
    tops = [round(axes.get_position().y1, 6) for axes in figures[0].axes]
    assert tops == [tops[0]] * 4 + [tops[4]] * 3  # two rows: little of the figure is empty


def test_walk_of_a_decoder_shows_what_is_masked(capture, figures, tmp_path):
    path = capture.plot(tmp_path / "w.svg", view="walk", kind="decoder self", layer=2)
    scores = matrices_of(figures[0])["S = Q K^T / sqrt(3)"]
    assert np.array_equal(np.isnan(scores), np.triu(np.ones(scores.shape), 1) > 0)
    assert "-\u221e" in path.read_text(encoding="utf-8")


def test_walk_of_one_query_adds_the_weighted_values(model, capture, figures, tmp_path):
    path = capture.plot(tmp_path / "w.svg", view="walk", kind="encoder self", head=2, query=4)
    drawn, expected = matrices_of(figures[0]), encoder_formulas(model, 1)
    weights = expected["A"][3][:, None]
    parts = {
        "x_4": expected["X"][3:4],
        "q_4 = x_4 W_Q + b": expected["Q"][3:4],
        "k_j, asked": expected["K"],
        "s_4j": expected["S"][3][:, None],
        "a_4j": weights,
        "v_j": expected["V"],
        "a_4j v_j": weights * expected["V"],
        "z_4 = sum_j a_4j v_j": (weights * expected["V"]).sum(0)[None],
    }
    assert list(drawn) == list(parts)
    for title, numbers in parts.items():
        assert drawn[title] == pytest.approx(numbers.numpy(), abs=1e-6), title
    texts = re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))
    for number in weights[:, 0].tolist():  # the numbers themselves are in the cells
        assert format_score(number) in texts


def test_multihead_draws_the_five_steps(model, capture, figures, tmp_path):
    capture.plot(tmp_path / "m.svg", view="multihead", kind="encoder self")
    drawn, heads = matrices_of(figures[0]), [encoder_formulas(model, head) for head in (0, 1)]
    for number, head in enumerate(heads, start=1):
        for letter in "QKV":
            assert drawn[f"W_{letter}, head {number}"] == pytest.approx(head[f"W_{letter}"].numpy())
        for letter in "QKVAZ":
            assert drawn[f"{letter}, head {number}"] == pytest.approx(
                head[letter].numpy(), abs=1e-6
            )
    joined = torch.cat([head["Z"] for head in heads], -1)
    output = model.core.encoder[0].attention.output
    assert drawn["[Z_1, ..., Z_2]"] == pytest.approx(joined.numpy(), abs=1e-6)
    assert drawn["W_O"] == pytest.approx(output.weight.detach().numpy().T)
    result = joined @ output.weight.detach().T + output.bias.detach()
    assert drawn["[Z_1, ...] W_O + b"] == pytest.approx(result.numpy(), abs=1e-6)


@pytest.mark.parametrize("head", [None, 2])
def test_lines_are_as_thick_as_the_weights(head, capture, figures, tmp_path):
    path = capture.plot(tmp_path / "l.png", view="links", kind="cross", layer=1, head=head)
    check_picture(path)
    (own,) = capture[0].find("cross", layer=1)
    weights = own.weights.mean(0) if head is None else own.weights[head - 1]
    axes = figures[0].axes[0]
    (lines,) = [artist for artist in axes.collections if isinstance(artist, LineCollection)]
    heights = {0.0: [], 2.4: []}  # of the words of both sides
    for text in axes.texts:
        x, y = text.get_position()
        if x in heights and y >= 0:
            heights[x].append(y)
    widths = np.zeros(weights.shape)
    for (start, end), width in zip(lines.get_segments(), lines.get_linewidths(), strict=True):
        widths[heights[0.0].index(start[1]), heights[2.4].index(end[1])] = width
    assert widths == pytest.approx(np.where(weights < 0.004, 0, 7 * weights), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("cross", ["output", "source"]),
        ("decoder self", ["output", "decoder input"]),
        ("encoder self", ["queries", "keys"]),
    ],
)
def test_links_have_the_names_of_both_sides(kind, names, capture, figures, tmp_path):
    capture.plot(tmp_path / "l.svg", view="links", kind=kind)
    assert [t.get_text() for t in figures[0].axes[0].texts if t.get_position()[1] == -0.8] == names


def test_recurrent_reads_have_a_walk_but_no_heads(capture, tmp_path):
    with pytest.raises(UserError, match=r"query must be between 1 and \d, got 99"):
        capture.plot(tmp_path / "x.png", view="walk", query=99)
    recurrent = capture_sources(model_of(CORES["recurrent"]), SOURCES[:1], vectors=True)
    with pytest.raises(UserError, match="view 'multihead' requires a read of MultiHead"):
        recurrent.plot(tmp_path / "x.png", view="multihead")
    check_picture(recurrent.plot(tmp_path / "x.png", view="walk"))
    check_picture(recurrent.plot(tmp_path / "y.png", view="walk", query=1))


def test_rows_of_self_attention_of_a_decoder_are_named_by_its_input(capture, figures, tmp_path):
    own = capture[0].find("decoder self", layer=1)[0]
    inputs = list(capture[0].keys(own).labels)
    assert inputs != list(capture[0].queries(own).labels)
    capture.plot(tmp_path / "walk.png", view="walk", kind="decoder self", layer=1, head=1)
    rows = [[label.get_text() for label in axes.get_yticklabels()] for axes in figures[0].axes]
    assert [labels for labels in rows if any(labels)] == [inputs] * 7  # X, Q, K, V, S, A and Z


def test_contributions_to_many_items_are_wrapped_with_one_scale_and_all_labels(tmp_path):
    items = tuple(f"word{number}" for number in range(40))
    terms = torch.linspace(-1, 1, 40).reshape(1, 1, 40)
    sample = Sample(title="text", axes={"source": Axis(labels=items, kind="token")})
    maps = contribution_maps(
        sample, ["head 1"], terms, torch.zeros(1), names=["yes"], quantity="log-odds"
    )
    path = capture_of(maps).plot(tmp_path / "x.svg", view="contributions")
    words = re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))
    assert {*items, "(bias)", "color scale", "-1", "+1"} <= set(words)
    about = "contributions of the states of the encoder to the score yes, with the sum +0.000"
    assert about in words
    assert {"1 to 16 of 41", "17 to 32 of 41", "33 to 41 of 41"} <= set(words)


def test_contributions_to_different_tokens_are_not_summed(tmp_path):
    sample, terms, bias = Sample(title="text"), torch.ones(1, 2), torch.zeros(2)
    maps = decoder_contribution_map(sample, ["embedding"], terms, bias, tokens=("a", "b"))
    path = capture_of(maps).plot(tmp_path / "x.svg", view="contributions")
    text = path.read_text(encoding="utf-8")
    assert "contributions to the logit of each output token" in text
    assert "the sum" not in text
