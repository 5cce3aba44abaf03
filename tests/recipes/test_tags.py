"""Token tagging: entities by hand, files and their errors, a run from columns to tags."""

import csv
import json
import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from regard.data.config import TaggedConfig, TokenizerConfig
from regard.data.embedded.tags import make_sentences
from regard.data.text.labels import Labels
from regard.data.text.tagged import (
    TaggedBatches,
    TaggedSentences,
    encode_words,
    read_tagged,
    read_words,
)
from regard.data.tokenizer import Ends, TrainedTokenizer
from regard.errors import UserError
from regard.look.sample import MarkedText
from regard.recipes.base.recipe import Example
from regard.recipes.base.run import ARTIFACTS
from regard.recipes.load import load
from regard.recipes.metrics.tags import find_scheme, get_entities, tag_scores
from regard.system.table_writer import open_table_atomically
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
)
from tests.recipes.commands import command, failure, printed, printed_json, report

SPANS = {(0, 2, "A"), (2, 3, "A"), (4, 7, "B")}
SCHEMES = {
    "IOB1": "I-A I-A B-A O I-B I-B I-B",
    "BIO": "B-A I-A B-A O B-B I-B I-B",
    "BIOES": "B-A E-A S-A O B-B I-B E-B",
    "BILOU": "B-A L-A U-A O B-B I-B L-B",
}


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_have_the_same_entities(name):
    tags = SCHEMES[name].split()
    assert get_entities(tags) == SPANS
    assert find_scheme(tags) == name.replace("IOB1", "BIO")


def test_tags_of_entities_are_recognized_by_their_form():
    assert find_scheme(["O", "I-A", "I-B"]) == "IO"
    assert find_scheme(["O", "B-A", "X"]) == "BIO"
    for tags in ([], ["O"], ["noun", "I-A"], ["I-", "O"], ["B", "I", "O"], ["NN", "S-V", "O"]):
        assert find_scheme(tags) == ""


def conlleval(tags: list[str]) -> set[tuple[int, int, str]]:
    """Return the chunks of conlleval.pl by its two tables, with L and U as E and S."""
    parts = [tag.translate(str.maketrans("LU", "ES")).partition("-") for tag in ["O", *tags, "O"]]
    chunks, begin = set(), 0
    for i, ((before, _, kind_before), (mark, _, kind)) in enumerate(pairwise(parts)):
        pair, is_other = before + mark, kind != kind_before
        ends = pair in {"BB", "BS", "BO", "IB", "IS", "IO"} or before in "ES"
        if ends or (before != "O" and is_other):
            chunks.add((begin, i, kind_before))
        begins = mark in "BS" or pair in {"EE", "EI", "SE", "SI", "OE", "OI"}
        if begins or (mark != "O" and is_other):
            begin = i
    return chunks


def test_entities_of_any_tags_are_those_of_conlleval():
    names = ["O", *(f"{mark}-{kind}" for mark in "BIESLU" for kind in "AB")]
    numbers = random.Random(1)
    for _ in range(2000):
        tags = numbers.choices(names, k=numbers.randrange(9))
        assert get_entities(tags) == conlleval(tags), tags


def test_scores_by_hand():
    references = [["B-A", "I-A", "O"], ["B-B"]]
    predictions = [["B-A", "O", "O"], ["B-B"]]
    scores = tag_scores(predictions, references, has_entities=True)
    assert scores["accuracy"] == 75
    assert scores["entity_f1"] == scores["entity_precision"] == scores["entity_recall"] == 50
    keys, classes = ("precision", "recall", "examples"), scores["classes"]
    assert [classes["A"][key] for key in keys] == [0, 0, 1]
    assert [classes["B"][key] for key in keys] == [100, 100, 1]
    assert tag_scores([["O", "O", "O"], ["O"]], references, has_entities=True)["entity_f1"] == 0
    assert set(tag_scores([["noun"]], [["verb"]], has_entities=False)) == {"accuracy", "classes"}


def test_sentences_without_entities_have_the_same_scores_as_others():
    found = tag_scores([["B-A"], ["O"]], [["O"], ["B-A"]], has_entities=True)
    nothing = tag_scores([["O"]], [["O"]], has_entities=True)
    assert nothing.keys() == found.keys()
    assert nothing["entity_f1"] == nothing["entity_precision"] == nothing["entity_recall"] == 0
    assert tag_scores([[]], [[]], has_entities=True) == nothing | {"accuracy": 0}


def test_first_subwords_have_the_tags_and_batches_hold_every_sentence():
    config = TokenizerConfig(kind="char")
    tokenizer = TrainedTokenizer.train(["ab c"], config)
    ids, first = encode_words(("ab", "c", "?"), tokenizer)
    assert first == [0, 2, 3]
    assert len(ids) == 4
    tokenizer.text_ends = Ends((2, 3), (2,))
    assert encode_words(("ab", "c", "?"), tokenizer) == ([2, 3, *ids, 2], [2, 4, 5])
    rows = [([5, 6, 7], [1, -1, 0]), ([5], [2]), ([6, 6], [0, 1])]
    batches = TaggedBatches(rows, batch_tokens=6, seed=1)
    assert sorted(i for indices in batches.plan(3) for i in indices) == [0, 1, 2]
    batch = batches.collate(0, (0, 1))
    assert batch.target.tolist() == [[1, -1, 0], [2, -1, -1]]
    assert batch.source.lengths.tolist() == [3, 1]


def test_synthetic_sentences_share_no_date_between_splits_and_are_reproducible():
    train, test = (make_sentences(split, 1) for split in ("train", "test"))
    assert make_sentences("test", 1) == test
    dates = [set(zip(sentences.tokens, sentences.tags, strict=True)) for sentences in (train, test)]
    assert not dates[0] & dates[1]
    kinds = {tag for tags in train.tags for tag in tags}
    assert {"O", "B-DAY", "B-MONTH", "B-YEAR", "B-WEEKDAY"} <= kinds


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run on names that follow `mister`, some after `van`."""
    folder, names = tmp_path_factory.mktemp("tags"), ["berg", "stone", "hill", "lake"]
    for split, number in (("train", 48), ("val", 8), ("test", 8)):
        lines = []
        for i in range(number):
            name = names[i % 4]
            sentence = [
                f"mister O\n{name} B-NAME\nsaw O\n",
                f"the O\n{name} O\nsaw O\n",
                f"mister O\nvan B-NAME\n{name} I-NAME\n",
            ]
            lines.append(sentence[i % 3] + "\n")
        (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8")
    files = " ".join(f"--data.{name} {folder / name}.txt" for name in ("train", "val", "test"))
    small = "--model.core.width 16 --model.core.layers 1 --model.core.heads 2 --model.dropout 0"
    limits = "--train.steps 80 --train.warmup 5 --train.lr 1e-2 --train.validate-every 40"
    limits += " --train.precision float32"
    more = "--model.core.feedforward 16 --train.batch-tokens 200 --train.tensorboard false"
    more += " --model.core.positions sinusoidal"
    command(f"train tags --run {folder}/run {files} {small} {limits} {more}")
    return folder


def test_names_are_recognized_by_the_word_before_them(run, capsys):
    test = report(run / "run")
    assert test["examples"] == 8
    assert test["entity_f1"] > 90
    trained = load(run / "run")
    with pytest.warns(UserWarning, match="input 3 is empty: it has no tokens to tag"):
        answers = trained.predict(["mister hill saw", ["the", "hill", "saw"], ""])
    assert answers == [["O", "B-NAME", "O"], ["O"] * 3, []]
    with pytest.warns(UserWarning, match="input 1: all of its subwords are unknown, so the answer"):
        trained.predict(["\u4e2d \u6587"])
    for bad in (None, [["the"]], ("the", None)):
        with pytest.raises(UserError, match="input 1 must be a text or a list of tokens, got"):
            trained.predict([bad])
    assert printed(capsys, "predict", run / "run", "mister van lake") == "O B-NAME I-NAME\n"
    message = failure(capsys, "predict", run / "run", "mister van lake", "--n-best", "2")
    assert "unknown option --n-best" in message


def test_look_shows_the_attention_of_each_subword(run):
    trained = load(run / "run")
    first, second = check_capture(trained, ["mister hill saw", ["the", "lake", "saw"]])
    (attention_map,) = first.find("encoder self")
    labels = ("\u2581mister", "\u2581hill (B-NAME)", "\u2581saw")
    assert first.queries(attention_map).labels == first.keys(attention_map).labels == labels
    assert first.sample.title == "mister hill saw -> hill (NAME)"
    assert second.sample.title == "the lake saw -> nothing"
    assert first.sample.marked.parts == (("mister ", ""), ("hill", "NAME"), (" saw", ""))
    assert second.sample.marked == MarkedText.from_spans("the lake saw", [], ["NAME"])
    assert check_test_input(trained) == ["mister", "berg", "saw"]
    for empty in (" ", []):
        with (
            pytest.warns(UserWarning, match="input 1 is empty"),
            pytest.raises(UserError, match="text 1 is empty"),
        ):
            trained.look([empty])


def test_gradients_are_those_of_the_predicted_tags(run):
    trained, inputs = load(run / "run"), ["mister hill saw", ["the", "lake", "saw"]]
    check_gradients(trained, inputs)
    for sentence in inputs:
        tokens = sentence.split() if isinstance(sentence, str) else sentence
        tags = tuple(trained.predict([sentence])[0])
        sentences = TaggedSentences((tuple(tokens),), (tags,), (1,), "these")
        _, likely = trained.recipe.predict_tags(trained.model, sentences)
        assert len(likely) == 3
        (log_prob,) = answer_log_probs(trained, [sentence])
        assert log_prob().item() == pytest.approx(sum(likely), abs=1e-5)


def test_tags_are_scored_and_refused(run, capsys, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("mister O\nhill B-NAME\n\nthe B-PLACE\n", encoding="utf-8")
    words = ("evaluate", run / "run", "--data.test", other)
    message = failure(capsys, *words)
    assert "other.txt, line 4: tag 'B-PLACE' does not occur in the training" in message
    assert printed_json(capsys, *words, "--data.on-bad", "skip")["examples"] == 1
    with pytest.raises(UserError, match=r"input 1 has 300 .*, more than 256"):
        load(run / "run").predict(["lake " * 300])


def test_entities_of_a_text_have_the_offsets_of_their_characters(run, capsys):
    text = "  mister \tvan  lake, (saw)"
    answer = printed_json(capsys, "predict", run / "run", text)
    tokens = ["mister", "van", "lake", ",", "(", "saw", ")"]
    assert answer["tokens"] == tokens
    assert [text[start:end] for start, end in answer["offsets"]] == tokens
    (entity,) = answer["entities"]
    expected = {"label": "NAME", "start_token": 1, "end_token": 3}
    assert entity == expected | {"start": 10, "end": 19, "text": "van  lake"}
    assert answer["source"][10:19] == "van  lake"
    (by_tokens,) = load(run / "run").answer([tokens])
    assert by_tokens["entities"] == [expected | {"start": 7, "end": 15, "text": "van lake"}]
    joined = " ".join(tokens)
    assert [joined[start:end] for start, end in by_tokens["offsets"]] == tokens
    with pytest.raises(UserError, match="not valid Unicode"):
        load(run / "run").predict(["a\ud83d"])


def test_a_column_of_texts_is_tagged_and_tables_of_spans_are_read_back(run, tmp_path, capsys):
    texts = ["mister  van lake, saw", "the lake", 'mister "hill"']
    rows = [{"id": f"n{i}", "text": text} for i, text in enumerate(texts)]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "in.jsonl").write_text("".join(lines), encoding="utf-8")
    answers = load(run / "run").answer(texts)
    for suffix in ("csv", "tsv", "parquet", "jsonl"):
        out = tmp_path / f"out.{suffix}"
        command("predict", run / "run", tmp_path / "in.jsonl", "--out", out)
        config = TaggedConfig(format="prodigy" if suffix == "jsonl" else "spans")
        data = read_tagged(out, config)
        assert data.tokens == tuple(tuple(answer["tokens"]) for answer in answers)
        for tags, answer in zip(data.tags, answers, strict=True):
            assert get_entities(tags) == get_entities(answer["tags"])
        inputs = [cell for cell in read_words(out, config) if not cell.problem]
        assert [cell.value for cell in inputs] == texts
        assert [cell.columns["id"] for cell in inputs] == ["n0", "n1", "n2"]
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        first, second, *_ = csv.DictReader(file)
    expected = {"id": "n0", "text": texts[0], "sentence": "1", "label": "NAME"}
    assert first == expected | {"start": "8", "end": "16", "span": "van lake"}
    assert [second[name] for name in ("sentence", "start", "label", "span")] == ["2", "", "", ""]
    assert read_tagged(tmp_path / "out.csv", TaggedConfig()).tokens == data.tokens
    printed(capsys, "predict", run / "run", tmp_path / "out.csv", "--json")


def test_tags_that_are_not_of_entities_are_rows_of_tokens_or_lists(run, tmp_path):
    trained, texts = load(run / "run"), ["mister hill, saw", "the lake"]
    examples = [Example("", trained.recipe.preprocess(text, 1)) for text in texts]
    shutil.copytree(run / "run" / ARTIFACTS, tmp_path / "artifacts")
    Labels(("noun", "verb")).save(tmp_path / "artifacts" / "labels.json")
    trained.recipe.open(tmp_path / "artifacts")
    for example in examples:
        example.outputs.append([f"T{i}" for i in range(len(example.rows[0].tokens))])
    answers = [trained.recipe.postprocess(example) for example in examples]
    for suffix in (".csv", ".parquet", ".jsonl"):
        out = tmp_path / f"out{suffix}"
        with open_table_atomically(out, trained.recipe.columns) as table:
            for number, answer in enumerate(answers, start=1):
                for row in trained.recipe.to_rows(answer, suffix, number):
                    table.write(row)
        data = read_tagged(out, TaggedConfig())
        assert data.tokens == (("mister", "hill", ",", "saw"), ("the", "lake"))
        assert data.tags == (("T0", "T1", "T2", "T3"), ("T0", "T1"))


def test_texts_are_cut_after_a_whole_word(run, capsys):
    recipe, text = load(run / "run").recipe, " mister  van " + "lake " * 300
    short = recipe.shorten(text)
    assert text.startswith(short)
    assert short.split() == recipe.shorten(text.split())
    assert recipe.shorten("mister van.") == "mister van."
    assert recipe.shorten("mister van ") == "mister van "
    command("predict", run / "run", "mister van", "--on-bad", "truncate")
    assert "truncated" not in capsys.readouterr().err


def test_references_have_the_form_of_predictions(run, tmp_path):
    out = tmp_path / "answers.jsonl"
    command("evaluate", run / "run", "--predictions", out)
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    tags = read_tagged(run / "test.txt", TaggedConfig()).tags
    assert [answer["reference"] for answer in answers] == [list(row) for row in tags]
    assert all(len(answer["tags"]) == len(answer["reference"]) for answer in answers)


def test_run_without_data_and_a_recurrent_core(tmp_path):
    options = "--train.steps 2 --train.validate-every 2 --train.tensorboard false"
    small = "--model.core recurrent --model.core.width 8 --model.core.hidden 8"
    command(f"train tags --run {tmp_path}/run {options} {small}")
    assert report(tmp_path / "run")["data"] == "synthetic sentences, test"
    with pytest.raises(UserError, match="the model has no attention layers"):
        load(tmp_path / "run").look(["on 3 May 2001"])
    assert load(tmp_path / "run").test_input(3)
