"""Texts with labels: their forms, their numbers, their batches, and what is wrong with them."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from regard.data.batches import Ragged
from regard.data.config import LabeledConfig, OnBad
from regard.data.labeled import LabeledBatches, Labels, read_labeled
from regard.data.made_reviews import made_reviews
from regard.data.pairs import Pairs
from regard.errors import UserError


def written(path: Path, rows: list[tuple[str, object]]) -> Path:
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_jsonl_takes_labels_that_are_texts_or_whole_numbers(tmp_path):
    path = written(tmp_path / "a.jsonl", [("good", 1), ("bad", 0), ("so so", "2")])
    pairs = read_labeled(LabeledConfig(), path, "train")
    assert list(pairs) == [("good", "1"), ("bad", "0"), ("so so", "2")]


def test_tsv_and_columns_by_name(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("kind\tsaid\nup\tfine\ndown\tawful\n", encoding="utf-8")
    config = LabeledConfig(text_column="said", label_column="kind")
    assert list(read_labeled(config, path, "train")) == [("fine", "up"), ("awful", "down")]


@pytest.mark.parametrize(
    ("label", "message"), [(True, "must hold a text"), (1.5, "must hold a text"), (None, "must hold a text")]
)
def test_other_labels_are_refused_with_their_line(tmp_path, label, message):
    path = written(tmp_path / "a.jsonl", [("good", 1), ("bad", label)])
    with pytest.raises(UserError, match=rf"a.jsonl, line 2: .*{message}"):
        read_labeled(LabeledConfig(), path, "train")


def test_labels_are_numbered_by_size_or_by_letter(tmp_path):
    assert Labels.of(["10", "9", "b", "a", "9"]).names == ("9", "10", "a", "b")
    for names in itertools.permutations(["nan", "10", "9", "NaN", "-inf", "b"]):  # nan compares with no number
        assert Labels.of(names).names == ("-inf", "9", "10", "NaN", "b", "nan")
    labels = Labels.of(["x", "y"])
    labels.save(tmp_path / "labels.json")
    assert Labels.load(tmp_path / "labels.json") == labels
    with pytest.raises(UserError, match=r"two labels at least.*'x'"):
        Labels.of(["x", "x"])
    with pytest.raises(UserError, match=r"a.tsv: there must be two labels"):
        Labels.of(["x" * 1000] * 2, origin="a.tsv")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1, "names": [1]}', '{"version": 2, "names": ["a"]}'])
def test_damaged_labels_are_named(tmp_path, content):
    (tmp_path / "labels.json").write_text(content)
    with pytest.raises(UserError, match=r"labels.json: damaged"):
        Labels.load(tmp_path / "labels.json")


def test_unknown_label_is_named_with_its_line_or_left_out():
    pairs = Pairs(["one", "two"], ["a", "c"], [1, 2], "t.tsv")

    def numbers(names: str, on_bad: OnBad) -> tuple[list[int], list[int]]:
        place = {"where": pairs.where, "origin": pairs.origin}
        return Labels(tuple(names)).numbers(pairs.targets, on_bad, **place, what=("label", "text"))

    with pytest.raises(UserError, match=r"t.tsv, line 2: label 'c' is none of those of the training texts: a, b"):
        numbers("ab", "error")
    assert numbers("ab", "skip") == ([0], [0])
    with pytest.raises(UserError, match="no text has a label of the training texts"):
        numbers("xy", "skip")


def test_batches_hold_every_row_once_with_its_label_and_repeat():
    texts = Ragged.of([[5] * length for length in (1, 4, 2, 3, 1, 7)])
    labels = [0, 1, 2, 3, 4, 5]

    def change(ids: np.ndarray, epoch: int, index: int) -> np.ndarray:
        return np.full_like(ids, 10 * epoch + index)

    batches = LabeledBatches(texts, labels, batch_tokens=8, seed=3, change=change)
    rows = [row for rows in batches.plan(1) for row in rows]
    assert sorted(rows) == labels
    for planned in batches.plan(1):
        batch = batches.collate(1, planned)
        assert batch.target.tolist() == list(planned)
        assert batch.source.items[:, 0].tolist() == [10 + row for row in planned]
        assert batch.source.lengths.tolist() == [len(texts[row]) for row in planned]
    assert batches.plan(1) == LabeledBatches(texts, labels, batch_tokens=8, seed=3).plan(1)


def test_made_reviews_are_the_same_for_the_same_seed_and_share_no_text_between_splits():
    splits = {name: made_reviews(name, 1) for name in ("train", "val", "test")}
    assert splits["val"].sources == made_reviews("val", 1).sources
    texts = {name: set(pairs.sources) for name, pairs in splits.items()}
    assert not texts["train"] & texts["val"]
    assert not texts["train"] & texts["test"]
    assert not texts["val"] & texts["test"]
    counts = [pairs.targets.count("positive") / len(pairs) for pairs in splits.values()]
    assert all(0.4 < share < 0.6 for share in counts)


def test_made_review_turned_around_has_the_other_label():
    pairs = made_reviews("train", 2)
    known = dict(pairs)
    plain = next(text for text in known if text.endswith("was dull"))
    assert known[plain] == "negative"
    turned = [label for text, label in pairs if text.endswith("was not dull") and text.count("was") == 1]
    assert turned
    assert set(turned) == {"positive"}
