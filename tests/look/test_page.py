"""Pages contain all numbers of their captures, and no code from labels."""

import builtins
import json

import numpy as np
import pytest
import torch

from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.page import page, reduce
from regard.look.sample import Axis
from tests.look.maps import capture_of, map_of, picture_of_each_kind, sample_maps_of
from tests.look.pages import chunk, numbers, page_of
from tests.look.toys import SOURCES, capture_sources, small


def text_of(capture) -> str:
    return page.text([(capture.title, capture.model, capture.samples)])


def capture_weights(weights: torch.Tensor, **pictures) -> Capture:
    axes = {"q": Axis.from_count(weights.shape[1]), "k": Axis.from_count(weights.shape[2])}
    own = map_of(weights, "other", "q", "k")
    return capture_of(sample_maps_of("sample", axes, own, **pictures))


def test_every_number_of_a_search_is_in_the_page(tmp_path):
    capture = capture_sources(small(), SOURCES, beam=3, n_best=2)
    content, chunks = page_of(capture.save(tmp_path / "a.html"))
    assert (content["format"], content["version"], content["note"]) == ("regard page", 4, "")
    (shown,) = content["captures"]
    for sample_maps, sample in zip(capture, shown["samples"], strict=True):
        assert sample["title"] == sample_maps.sample.title
        assert sample["axes"].keys() == sample_maps.sample.axes.keys()
        for name, axis in sample_maps.sample.axes.items():
            assert sample["axes"][name]["labels"] == list(axis.labels)
        tokens = [step.token for step in sample_maps.sample.steps]
        assert [step["token"] for step in sample["steps"]] == tokens
        reads = [read for read in sample["reads"] if read["measure"] == "weight"]
        for own, read in zip(sample_maps.maps, reads, strict=True):
            weights = own.weights.numpy()
            assert np.array_equal(numbers(chunks, read["weights"], weights.shape), weights)
            assert (read["name"], read["kind"], read["layer"]) == (own.name, own.kind, own.layer)
    # Outputs of one input share maps.
    assert len(chunks) < sum(len(sample["reads"]) for sample in shown["samples"])


def test_labels_cannot_leave_their_script(tmp_path):
    label = "</script><script>alert(1)</script><!--"
    capture = capture_weights(torch.eye(3)[None])
    capture.samples[0].sample.title = label
    text = capture.save(tmp_path / "a.html").read_text()
    assert label not in text
    assert text.count("alert(1)") == 1
    content, _ = page_of(text)
    assert content["captures"][0]["samples"][0]["title"] == label


def test_the_page_needs_no_network():
    text = text_of(capture_weights(torch.eye(3)[None]))
    assert "Content-Security-Policy" in text
    assert "default-src 'none'" in text
    assert not [
        word
        for word in ("http://", "https://", 'src="//')
        if word in text.replace("http://www.w3.org/", "")
    ]


def test_two_captures_are_side_by_side_in_one_page(tmp_path):
    first, second = (capture_sources(small(seed), SOURCES[:1]) for seed in (0, 1))
    content, chunks = page_of(first.save(tmp_path / "a.html", compare=second))
    for capture, shown in zip((first, second), content["captures"], strict=True):
        read = shown["samples"][0]["reads"][0]
        weights = capture[0].maps[0].weights.numpy()
        assert np.array_equal(numbers(chunks, read["weights"], weights.shape), weights)


def test_pictures_are_in_the_page(tmp_path):
    capture = capture_weights(torch.eye(3)[None], **picture_of_each_kind())
    content, _ = page_of(capture.save(tmp_path / "a.html"))
    pictures = content["captures"][0]["samples"][0]["pictures"]
    box = {"label": "a", "score": 0.5, "place": [0, 0.25, 0.5, 0.5], "query": 2}
    assert pictures["image"]["boxes"] == [box]
    assert (pictures["image"]["width"], pictures["image"]["height"]) == (4, 2)
    assert pictures["sound"]["seconds"] == 1.5
    track = {"label": "p", "history": [[0, 1.5]], "future": [[2, 3]]}
    assert pictures["plane"]["tracks"] == [track]
    for name in ("image", "sound"):
        assert pictures[name]["url"].startswith("data:image/png;base64,")


def test_a_large_map_keeps_the_largest_of_each_query_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(reduce, "BUDGET", 100_000)
    weights = torch.randn(2, 300, 200).softmax(-1)
    content, chunks = page_of(capture_weights(weights).save(tmp_path / "a.html"))
    stored = content["captures"][0]["samples"][0]["reads"][0]["weights"]
    assert stored["form"] == "top"
    count = stored["count"]
    assert f"only the {count} largest weights of each query" in content["note"]
    for head, name in enumerate(stored["heads"]):
        packed = chunk(chunks, name)
        values = np.frombuffer(packed[: 300 * count * 4], np.float32).reshape(300, count)
        keys = np.frombuffer(packed[300 * count * 4 :], np.uint16).reshape(300, count)
        expected = weights[head].topk(count)
        assert np.array_equal(values, expected.values.numpy())
        assert np.array_equal(
            weights[head].gather(1, torch.from_numpy(keys.astype(np.int64))).numpy(), values
        )
    overview = np.frombuffer(chunk(chunks, stored["overview"]["chunk"]), np.float16).reshape(
        2, 128, 128
    )
    assert np.allclose(overview.max((1, 2)), weights.amax((1, 2)), rtol=2**-10)


def test_too_large_page_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(reduce, "BUDGET", 1000)
    with pytest.raises(UserError, match="too many for one page: record fewer inputs"):
        capture_weights(torch.rand(2, 300, 200)).save(tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


def test_capture_without_reads_is_refused(tmp_path):
    with pytest.raises(UserError, match="the captures contain no reads"):
        capture_of(sample_maps_of("nothing", {})).save(tmp_path / "a.html")


def test_samples_beyond_the_limit_are_counted(monkeypatch):
    monkeypatch.setattr(page, "MAX_SAMPLES", 2)
    content, _ = page_of(text_of(capture_sources(small(), SOURCES)))
    assert len(content["captures"][0]["samples"]) == 2
    assert content["note"] == "2 more samples are not shown."


def test_nan_is_refused_in_json():
    capture = capture_weights(torch.full((1, 2, 2), float("nan")))
    content, chunks = page_of(text_of(capture))  # chunks may contain NaN
    read = content["captures"][0]["samples"][0]["reads"][0]
    assert np.isnan(numbers(chunks, read["weights"], (1, 2, 2))).all()
    assert read["summaries"]["entropy"] == [None]


def test_notebooks_show_the_page_in_a_sandboxed_frame(monkeypatch):
    frame = capture_weights(torch.eye(3)[None])._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert "<script" not in frame  # the page is escaped
    assert json.dumps("regard page")[1:-1] in frame


def test_figures_are_shown_in_a_notebook():
    figure = capture_weights(torch.eye(3)[None]).plot()
    assert figure._repr_svg_().lstrip().startswith("<?xml")
    assert "<svg" in figure.svg


@pytest.mark.parametrize("name", ["look.html", "look.safetensors", "look.svg"])
def test_a_cell_can_be_run_again_but_files_of_others_are_not_replaced(name, tmp_path, monkeypatch):
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    capture, path = capture_weights(torch.eye(3)[None]), tmp_path / name
    for _ in range(2):
        assert capture.save(path) == path
    path.write_text("mine")
    with pytest.raises(UserError, match=r"already exists: .* overwrite=True"):
        capture.save(path)
    assert path.read_text() == "mine"
    capture.save(path, overwrite=True)
    capture.save(path)
