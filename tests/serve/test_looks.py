"""The attention of what was served: rows are those of a recording, and pages are kept in bounds."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from regard.recipes.base.recipe import Example
from regard.recipes.base.trained import TrainedRun
from regard.serve import looks
from regard.serve.looks import Looks, page_text
from tests.recipes.tiny import quick_options
from tests.recipes.untrained import untrained

TEXT = "5 May 2019"
OPTIONS = {"language": ("--sample.length", "3")}
"""Options by recipe, besides those of a quick run: a text and its continuation fit the context."""


@pytest.fixture(scope="module")
def dates(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return load("dates", tmp_path_factory.mktemp("dates"))


def load(name: str, folder: Path) -> TrainedRun:
    recipe, model = untrained(name, folder, *quick_options(name), *OPTIONS.get(name, ()))
    return TrainedRun(recipe, model, folder)


def answer_inputs(trained: TrainedRun, inputs: Sequence[Any]) -> list[Example]:
    """Return inputs with their outputs."""
    examples = trained.prepare(inputs, trained.recipe)
    trained.compute(examples, trained.recipe)
    return examples


def compute(store: Looks, trained: TrainedRun, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the look of inputs."""
    return store.compute(trained, answer_inputs(trained, inputs), trained.recipe)


def id_of(look: dict[str, Any]) -> str:
    return look["page"].removeprefix("/v1/looks/")


@pytest.mark.parametrize(
    ("name", "inputs", "kinds"),
    [
        ("dates", [TEXT, "1.2.2003"], {"encoder self", "decoder self", "cross", "other"}),
        ("language", ["a b c"], {"decoder self", "other"}),
        ("images", [np.eye(8, dtype=np.uint8) * 255], {"encoder self", "pooling", "other"}),
    ],
)
def test_rows_are_the_weights_of_a_recording(
    name: str, inputs: list[Any], kinds: set[str], tmp_path: Path
) -> None:
    trained = load(name, tmp_path)
    look = msgspec.json.decode(msgspec.json.encode(compute(Looks(), trained, inputs)))
    capture = trained.look_again(answer_inputs(trained, inputs), trained.recipe)
    maps = [(number, own) for number, sample in enumerate(capture, 1) for own in sample.maps]
    is_masked = False
    for row, (number, own) in zip(look["rows"], maps, strict=True):
        sample = capture[number - 1]
        assert (row["sample"], row["title"]) == (number, sample.sample.title)
        assert (row["name"], row["kind"], row["layer"]) == (own.name, own.kind, own.layer)
        assert row["heads"] == [*own.heads]
        assert row["queries"] == [*sample.queries(own).labels]
        assert row["keys"] == [*sample.keys(own).labels]
        found = torch.tensor(row["weights"])
        torch.testing.assert_close(found, own.weights, rtol=6e-4, atol=1e-20)
        # A pair that is masked is told from a small weight.
        assert torch.equal(found.signbit(), own.weights.signbit())
        is_masked |= own.kind == "decoder self" and bool((found == 0).any())
    assert {row["kind"] for row in look["rows"]} == kinds
    assert is_masked == (name == "language")
    assert look["note"] == ""


def test_rows_name_their_inputs(dates: TrainedRun) -> None:
    recipe = dates.recipe.change({"beam": 2, "n_best": 2})
    inputs: list[Any] = [TEXT, 3, "1.2.2003", ""]
    prepared = dates.prepare(inputs, recipe, is_skipping=True)
    examples = [one for one in prepared if isinstance(one, Example)]
    dates.compute(examples, recipe)
    rows = Looks().compute(dates, examples, recipe)["rows"]
    found = {row["sample"]: row["input"] for row in rows}
    assert found == {1: 1, 2: 1, 3: 3, 4: 3}
    assert {row["input"] for row in rows if row["title"].startswith(TEXT)} == {1}


def test_numbers_have_four_significant_digits() -> None:
    numbers = np.array([0.123456, -0.0, 0.0, 0.99999, 1.234567e-9, -12345.6, 3e-30, np.nan])
    expected = "[0.1235, -0.0, 0.0, 1.0, 1.235e-09, -12346.0, 0.0, nan]"
    assert str(looks._round(numbers).tolist()) == expected


def test_page_is_that_of_the_look_and_names_no_folder(dates: TrainedRun) -> None:
    store = Looks()
    look = compute(store, dates, [TEXT])
    page = store.page(id_of(look))
    assert page is not None
    assert TEXT in page
    assert str(dates.folder) not in page
    assert page.startswith("<!doctype html>")
    assert len(id_of(look)) >= 40
    assert store.page("") is store.page(id_of(look)[:-1]) is None
    assert compute(store, dates, [TEXT])["page"] != look["page"]


def test_pages_are_bounded_by_age(dates: TrainedRun) -> None:
    now = 0.0
    store = Looks(max_seconds=10, clock=lambda: now)
    first = id_of(compute(store, dates, [TEXT]))
    now = 6.0
    second = id_of(compute(store, dates, [TEXT]))
    now = 10.0
    assert store.page(first) is not None
    now = 10.5
    assert store.page(first) is None
    assert store.page(second) is not None
    now = 17.0
    assert store.page(second) is None
    assert store._size == 0
    assert not store._pages


def test_pages_are_bounded_by_bytes(dates: TrainedRun) -> None:
    one = Looks()
    compute(one, dates, [TEXT])
    store = Looks(max_bytes=3 * one._size + 100)
    ids = [id_of(compute(store, dates, [TEXT])) for _ in range(5)]
    assert [store.page(id) is not None for id in ids] == [False, False, True, True, True]
    assert store._size == sum(len(scripts) for _, scripts in store._pages.values())
    small = Looks(max_bytes=one._size - 1)
    assert compute(small, dates, [TEXT]) == {
        "page": None,
        "rows": None,
        "note": "the page is too large: ask for less",
    }
    assert small._size == 0


def test_many_numbers_are_on_the_page_alone(
    dates: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = compute(Looks(), dates, [TEXT])
    count = sum(np.size(row["weights"]) for row in full["rows"])
    monkeypatch.setattr(looks, "MAX_NUMBERS", count)
    assert compute(Looks(), dates, [TEXT])["rows"] == full["rows"]
    monkeypatch.setattr(looks, "MAX_NUMBERS", count - 1)
    store = Looks()
    look = compute(store, dates, [TEXT])
    assert look["rows"] is None
    assert look["note"].startswith(f"{count:,} weights are more than {count - 1:,}")
    assert store.page(id_of(look)) is not None


def test_what_has_no_attention_is_said(tmp_path: Path) -> None:
    look = compute(Looks(), load("rebuild", tmp_path), [np.zeros((8, 8, 3), np.uint8)])
    assert look["page"] is look["rows"] is None
    assert "no attention" in look["note"]


def test_threads_share_the_store(dates: TrainedRun) -> None:
    """Threads that store and discard at once leave the sum of what is stored."""
    store = Looks(max_bytes=5_000)

    def keep() -> None:
        for number in range(500):
            store.page(store._keep(b"x" * (number % 97)))

    threads = [threading.Thread(target=keep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sizes = [len(scripts) for _, scripts in store._pages.values()]
    assert store._size == sum(sizes) <= 5_000
    assert len(sizes) > 50


def test_page_of_the_service_connects_to_its_own_host_alone() -> None:
    text = page_text()
    (policy,) = [line for line in text.splitlines() if "default-src" in line]
    assert "default-src 'none'; connect-src 'self'; img-src" in policy
    assert '<script type="application/json" id="serve">' in text
