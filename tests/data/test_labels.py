"""Labeled texts: formats, class indices, batches and error messages."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch

from regard.data.batches import Ragged
from regard.data.config import LabeledConfig
from regard.data.embedded.reviews import make_reviews
from regard.data.text.labels import LabeledBatches, Labels, read_labeled
from regard.data.tokenizer import UNK
from regard.errors import UserError


def write_jsonl(path: Path, rows: list[tuple[str, object]]) -> Path:
    lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_jsonl_takes_labels_that_are_strings_or_integers(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [("good", 1), ("bad", 0), ("so so", "2")])
    pairs = read_labeled(LabeledConfig(), path, "train")
    assert list(pairs) == [("good", "1"), ("bad", "0"), ("so so", "2")]


def test_tsv_and_columns_by_name(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("kind\tsaid\nup\tfine\ne\u0301\tawful\n", encoding="utf-8")
    config = LabeledConfig(text_column="said", label_column=("kind",))
    # Labels are in form NFC.
    assert list(read_labeled(config, path, "train")) == [("fine", "up"), ("awful", "\u00e9")]


def test_several_columns_are_labels_or_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,up,far\na,1,0\nb,,TRUE\nc,0.0,\n", encoding="utf-8")
    config = LabeledConfig(label_column=("up", "far"), target="labels")
    targets = read_labeled(config, path, "train").targets
    assert [json.loads(target) for target in targets] == [["up"], ["far"], []]
    path.write_text("text,up,far\na,1,0\nb,2,0\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 3: expected 1, true, 0, .* got '2'"):
        read_labeled(config, path, "train")
    numbers = LabeledConfig(label_column=("up", "far"), target="number")
    assert read_labeled(numbers, path, "train").targets == ['["1", "0"]', '["2", "0"]']


def test_empty_lists_of_labels_are_targets(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [("one", ["x", "y"]), ("two", []), ("three", "")])
    config = LabeledConfig(target="labels")
    assert read_labeled(config, path, "train").targets == ['["x", "y"]', "[]", ""]
    with pytest.raises(UserError, match="line 3: the label is empty"):
        read_labeled(LabeledConfig(), path, "train")
    # What `predict --threshold` writes is no class.
    path = write_jsonl(tmp_path / "a.jsonl", [("one", "x"), ("two", "<reject>")])
    with pytest.raises(UserError, match="line 2: <reject> is an answer below a threshold"):
        read_labeled(LabeledConfig(), path, "train")


def test_labels_are_numbered_by_size_or_by_letter(tmp_path):
    assert Labels.from_names(["10", "9", "b", "a", "9"], origin="").names == ("9", "10", "a", "b")
    for names in itertools.permutations(["nan", "10", "9", "NaN", "-inf", "b"]):
        assert Labels.from_names(names, origin="").names == ("-inf", "9", "10", "NaN", "b", "nan")
    labels = Labels.from_names(["x", "y"], origin="")
    labels.save(tmp_path / "labels.json")
    assert Labels.load(tmp_path / "labels.json") == labels
    message = r"a.tsv: there must be at least 2 labels in the training data, got 'x'"
    with pytest.raises(UserError, match=message):
        Labels.from_names(["x", "x"], origin="a.tsv")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1, "names": [1]}'])
def test_damaged_labels_are_refused(tmp_path, content):
    (tmp_path / "labels.json").write_text(content)
    with pytest.raises(UserError, match=r"labels.json: damaged"):
        Labels.load(tmp_path / "labels.json")


def test_unknown_label_is_an_error():
    labels = Labels(("a", "b"))
    assert labels.index("b", ("label", "text")) == 1
    message = r"label 'c' does not occur in the training texts \(a, b\)"
    with pytest.raises(UserError, match=message):
        labels.index("c", ("label", "text"))


def test_batches_hold_every_row_once_with_its_label_and_repeat():
    texts = Ragged.from_sequences([[5] * length for length in (1, 4, 2, 3, 1, 7)])
    labels = [0, 1, 2, 3, 4, 5]
    batches = LabeledBatches(texts, labels, batch_tokens=8, seed=3)
    rows = [row for rows in batches.plan(1) for row in rows]
    assert sorted(rows) == labels
    for indices in batches.plan(1):
        batch = batches.collate(1, indices)
        assert batch.target.tolist() == list(indices)
        assert batch.source.lengths.tolist() == [len(texts[row]) for row in indices]
    assert batches.plan(1) == LabeledBatches(texts, labels, batch_tokens=8, seed=3).plan(1)


def test_word_dropout_replaces_a_share_of_tokens_others_in_each_epoch_and_row():
    texts = Ragged.from_sequences([[5] * 1000] * 2)
    batches = LabeledBatches(texts, [0, 1], batch_tokens=2000, seed=3, word_dropout=0.25)
    (first, second), (later, _) = (batches.collate(epoch, (0, 1)).source.items for epoch in (0, 1))
    assert set(first.tolist()) == {UNK, 5}
    assert 0.2 < (first == UNK).double().mean() < 0.3
    assert not torch.equal(first, second)
    assert not torch.equal(first, later)
    assert torch.equal(batches.collate(0, (1, 0)).source.items[1], first)  # whatever the batch


def test_synthetic_reviews_are_the_same_for_the_same_seed_and_share_no_text_between_splits():
    splits = {name: make_reviews(name, 1) for name in ("train", "val", "test")}
    assert splits["val"].sources == make_reviews("val", 1).sources
    texts = [set(pairs.sources) for pairs in splits.values()]
    assert len(set.union(*texts)) == sum(map(len, texts))
    counts = [pairs.targets.count("positive") / len(pairs) for pairs in splits.values()]
    assert all(0.4 < share < 0.6 for share in counts)


def test_negated_synthetic_review_has_the_other_label():
    pairs = make_reviews("train", 2)
    known = dict(pairs)
    plain = next(text for text in known if text.endswith("was dull"))
    assert known[plain] == "negative"
    negated = [text for text in known if re.fullmatch("the [a-z ]+ was not dull", text)]
    assert {known[text] for text in negated} == {"positive"}
