"""Token tagging: entities by hand, files and their errors, a run from columns to tags."""

import json
import random
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.data.config import TaggedConfig, TokenizerConfig
from regard.data.embedded.tags import make_sentences
from regard.data.text.tagged import TaggedBatches, TaggedSentences, encode_words, read_tagged
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.recipes.load import load
from regard.recipes.metrics.tags import find_scheme, get_entities, tag_scores
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
)


def test_entities_by_hand():
    assert get_entities(["B-A", "I-A", "O", "B-A", "B-A"]) == {
        (0, 2, "A"),
        (3, 4, "A"),
        (4, 5, "A"),
    }
    assert get_entities(["I-A", "I-B", "I-B"]) == {(0, 1, "A"), (1, 3, "B")}
    assert get_entities(["O", "X", "B-A-B"]) == {(2, 3, "A-B")}
    assert get_entities([]) == set()


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
    one_less = [*tags[:2], "O", *tags[3:]]
    scores = tag_scores([one_less], [tags], has_entities=True)
    assert scores["entity_f1"] == pytest.approx(200 * 2 / 5)


def test_tags_of_entities_are_recognized_by_their_form():
    assert find_scheme(["O", "I-A", "I-B"]) == "IO"
    assert find_scheme(["O", "B-A", "X"]) == "BIO"
    for tags in ([], ["O"], ["noun", "I-A"], ["I-", "O"], ["B", "I", "O"], ["NN", "S-V", "O"]):
        assert find_scheme(tags) == ""


def conlleval(tags: list[str]) -> set[tuple[int, int, str]]:
    """Return the chunks of conlleval.pl by its two tables, with L and U as E and S."""
    parts = (
        [("O", "")]
        + [tuple(tag.split("-")) if "-" in tag else ("O", "") for tag in tags]
        + [("O", "")]
    )
    parts = [({"L": "E", "U": "S"}.get(mark, mark), kind) for mark, kind in parts]
    chunks, begin = set(), 0
    for i in range(1, len(parts)):
        (before, kind_before), (mark, kind) = parts[i - 1], parts[i]
        is_other = kind != kind_before
        if (
            before + mark in {"BB", "BS", "BO", "IB", "IS", "IO"}
            or before in "ES"
            or (before != "O" and is_other)
        ):
            chunks.add((begin, i - 1, kind_before))
        if (
            mark in "BS"
            or before + mark in {"EE", "EI", "SE", "SI", "OE", "OI"}
            or (mark != "O" and is_other)
        ):
            begin = i - 1
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
    rows = {
        kind: [row[key] for key in ("precision", "recall", "examples")]
        for kind, row in scores["classes"].items()
    }
    assert rows == {"A": [0, 0, 1], "B": [100, 100, 1]}
    assert tag_scores([["O", "O", "O"], ["O"]], references, has_entities=True)["entity_f1"] == 0
    assert set(tag_scores([["noun"]], [["verb"]], has_entities=False)) == {"accuracy", "classes"}


def test_sentences_without_entities_have_the_same_scores_as_others():
    found = tag_scores([["B-A"], ["O"]], [["O"], ["B-A"]], has_entities=True)
    nothing = tag_scores([["O"]], [["O"]], has_entities=True)
    assert nothing.keys() == found.keys()
    assert nothing["entity_f1"] == nothing["entity_precision"] == nothing["entity_recall"] == 0


def test_columns_and_json_lists_are_equivalent(tmp_path):
    columns, lists = tmp_path / "a.conll", tmp_path / "a.jsonl"
    columns.write_text(
        "-DOCSTART- -X- O\n\nNew NNP B-LOC\nYork NNP I-LOC\n \n\nyes\tO\r\n", encoding="utf-8"
    )
    rows = [
        {"tokens": ["New", "York"], "tags": ["B-LOC", "I-LOC"]},
        {"tokens": ["yes"], "tags": ["O"]},
    ]
    lists.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    from_columns, from_lists = (read_tagged(path, TaggedConfig()) for path in (columns, lists))
    assert (
        (from_columns.tokens, from_columns.tags)
        == (from_lists.tokens, from_lists.tags)
        == ((("New", "York"), ("yes",)), (("B-LOC", "I-LOC"), ("O",)))
    )
    assert from_columns.lines == (3, 7)


def test_first_subwords_have_the_tags_and_batches_hold_every_sentence():
    config = TokenizerConfig(kind="char", joint=False)
    tokenizer = Tokenizer.train(["ab c"], config)
    ids, first = encode_words(("ab", "c", "?"), tokenizer)
    assert first == [0, 2, 3]
    assert len(ids) == 4
    rows = [([5, 6, 7], [1, -1, 0]), ([5], [2]), ([6, 6], [0, 1])]
    batches = TaggedBatches(rows, batch_tokens=6, seed=1)
    assert sorted(i for indices in batches.plan(3) for i in indices) == [0, 1, 2]
    batch = batches.collate(0, (0, 1))
    assert batch.target.tolist() == [[1, -1, 0], [2, -1, -1]]
    assert batch.source.lengths.tolist() == [3, 1]


def test_synthetic_sentences_share_no_date_between_splits_and_are_reproducible():
    train, test = (make_sentences(split, 1) for split in ("train", "test"))
    assert make_sentences("test", 1) == test
    dates = [
        {
            tuple(zip(*pair, strict=True))
            for pair in zip(sentences.tokens, sentences.tags, strict=True)
        }
        for sentences in (train, test)
    ]
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
    small = (
        "--model.core.width 16 --model.core.layers 1 --model.core.heads 2 "
        "--model.core.feedforward 16 --model.dropout 0"
    )
    limits = (
        "--train.steps 80 --train.warmup 5 --train.lr 1e-2 --train.validate-every "
        "40 --train.tensorboard false"
    )
    more = "--model.dropout 0 --train.batch-tokens 200"
    assert main(f"train tags --run {folder / 'run'} {files} {small} {limits} {more}".split()) == 0
    return folder


def test_names_are_recognized_by_the_word_before_them(run, capsys):
    test = json.loads((run / "run" / "report.json").read_text())["test"]
    assert test["examples"] == 8
    assert test["entity_f1"] > 90
    trained = load(run / "run")
    with pytest.warns(UserWarning, match="input 3 is empty: it has no tokens to tag"):
        answers = trained.predict(["mister hill saw", ["the", "hill", "saw"], ""])
    assert answers == [["O", "B-NAME", "O"], ["O"] * 3, []]
    for bad in (None, [["the"]], ("the", None)):
        with pytest.raises(UserError, match="input 1 must be a text or a list of tokens, got"):
            trained.predict([bad])
    assert main(["predict", str(run / "run"), "mister van lake"]) == 0
    assert capsys.readouterr().out == "O B-NAME I-NAME\n"
    assert main(["predict", str(run / "run"), "mister van lake", "--n-best", "2"]) == 2
    assert "unknown option --n-best" in capsys.readouterr().err


def test_look_shows_the_attention_of_each_subword(run):
    trained = load(run / "run")
    first, second = check_capture(trained, ["mister hill saw", ["the", "lake", "saw"]])
    (attention_map,) = first.find("encoder self")
    assert (
        first.queries(attention_map).labels
        == first.keys(attention_map).labels
        == ("\u2581mister", "\u2581hill (B-NAME)", "\u2581saw")
    )
    assert first.sample.title == "mister hill saw -> O B-NAME O"
    assert second.sample.title == "the lake saw -> O O O"
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
        sentences = TaggedSentences(
            (tuple(tokens),), (tuple(trained.predict([sentence])[0]),), (1,), "these"
        )
        _, likely = trained.recipe.predict_tags(trained.model, sentences)
        assert len(likely) == 3
        assert answer_log_probs(trained, [sentence])[0]().item() == pytest.approx(
            sum(likely), abs=1e-5
        )


def test_tags_are_scored_and_refused(run, capsys, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("mister O\nhill B-NAME\n\nthe B-PLACE\n", encoding="utf-8")
    assert main(["evaluate", str(run / "run"), "--data.test", str(other)]) == 2
    assert (
        "other.txt, line 4: tag 'B-PLACE' does not occur in the training" in capsys.readouterr().err
    )
    assert (
        main(
            [
                "evaluate",
                str(run / "run"),
                "--data.test",
                str(other),
                "--data.on-bad",
                "skip",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["examples"] == 1
    with pytest.raises(UserError, match=r"input 1 has 300 .*, more than 256"):
        load(run / "run").predict(["lake " * 300])


def test_entities_of_a_text_have_the_offsets_of_their_characters(run, capsys):
    text = "  mister \tvan  lake"
    assert main(["predict", str(run / "run"), text, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (entity,) = answer["entities"]
    assert answer["source"][entity["start_char"] : entity["end_char"]] == "van  lake"
    (by_tokens,) = load(run / "run").answer([["mister", "van", "lake"]])
    kept = {name: entity[name] for name in ("label", "start", "end", "text")}
    assert by_tokens["entities"] == [kept]


def test_texts_are_cut_after_a_whole_word(run, capsys):
    recipe, text = load(run / "run").recipe, " mister  van " + "lake " * 300
    short = recipe.shorten(text)
    assert text.startswith(short)
    assert short.split() == recipe.shorten(text.split())
    assert recipe.shorten("mister van ") == "mister van "
    assert main(["predict", str(run / "run"), "mister van", "--on-bad", "truncate"]) == 0
    assert "truncated" not in capsys.readouterr().err


def test_references_have_the_form_of_predictions(run, tmp_path):
    out = tmp_path / "answers.jsonl"
    assert main(["evaluate", str(run / "run"), "--predictions", str(out)]) == 0
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    tags = read_tagged(run / "test.txt", TaggedConfig()).tags
    assert [answer["reference"] for answer in answers] == [list(row) for row in tags]
    assert all(len(answer["tags"]) == len(answer["reference"]) for answer in answers)


def test_run_without_data_and_a_recurrent_core(tmp_path):
    options = (
        "--train.steps 2 --train.validate-every 2 --train.tensorboard false --model.core recurrent"
    )
    small = "--model.core.width 8 --model.core.hidden 8"
    assert main(f"train tags --run {tmp_path / 'run'} {options} {small}".split()) == 0
    assert (
        json.loads((tmp_path / "run" / "report.json").read_text())["test"]["data"]
        == "synthetic sentences, test"
    )
    with pytest.raises(UserError, match="the model has no attention layers"):
        load(tmp_path / "run").look(["on 3 May 2001"])
    assert load(tmp_path / "run").test_input(3)
