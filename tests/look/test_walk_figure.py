"""Walk, multihead and links figures: numbers equal formulas of the model's weights."""

import re

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.figures.canvas import signed_colors
from regard.look.figures.matrix import number_text
from regard.look.measures import contribution_maps, decoder_contribution_map
from regard.look.sample import Axis, Image, Sample, format_score
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from tests.look.maps import capture_of
from tests.look.pictures import check_picture, texts_of
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


@pytest.mark.parametrize("head", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_walk_draws_every_step_of_a_head(head, model, capture, figures, tmp_path):
    capture.plot(tmp_path / "w.svg", view="walk", kind="encoder self", head=head)
    drawn, expected = matrices_of(figures[0]), encoder_formulas(model, head - 1)
    titles = ["X", "Q = X W_Q + b", "K = X W_K + b", "V = X W_V + b"]
    titles += ["S = Q K^T / sqrt(3)", "A = softmax(S)", "Z = A V"]
    assert list(drawn) == titles
    for title, name in zip(titles, "XQKVSAZ", strict=True):
        assert drawn[title] == pytest.approx(expected[name].numpy(), abs=1e-6), name
    tops = [round(axes.get_position().y1, 6) for axes in figures[0].axes]
    assert tops == [tops[0]] + [tops[1]] * 3 + [tops[4]] * 3  # X; Q, K, V; S, A, Z


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
    """By default of the encoder; the matrices of each head are below those of the first."""
    capture.plot(tmp_path / "m.svg", view="multihead")
    heads = [encoder_formulas(model, head) for head in (0, 1)]
    letters = ["W_Q", "W_K", "W_V", "Q", "K", "V", "A", "Z"]
    texts, axes = [text.get_text() for text in figures[0].texts], figures[0].axes
    drawn = [panel.get_images()[0].get_array().filled(np.nan) for panel in axes]
    assert [text for text in texts if text in letters] == letters
    for number, head in enumerate(heads):
        row = slice(1 + 8 * number, 9 + 8 * number)
        for letter, array in zip(letters, drawn[row], strict=True):
            assert array == pytest.approx(head[letter].numpy(), abs=1e-6), letter
        assert axes[row][0].get_ylabel() == f"head {number + 1}"
        lefts = [panel.get_position().x0 for panel in axes[row]]
        assert lefts == pytest.approx([panel.get_position().x0 for panel in axes[1:9]])
        for panel, first in zip(axes[row], axes[1:9], strict=True):
            assert panel.get_images()[0].get_clim() == first.get_images()[0].get_clim()
    joined = torch.cat([head["Z"] for head in heads], -1)
    output = model.core.encoder[0].attention.output
    result = joined @ output.weight.detach().T + output.bias.detach()
    ends = {
        "[Z_1, ..., Z_2]": joined,
        "W_O": output.weight.detach().T,
        "[Z_1, ..., Z_2] W_O + b": result,
    }
    assert set(ends) <= set(texts)
    for array, numbers in zip(drawn[-3:], ends.values(), strict=True):
        assert array == pytest.approx(numbers.numpy(), abs=1e-6)


@pytest.mark.parametrize(
    ("width", "heads"), [(64, 8), (8, 8), pytest.param(64, 4, marks=pytest.mark.slow)]
)
def test_heads_fit_a_page_and_their_columns_hold(width, heads, figures, tmp_path):
    core = TransformerConfig(layers=1, width=width, heads=heads, feedforward=5)
    capture = capture_sources(model_of(core), SOURCES[1:2], vectors=True)
    capture.plot(tmp_path / "m.png", view="multihead")
    across, down = figures[0].get_size_inches() * 2.54
    assert across < 25
    assert down < 29.7
    panels = figures[0].axes[1 : 1 + 8 * heads]
    for number, panel in enumerate(panels):
        assert panel.get_position().x0 == pytest.approx(panels[number % 8].get_position().x0)
    vectors = capture[0].maps[0].vectors()  # of matrices of weights, the first cells and the last
    weights = {panels[0]: vectors.projection("query", 0)[0].T}
    weights[figures[0].axes[-2]] = vectors.projections["output"].T
    for panel, numbers in weights.items():
        drawn = panel.get_images()[0].get_array().filled(np.nan)
        assert drawn == pytest.approx(shown(numbers.numpy(), (8, 8)), nan_ok=True)


def shown(numbers: np.ndarray, most: tuple[int, int]) -> np.ndarray:
    """Return the drawn rows and columns of numbers, with NaN for an ellipsis."""
    for axis, limit in enumerate(most):
        if numbers.shape[axis] > limit:
            first, last = np.split(numbers, [limit - 2], axis)
            last = last.take([-1], axis)
            numbers = np.concatenate((first, np.full_like(last, np.nan), last), axis)
    return numbers


@pytest.mark.parametrize(
    ("attention", "query"),
    [
        *(("additive", None), ("additive", 2), ("concat", 2), ("general", None), ("dot", 2)),
        pytest.param("concat", None, marks=pytest.mark.slow),
        pytest.param("general", 2, marks=pytest.mark.slow),
        pytest.param("dot", None, marks=pytest.mark.slow),
    ],
)
def test_walk_of_a_recurrent_decoder_has_the_formula_of_its_score(
    attention, query, figures, tmp_path
):
    core = RecurrentConfig(width=6, hidden=10, encoder_hidden=10, attention=attention)
    capture = capture_sources(model_of(core), SOURCES[1:2], vectors=True)
    path = capture.plot(tmp_path / "w.svg", view="walk", query=query)
    vectors = capture[0].maps[0].vectors()
    parts = {name: part.numpy() for name, part in vectors.projections.items()}
    s, h = vectors.queries[0].numpy(), vectors.keys[0].numpy()
    if attention != "dot":
        s, h = vectors.items.numpy(), vectors.source.numpy()
    j, states, mapped = "j" if query is None else query, {f"s_{query or 'j'}": s}, {"h_i": h}
    q, k, formula = s, h, f"h_i . s_{j}"
    if attention != "dot":
        q, k = s @ parts["query"].T, h @ parts["key"].T
        states[f"W_q s_{j}"], mapped["W_k h_i"] = q, k
        formula = f"(W_k h_i) . (W_q s_{j})"
    scores = q @ k.T
    if "v" in parts:
        formula = f"v . tanh(W_k h_i + W_q s_{j})"
        hidden = np.tanh(q[:, None] + k)
        scores = hidden @ parts["v"]
        if query is not None:
            mapped[f"tanh(W_k h_i + W_q s_{j})"] = hidden[query - 1]
    alpha = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    titles = {"query": "W_q", "key": "W_k", "v": "v"}
    below = {titles[name]: shown(np.atleast_2d(part), (5, 8)) for name, part in parts.items()}
    if query is None:
        above = {title: shown(array, (24, 8)) for title, array in (states | mapped).items()}
        below |= {f"a_ij = {formula}": scores, "alpha_ij = softmax_i(a_ij)": alpha}
        below["c_j = sum_i alpha_ij h_i"] = shown(alpha @ h, (24, 8))
    else:
        row = slice(query - 1, query)
        above = {title: shown(array[row], (24, 8)) for title, array in states.items()}
        one = alpha[row].T
        mapped |= {f"a_i{j}": scores[row].T, f"alpha_i{j}": one, f"alpha_i{j} h_i": one * h}
        below |= {title: shown(array, (24, 5)) for title, array in mapped.items()}
        below[f"c_{j} = sum_i alpha_i{j} h_i"] = shown((alpha @ h)[row], (24, 8))
        texts = texts_of(path)
        assert f"a_i{j} = {formula},   alpha_i{j} = softmax_i(a_i{j})" in texts
    drawn = matrices_of(figures[0])
    assert drawn.keys() == (above | below).keys()
    for title, array in (above | below).items():
        assert drawn[title] == pytest.approx(array, abs=1e-6, nan_ok=True), title
    is_concat = any(f"v . tanh(W [s_{j}; h_i])" in text for text in texts_of(path))
    assert is_concat == (attention == "concat")


def test_wide_vectors_are_drawn_with_numbers_and_an_ellipsis(figures, tmp_path):
    core = TransformerConfig(layers=1, width=128, heads=4, feedforward=5)
    capture = capture_sources(model_of(core), SOURCES[1:2], vectors=True)
    path = capture.plot(tmp_path / "w.svg", view="walk", kind="cross", head=2)
    vectors, drawn = capture[0].find("cross")[-1].vectors(), matrices_of(figures[0])
    assert figures[0].get_size_inches()[0] * 2.54 < 25
    assert drawn["X'"] == pytest.approx(shown(vectors.items.numpy(), (24, 8)), nan_ok=True)
    expected = shown(vectors.queries[1].numpy(), (24, 8))
    assert drawn["Q = X' W_Q + b"] == pytest.approx(expected, nan_ok=True)
    texts = texts_of(path)
    assert f"{len(vectors.items)} x 128, columns 1 to 6 and 128" in texts
    assert "..." in texts
    for number in expected[0][[0, 1, 2, 3, 4, 5, 7]]:
        assert number_text(number) in texts


def test_a_query_of_cross_attention_is_x_prime(capture, figures, tmp_path):
    path = capture.plot(tmp_path / "w.svg", view="walk", kind="cross", query=2)
    titles = list(matrices_of(figures[0]))
    assert titles[:2] == ["x'_2", "q_2 = x'_2 W_Q + b"]
    assert "s_2 = q_2 K^T / sqrt(3),   a_2 = softmax(s_2)" in texts_of(path)


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
    with pytest.raises(UserError, match="of MultiHead, this sample has reads of kind recurrent"):
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


def test_contributions_to_many_items_are_wrapped_below_the_text_in_colors(figures, tmp_path):
    items = ("\u2581word", *(f"word{number}" for number in range(1, 40)))
    terms = torch.linspace(-1, 1, 40).reshape(1, 1, 40)
    sample = Sample(title="text -> yes (0.90)", axes={"source": Axis(labels=items, kind="token")})
    maps = contribution_maps(
        sample, ["head 1"], terms, torch.full((1,), 2.0), names=["yes"], quantity="log-odds"
    )
    path = capture_of(maps).plot(tmp_path / "x.svg", view="contributions")
    words = re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))
    assert {*items, "(bias)", "yes (0.90)"} <= set(words)
    scores = "+0.000 of the states of the encoder, +2.000 of the bias, the sum +2.000"
    assert f"contributions to the score yes: {scores}" in words
    assert "blue: for the score, orange: against it; the last colors: 1 and more" in words
    assert not any(" of 41" in word or " x " in word for word in words)
    # The text comes first, each word on the color of its number; below the answer.
    text = figures[0].texts[-40:]
    assert [word.get_text() for word in text] == ["word", *items[1:]]
    assert min(word.get_position()[1] for word in text) >= 1 > figures[0].texts[0].get_position()[1]
    colors = [word.get_bbox_patch().get_facecolor() for word in text]
    assert colors[0] == signed_colors()(0.0)
    assert colors[-1] == signed_colors()(1.0)


def test_contributions_to_an_image_are_over_it(figures, tmp_path):
    """Half of the places are clear, so that the image is in sight where all numbers are alike."""
    source = Axis.grid(2, 2, picture="image")
    image = Image(pixels=np.zeros((8, 8, 3), np.uint8))
    sample = Sample(title="1.png -> yes", axes={"source": source}, pictures={"image": image})
    terms = torch.tensor([[[0.05, 0.051, -0.052, 0.053]]])
    maps = contribution_maps(
        sample, ["head 1"], terms, torch.ones(1), names=["yes"], quantity="log-odds"
    )
    words = texts_of(capture_of(maps).plot(tmp_path / "x.svg", view="contributions"))
    assert {"1.png -> yes", "all parts (\u00b10.051 to \u00b10.053)"} <= set(words)
    picture, *panels, _ = figures[0].axes
    assert not picture.collections
    for panel in panels:
        colors = panel.collections[0].get_facecolor()
        assert colors[:, 3] == pytest.approx([0, 0, 0.375, 0.75], abs=0.03)
        assert colors[2][:3] == pytest.approx(to_rgb("#d55e00"), abs=1e-3)
        assert colors[3][:3] == pytest.approx(to_rgb("#0c56a5"), abs=1e-3)


def test_contributions_to_different_tokens_are_not_summed(tmp_path):
    sample, terms, bias = Sample(title="text"), torch.ones(1, 2), torch.zeros(2)
    maps = decoder_contribution_map(sample, ["embedding"], terms, bias, tokens=("a", "b"))
    path = capture_of(maps).plot(tmp_path / "x.svg", view="contributions")
    text = path.read_text(encoding="utf-8")
    assert "contributions to the logit of each output token" in text
    assert "the sum" not in text
