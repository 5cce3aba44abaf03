"""Run of a language model: it learns a repetitive text, continues prompts, and is evaluated."""

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.attention.masks import Padded
from regard.cli.main import main
from regard.data.config import TokenizerConfig
from regard.data.text.corpus import make_corpus, read_corpus
from regard.data.tokenizer import BOS, EOS, SPECIALS, Ends, Specials, TrainedTokenizer
from regard.errors import UserError
from regard.look.maps import GRADIENT
from regard.look.record import record
from regard.recipes.language.examples import measure_examples
from regard.recipes.load import load
from tests.lectures.table import read_rows
from tests.recipes.capture_checks import answer_log_probs
from tests.recipes.commands import command, failure, printed, printed_json, report

TEXT = "the cat sat on the mat and the dog sat on the log.\n"


@pytest.fixture(scope="module", params=["transformer", "recurrent", "self-attentive"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    for name, number in (("train", 60), ("val", 6), ("test", 6)):
        (folder / f"{name}.txt").write_text(TEXT * number, encoding="utf-8")
    files = " ".join(f"--data.{name} {folder / name}.txt" for name in ("train", "val", "test"))
    sizes = {
        "transformer": "--model.core.layers 1 --model.core.feedforward 32",
        "recurrent": "--model.core.hidden 64",
        "self-attentive": "--model.core.hidden 64 --model.core.self-attention-recency learned",
    }
    small = f"--model.core {request.param} --model.core.width 32 {sizes[request.param]}"
    limits = "--train.steps 150 --train.warmup 10 --train.lr 1e-2 --train.validate-every 50"
    more = "--train.precision float32 --train.tensorboard false --context 32 --batch 8"
    command(f"train language --run {folder}/run {files} {small} {limits} {more}")
    return folder


def test_the_chain_of_the_lectures_is_drawn_by_its_commands(tmp_path, monkeypatch):
    """The commands of the table, with fewer steps. (lectures, B.12)"""
    (row,) = [row for row in read_rows() if "--view chain" in row.use]
    monkeypatch.chdir(tmp_path)
    train, look = row.use.split(" && ")
    command(f"{train.removeprefix('regard ')} --train.steps 2 --train.warmup 1 --context 16")
    assert main(shlex.split(look)[1:]) == 0
    assert Path("chain.png").stat().st_size > 10_000


def test_learns_and_reports(run):
    test = report(run / "run")
    assert test["nll"] < 0.25
    assert test["bits_per_token"] == pytest.approx(test["nll"] / math.log(2))
    assert test["perplexity"] == pytest.approx(math.exp(test["nll"]))
    assert test["bits_per_byte"] == pytest.approx(test["bits_per_token"] * 305 / 306)
    assert (test["examples"], test["tokens"]) == (6, 6 * len(TEXT) - 1) == (6, 305)


def test_predictions_of_test_texts_are_refused(run, tmp_path, capsys):
    message = failure(capsys, "evaluate", run / "run", "--predictions", tmp_path / "out.jsonl")
    assert "regard score RUN FILE writes the log-probability of each line" in message
    assert not [*tmp_path.iterdir()]


def test_continues_prompts(run, capsys):
    trained = load(run / "run")
    (continuation,) = trained.predict(["the cat sat on the mat"], length=9, temperature=0)
    assert continuation == " and the "
    options = ("--sample.length", "7", "--sample.temperature", "0")
    assert printed(capsys, "predict", run / "run", "the cat sat", *options) == " on the\n"
    long = trained.predict(["the cat"], length=120, temperature=0)[0]
    assert len(long) == 120
    with pytest.raises(UserError, match="input 2 is empty"):
        trained.predict(["the", ""])


def test_a_text_begins_and_ends_with_the_ids_of_a_pretrained_tokenizer(run, monkeypatch):
    trained = load(run / "run")
    tokenizer, prompt = trained.recipe.tokenizer, "the cat sat on the mat"
    (plain,) = trained.recipe.preprocess(prompt, 1)
    monkeypatch.setattr(tokenizer, "specials", Specials(eos=tokenizer.encode("d")[0]))
    assert trained.predict([prompt], length=9, temperature=0) == [" and"]
    monkeypatch.setattr(tokenizer, "text_ends", Ends((BOS,), (EOS,)))
    (row,) = trained.recipe.preprocess(prompt, 1)
    assert row.ids == [BOS, *plain.ids]
    assert trained.recipe.token_labels(prompt) == tokenizer.tokens(row.ids)


def test_the_context_of_a_continuation_is_an_option(run, capsys):
    trained = load(run / "run")
    core = trained.config.model.core.name
    prompt, options = "the cat sat on the mat and the dog", {"length": 20, "temperature": 0}
    (continuation,) = trained.predict([prompt], context="last", **options)
    ids = torch.as_tensor(trained.recipe.encode_text(prompt + continuation)).long()
    for end in range(len(ids) - 20, len(ids)):  # the most likely one after exactly the last 32
        logits, _ = trained.model.steps(ids[None, end - 32 : end], trained.model.start())
        assert int(logits[0, len(SPECIALS) :].argmax()) + len(SPECIALS) == ids[end]
    if core == "self-attentive":
        assert len(trained.predict([prompt], context="slide", **options)[0]) == 20
        return
    message = failure(capsys, "predict", run / "run", prompt, "--sample.context", "slide")
    reason = "its positions are added"
    if core == "recurrent":
        reason = "a recurrent core has no keys and values"
    assert f"sample.context must be restart or last, since {reason}" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--context 99 --model.core.positions.max-length 98", "must be at least context=99"),
    ],
)
def test_a_context_that_does_not_fit_the_model_is_refused(words, message, tmp_path, capsys):
    assert message in failure(capsys, f"train language --run {tmp_path}/run {words}")
    assert not (tmp_path / "run").exists()


def test_other_text_is_scored(run, tmp_path, capsys):
    other = tmp_path / "other.txt"
    other.write_text("the cat sat on the log.\n" * 3, encoding="utf-8")
    scores = printed_json(capsys, "evaluate", run / "run", "--data.test", other)
    assert (scores["examples"], scores["tokens"], scores["unknown_tokens"]) == (3, 71, 0)
    other.write_text("the cat sat on the log!\n", encoding="utf-8")
    scores = printed_json(capsys, "evaluate", run / "run", "--data.test", other)
    assert scores["unknown_tokens"] == pytest.approx(100 / 24)
    assert "bits_per_byte" not in scores
    assert "no bits per byte: the tokens do not give the text back" in scores["signature"]


def test_look_shows_the_attention_of_each_character(run):
    trained = load(run / "run")
    if trained.config.model.core.name == "recurrent":
        with pytest.raises(UserError, match="the model has no attention layers"):
            trained.look(["the cat"])
        return
    first, second = trained.look(["the cat", "a log"])
    letters = (*"the", "\u2581", *"cat")
    assert first.sample.axes["decoder input"].labels == letters
    assert [step.token for step in first.sample.steps[:-1]] == list(letters[1:])
    assert first.sample.steps[-1].token == "\u2581"  # the last step shows the most probable token
    assert second.sample.title == "a log"
    with pytest.warns(UserWarning, match="input 1: never seen in training.*: 'Z'"):
        (odd,) = trained.look(["the Zat"])
    assert odd.sample.axes["decoder input"].labels == (*"the", "\u2581", "<unk:Z>", *"at")
    assert odd.sample.steps[3].token == odd.sample.axes["output"].labels[3] == "<unk:Z>"
    for step in first.sample.steps:
        assert step.probability <= step.alternatives[0].probability + 1e-6
    is_chain = trained.config.model.core.name == "self-attentive"
    for attention_map in first.find():
        assert attention_map.kind == ("chain" if is_chain else "decoder self")
        assert attention_map.weights.shape[1:] == (7, 7)
        sums = [int(not is_chain), 1, 1, 1, 1, 1, 1]
        assert attention_map.weights[0].sum(1).tolist() == pytest.approx(sums, abs=1e-5)


def test_gradients_are_those_of_the_tokens_after_the_first(run):
    trained = load(run / "run")
    if trained.config.model.core.name == "recurrent":
        return
    weights = [weight.detach().clone() for weight in trained.model.parameters()]
    plain = trained.look(["the cat", "a log"])
    capture = trained.look(["the cat", "a log"], gradients=True)
    log_probs = answer_log_probs(trained, ["the cat", "a log"])
    for log_prob, sample_maps, plain_maps in zip(log_probs, capture, plain, strict=True):
        probabilities = [step.probability for step in sample_maps.sample.steps[:-1]]
        assert log_prob().item() == pytest.approx(sum(map(math.log, probabilities)), abs=1e-4)
        pairs = zip(sample_maps.find(measure=GRADIENT), plain_maps.find(), strict=True)
        for gradient_map, weights_map in pairs:
            for name in ("name", "queries", "keys"):
                assert getattr(gradient_map, name) == getattr(weights_map, name)
            assert gradient_map.weights.shape == weights_map.weights.shape
            assert gradient_map.weights.any()
            assert not gradient_map.weights[weights_map.weights == 0].any()
            # Nothing follows the last token whose log p is counted.
            assert not gradient_map.weights[:, -1].any()
    assert all(weight.grad is None for weight in trained.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights, trained.model.parameters(), strict=True))


def test_generated_tokens_are_recorded_beside_the_prompt(run):
    trained = load(run / "run")
    if trained.config.model.core.name == "recurrent":
        return
    expected = trained.predict(["the cat"], length=5)
    with record(trained) as capture:
        assert trained.predict(["the cat"], length=5) == expected
    (sample_maps,) = capture
    assert sample_maps.sample.title == f"the cat -> {expected[0]}"
    assert sample_maps.sample.axes["decoder input"].labels[:3] == ("t", "h", "e")
    assert len(sample_maps.sample.steps) == 7 - 1 + 5


def test_lines_are_scored_and_the_corpus_as_evaluate_reports_it(run, tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("the dog\n\nthe mat dog the dog the mat the dog\nt\n")
    trained = load(run / "run")
    printed(capsys, f"score {run}/run {tmp_path}/lines.txt --out {tmp_path}/lines.csv")
    shown = printed(capsys, f"score {run}/run {tmp_path}/lines.txt --json")
    first, second, third, total, corpus = map(json.loads, shown.splitlines())
    assert [first["line"], second["line"], third["line"], total["line"]] == [1, 3, 4, "total"]
    assert first["log_prob"] == pytest.approx(trained.score(["the dog"])[0]["log_prob"], rel=1e-6)
    numbers = {"log_prob": 0, "tokens": 0, "perplexity": None, "unknown": 0}
    assert third == {"line": 4, **numbers, "text": "t"}
    assert total["log_prob"] == pytest.approx(first["log_prob"] + second["log_prob"], rel=1e-6)
    assert total["tokens"] == first["tokens"] + second["tokens"] == 6 + 34
    expected = trained.evaluate(tmp_path / "lines.txt")
    assert corpus["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)
    assert corpus["tokens"] == expected["tokens"]
    log_prob = -expected["nll"] * expected["tokens"]
    assert corpus["log_prob"] == pytest.approx(log_prob, rel=1e-6)
    assert (tmp_path / "lines.csv").read_text().splitlines()[3] == "4,0.0,0,,0,t"
    message = "'b.txt' is an unexpected argument: this run scores single texts"
    assert message in failure(capsys, f"score {run}/run {tmp_path}/lines.txt b.txt")


def test_the_continuation_of_a_single_prompt_is_printed_with_its_line_ends(run, tmp_path, capsys):
    prompt, words = "sat on the log", f"{run}/run --sample.length 10 --sample.temperature 0"
    (text,) = load(run / "run").predict([prompt], length=10, temperature=0)
    assert "\n" in text
    line = text.replace("\n", " ")
    assert printed(capsys, f"predict {words}", prompt) == f"{text}\n"
    assert printed(capsys, f"predict {words}", prompt, prompt) == f"{line}\n{line}\n"
    (tmp_path / "prompts.txt").write_text(prompt)
    assert printed(capsys, f"predict {words} {tmp_path}/prompts.txt") == f"{line}\n"
    printed(capsys, f"predict {words} --out {tmp_path}/out.txt", prompt)
    assert (tmp_path / "out.txt").read_text() == f"{line}\n"


def test_texts_that_cannot_be_looked_at_are_named(run):
    trained = load(run / "run")
    if trained.config.model.core.name == "transformer":
        with pytest.raises(UserError, match="input 2 must have at least two tokens, got 1"):
            trained.look(["the", "t"])
        with pytest.raises(UserError, match="input 1 has 33 tokens, more than the context of 32"):
            trained.look(["a" * 33])
    test_input, is_recurrent = trained.test_input(2), trained.config.model.core.name == "recurrent"
    assert (TEXT if is_recurrent else TEXT[:32]).startswith(test_input)
    assert len(trained.predict([test_input], length=3)[0]) == 3
    if not is_recurrent:
        assert trained.look([test_input])[0].sample.title == test_input.strip()
    with pytest.raises(UserError, match=r"test\.txt has 6 inputs, from 0: no input 6"):
        trained.test_input(6)


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_line_ends_and_indentation_are_tokens(kind, tmp_path, capsys):
    text = "def f(x):\n    if x:\n\treturn  1\n\n" * 20
    (tmp_path / "a.txt").write_text(text)
    small = "--model.core.layers 1 --model.core.width 8 --model.core.heads 2 --context 8"
    options = f"--data.train {tmp_path}/a.txt --tokenizer.kind {kind} {small} --train.steps 1"
    command(f"train language --run {tmp_path}/run {options}")
    recipe = load(tmp_path / "run").recipe
    assert recipe.tokenizer.decode(recipe.encode_text(text)) == text
    other = f"train language --run {tmp_path}/other --init {tmp_path}/run {options}"
    message = "--data.line-ends must be as in the run of --init"
    assert message in failure(capsys, f"{other} --data.line-ends eos")


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_line_ends_are_words_if_asked_for(kind, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a b c\nd\n" * 20)
    small = "--model.core.layers 1 --model.core.width 8 --model.core.heads 2 --context 8"
    options = f"--data.train {tmp_path}/a.txt --tokenizer.kind {kind} {small} --train.steps 1"
    command(f"train language --run {tmp_path}/run {options} --data.line-ends eos")
    recipe = load(tmp_path / "run").recipe
    ids = recipe.encode_text("a b c\nd\n")
    assert not recipe.tokenizer.is_unknown(ids)
    assert recipe.tokenizer.decode(ids).split() == ["a", "b", "c", "<eos>", "d", "<eos>"]
    if kind == "word":
        assert len(recipe.tokenizer) == len(SPECIALS) + 5
        assert recipe.tokenizer.specials.unk not in ids
    scores = printed_json(capsys, f"evaluate {tmp_path}/run --data.test {tmp_path}/a.txt")
    assert scores["unknown_tokens"] == 0


@pytest.fixture(scope="module")
def run_of_documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a table whose rows are the texts "one two." and "red blue."."""
    folder = tmp_path_factory.mktemp("documents")
    lines = [json.dumps({"id": i, "text": ("one two.", "red blue.")[i % 2]}) for i in range(100)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    small = "--model.core.layers 1 --model.core.width 32 --model.core.feedforward 32 --context 16"
    limits = "--train.steps 100 --train.warmup 10 --train.lr 1e-2 --train.validate-every 100"
    more = "--train.precision float32 --train.tensorboard false"
    words = f"train language --run {folder}/run --data.train {folder}/texts.jsonl"
    command(f"{words} {small} {limits} {more}")
    return folder / "run"


def test_a_continuation_ends_where_the_documents_of_training_end(run_of_documents, capsys):
    trained = load(run_of_documents, notify=lambda _: None)
    options = {"length": 9, "temperature": 0}
    assert trained.predict(["one", "red b"], **options) == [" two.", "lue."]
    (prompt,) = trained.recipe.preprocess("one", 1)
    assert prompt.ids == [EOS, *trained.recipe.encode_text("one")]
    assert trained.predict([""], **options)[0] in ("one two.", "red blue.")
    with pytest.raises(UserError, match="input 1 is empty: it has no vector"):
        trained.embed([""])
    samples = [trained.predict([first, "red"], temperature=9.0) for first in ("one", "two.")]
    assert samples[0][1] == samples[1][1]
    assert samples[0][0] != samples[0][1]
    first, second = (trained.predict([text], temperature=1e3, length=20)[0] for text in ("o", "r"))
    assert first[-9:] != second[-9:]  # other random numbers, not only another context
    (answer,) = trained.answer(["one"], **options)
    assert answer["text"] == " two."
    (note,) = trained.recipe.val.notes
    assert ": 85 of 850 characters, the last 10 documents, are held out for validation" in note
    ids = trained.recipe.encode_corpus(trained.recipe.val.data)
    assert trained.recipe.tokenizer.decode(ids[: list(ids).index(EOS)]) in ("one two.", "red blue.")
    assert ids[-1] == EOS


def test_a_document_is_scored_with_eos_before_and_after_it(run_of_documents, tmp_path, capsys):
    """In `evaluate`, each window (of 16 tokens) begins at the EOS before the second text, or the
    third."""
    texts, nats = ["one two. one two", "red blue. red b", "two. one two. r"], []
    trained = load(run_of_documents, notify=lambda _: None)
    for count in (1, 3):
        lines = [json.dumps({"text": text}) for text in texts[:count]]
        (tmp_path / "texts.jsonl").write_text("\n".join(lines))
        found = trained.evaluate(tmp_path / "texts.jsonl")
        nats.append(found["nll"] * found["tokens"])
    shown = printed(capsys, f"score {run_of_documents} {tmp_path}/texts.jsonl --json")
    first, second, third, total = map(json.loads, shown.splitlines())
    assert [first["tokens"], second["tokens"], third["tokens"]] == [17, 16, 16]
    assert second["log_prob"] + third["log_prob"] == pytest.approx(nats[0] - nats[1], rel=1e-5)
    assert total["tokens"] == found["tokens"] + 1
    log_prob, ids = 0.0, [EOS, *trained.recipe.encode_text("red"), EOS]
    target = Padded(torch.tensor([ids]), torch.tensor([5]))
    with torch.no_grad():
        log_p = trained.model(None, target)[0].log_softmax(-1)
    for step, token in enumerate(ids[1:]):
        log_prob += float(log_p[step, token])
    assert trained.score(["red"])[0]["log_prob"] == pytest.approx(log_prob, rel=1e-5)


def test_texts_and_documents_that_do_not_fit_are_refused(run, run_of_documents, tmp_path, capsys):
    (tmp_path / "texts.jsonl").write_text('{"text": "the cat"}\n')
    message = failure(capsys, "evaluate", run / "run", "--data.test", tmp_path / "texts.jsonl")
    assert "texts.jsonl: has documents, but the run is trained on a text" in message
    (tmp_path / "tiny.txt").write_text("hi\n")
    message = failure(capsys, f"train language --run {tmp_path}/r --data.train {tmp_path}/tiny.txt")
    assert "tiny.txt: a text must have at least two tokens, got 1, for validation" in message
    assert not (tmp_path / "r/checkpoints").exists()
    assert load(run_of_documents).evaluate(run / "test.txt")["tokens"] == 6 * len(TEXT) - 1


def test_runs_with_other_contexts_and_tokens_compare_on_the_same_text(
    run, run_of_documents, tmp_path, capsys
):
    lines = ["\n", "the cat sat\n", "  \n", "on the log.\n", "and the mat sat on the mat.\n"]
    (tmp_path / "test.txt").write_text("".join(lines) * 3)
    words = f"compare {run}/run {run}/run --data.test {tmp_path}/test.txt --json --samples 40"
    found = printed_json(capsys, words)
    assert found["examples"] == 9
    expected = printed_json(capsys, "evaluate", run / "run", "--data.test", tmp_path / "test.txt")
    for name in ("nll", "perplexity", "bits_per_token", "bits_per_byte"):
        first, same = found["metrics"][name]
        assert first["score"] == same["score"] == pytest.approx(expected[name], rel=1e-6)
        assert first["low"] < first["score"] < first["high"]
        assert same["p"] == 1
    assert found["differences"] == []
    words = f"compare {run}/run {run_of_documents} --data.test {tmp_path}/test.txt --samples 40"
    text = printed(capsys, words)
    assert f"{tmp_path}/test.txt: 9 examples; 95 % intervals" in text
    assert "tokenizers may differ, and nll and perplexity are per token of each\n" in text
    assert "bits per byte" not in text  # one of the runs lacks it: it does not know "m"
    assert re.search(r"input +the cat sat\n.*\(nll [0-9.]+\)\n.*\(nll [0-9.]+\)\n", text)


def test_results_of_a_line_are_those_of_the_tokens_that_begin_in_it(run, tmp_path):
    text, ends = "\nthe cat sat on\n \nthe mat and the dog sat\non the log\n", (18, 42, 53)
    (tmp_path / "test.txt").write_text(text)
    trained = load(run / "run")
    recipe = trained.recipe.change({"test": str(tmp_path / "test.txt")}, for_test=True)
    dataset = recipe.read_encoded(recipe.read("test"))
    results = recipe.results(recipe.inference(trained.model), dataset)
    ids, costs = recipe.encode_text(text), []
    for begin in range(0, len(ids) - 1, 32):
        window = torch.tensor(ids[begin : begin + 33])[None]
        with torch.no_grad():
            log_p = trained.model(None, Padded(window, torch.tensor([window.shape[1]])))[0]
        log_p = log_p.log_softmax(-1)
        costs += [-float(log_p[i, token]) for i, token in enumerate(window[0, 1:])]
    for line, (begin, end) in enumerate(zip((1, *ends), ends, strict=False)):
        nats = sum(costs[begin - 1 : end - 1])
        found = results.rescore([line, line])
        assert found["nll"] == pytest.approx(nats / (end - begin), rel=1e-5)
        size = end - (0 if line == 0 else begin)
        assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    expected, whole = trained.evaluate(tmp_path / "test.txt"), results.rescore([0, 1, 2])
    assert whole == pytest.approx({name: expected[name] for name in whole}, rel=1e-5)


def test_a_document_has_all_of_its_lines_and_the_end_that_follows_it(run_of_documents, tmp_path):
    lines = [json.dumps({"text": text}) for text in ("one\ntwo", "red")]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    recipe, corpus = load(run_of_documents).recipe, read_corpus(tmp_path / "texts.jsonl")
    sizes = measure_examples(corpus, recipe.tokenizer, recipe.encode_text)
    assert [own.tolist() for own in sizes] == [[8, 4], [7, 3]]
    assert len(recipe.encode_corpus(corpus)) == 8 + 4


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_a_token_is_of_the_line_in_which_it_begins(kind):
    text = "def f(x):\n    if x:\n\n\n\treturn  \u00e9\n\n" * 20
    corpus, config = make_corpus(text, "text"), TokenizerConfig(kind=kind, normalize="none")
    tokenizer = TrainedTokenizer.train(corpus, config, keeps_space=True)
    tokens, sizes = measure_examples(corpus, tokenizer, tokenizer.encode)
    ids, count, size = tokenizer.encode(text), 0, 0
    assert len(tokens) == corpus.example_count == 60
    assert tokens.sum() == len(ids)
    for own, num_bytes in zip(tokens, sizes, strict=True):
        count, size = count + own, size + num_bytes
        before, after = tokenizer.decode(ids[: count - 1]), tokenizer.decode(ids[:count])
        assert len(before.encode()) < size <= len(after.encode())


def test_prompts_and_texts_of_tables_and_blank_lines_of_files(run_of_documents, tmp_path, capsys):
    (tmp_path / "prompts.csv").write_text("id,text\n7,one\n8,\n9,red b\n")
    (tmp_path / "prompts.txt").write_text("one\n  \nred b\n")
    greedy = "--sample.length 9 --sample.temperature 0"
    for name in ("csv", "txt"):
        words = f"predict {run_of_documents} {tmp_path}/prompts.{name} {greedy}"
        command(words)
        out, err = capsys.readouterr()
        assert out == " two.\n\nlue.\n"
        assert f"skipped: {tmp_path}/prompts.{name}, line {2 + (name == 'csv')}: input 2" in err
        command(f"embed {run_of_documents} {tmp_path}/prompts.{name} --out {tmp_path}/{name}.npy")
        vectors = np.load(tmp_path / f"{name}.npy")
        assert np.isnan(vectors).any(1).tolist() == [False, True, False]
    command(f"{words.replace('.txt', '.csv')} --out {tmp_path}/out.jsonl")
    rows = [*map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())]
    assert [(row["id"], row["text"]) for row in rows] == [
        ("7", " two."),
        ("8", None),
        ("9", "lue."),
    ]
    text = printed(capsys, f"score {run_of_documents} {tmp_path}/prompts.csv --json")
    first, blank, last, total = map(json.loads, text.splitlines())
    assert (first["id"], first["text"], last["id"], last["line"]) == ("7", "one", "9", 4)
    assert (blank["id"], blank["log_prob"]) == ("8", None)
    assert total["tokens"] == 4 + 6
    (tmp_path / "empty.txt").touch()
    command(f"predict {run_of_documents} {tmp_path}/empty.txt")
    assert "nothing was read: there are no inputs" in capsys.readouterr().err
    (tmp_path / "blank.txt").write_text("\n \n")
    message = failure(capsys, f"score {run_of_documents} {tmp_path}/blank.txt")
    assert "blank.txt: has no text that is not blank" in message
    assert "no such file" in failure(capsys, f"score {run_of_documents} {tmp_path}/none.csv")
    (tmp_path / "long.csv").write_text("id,text\n7,one two. ONE two. three.\n")
    command(
        f"embed {run_of_documents} {tmp_path}/long.csv --on-bad truncate --out {tmp_path}/v.tsv"
    )
    assert "input 1: never seen in training, so read as unknown: 'O'" in capsys.readouterr().err
    header, row = (line.split("\t") for line in (tmp_path / "v.tsv").read_text().splitlines())
    assert header[:3] == ["id", "text", "vector_1"]
    expected = load(run_of_documents, notify=lambda _: None).embed(["one two. ONE tw"])[0]
    assert np.allclose(np.array(row[2:], np.float32), expected, atol=1e-6)
