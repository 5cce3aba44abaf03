"""Log-probabilities of given texts, and vectors of inputs."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from regard.attention.masks import Padded
from regard.errors import UserError
from regard.look.record import record
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import load
from tests.recipes.commands import command, failure, printed
from tests.recipes.tiny import folder
from tests.recipes.toy import SOURCES, write_pairs
from tests.recipes.untrained import untrained

PAIRS = [("ada sees bob", "BOB SEES ADA"), ("eve", "GUS HAL DAN EVE SEES"), ("dan", "DAN")]
TEXTS = ["a b c a b", "b", "c a b c a b c a b c a b c", "a a"]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TrainedRun]:
    """Return the run of a recipe with random weights."""
    found: dict[str, TrainedRun] = {}

    def create(recipe: str) -> TrainedRun:
        if recipe not in found:
            path = tmp_path_factory.mktemp(recipe)
            found[recipe] = TrainedRun(*untrained(recipe, path), path)
        return found[recipe]

    return create


def log_p(model: Any, source: Padded | None, target: list[int]) -> float:
    """Return log p of a target's tokens after the first, from the logits of one row."""
    total, logits = 0.0, model(source, pad_one(target))[0].double()
    for step, token in enumerate(target[1:]):
        total += float(logits[step, token] - logits[step].exp().sum().log())
    return total


def pad_one(ids: list[int]) -> Padded:
    return Padded(torch.tensor([ids]), torch.tensor([len(ids)]))


one_core = pytest.mark.parametrize("finished_run", ["transformer"], indirect=True)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


def test_pairs_are_scored_by_the_logits_of_the_model(trained_run: TrainedRun) -> None:
    recipe: Any = trained_run.recipe
    for pair, score in zip(PAIRS, trained_run.score(PAIRS), strict=True):
        source = [*recipe.source_tokenizer.encode(pair[0]), recipe.source_tokenizer.specials.eos]
        own = recipe.tokenizer.specials
        target = [own.bos, *recipe.tokenizer.encode(pair[1]), own.eos]
        with torch.no_grad():
            expected = log_p(trained_run._model, pad_one(source), target)
        assert score is not None
        assert score["log_prob"] == pytest.approx(expected, rel=1e-5)
        assert (score["tokens"], score["unknown"]) == (len(pair[1].split()) + 1, 0)
        assert score["perplexity"] == pytest.approx(math.exp(-expected / score["tokens"]), rel=1e-5)
    (unknown,) = trained_run.score([("ada zoe", "ZOE ADA")])
    assert unknown is not None
    assert unknown["unknown"] == 2


@one_core
def test_total_of_pairs_is_the_perplexity_of_evaluate(
    finished_run: Path, tmp_path: Path, capsys: Any
) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv", SOURCES[3:9])
    expected = load(finished_run).evaluate(pairs)
    *rows, total = rows_of(printed(capsys, f"score {finished_run} {pairs}"))
    assert total["line"] == "total"
    assert float(total["perplexity"]) == pytest.approx(expected["perplexity"], rel=1e-5)
    assert [row["source"] for row in rows] == SOURCES[3:9]
    sides = [tmp_path / "sources.txt", tmp_path / "targets.txt"]
    for path, column in zip(sides, ("source", "target"), strict=True):
        path.write_text("".join(f"{row[column]}\n" for row in rows))
    assert rows_of(printed(capsys, f"score {finished_run}", *sides)) == [*rows, total]


@one_core
def test_scores_are_written_as_a_table_and_bad_pairs_are_skipped(
    finished_run: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "pairs.tsv").write_text(f"ada\tADA\n{'ada ' * 13}\tADA\nbob\t\neve\tEVE\n")
    words = f"score {finished_run} {tmp_path}/pairs.tsv"
    message = failure(capsys, f"{words} --on-bad skip --out {tmp_path}/scores.txt")
    assert "expected a table: .csv, .tsv, .jsonl, .parquet" in message
    command(f"{words} --json --on-bad skip --out {tmp_path}/scores.jsonl")
    (total,) = map(json.loads, capsys.readouterr().out.splitlines())
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    first, long, last = map(json.loads, lines)
    assert [first["line"], long["line"], last["line"]] == [1, 2, 4]
    assert first["target"] == "ADA"
    assert long["log_prob"] is None
    assert total["tokens"] == first["tokens"] + last["tokens"] == 4
    assert total["log_prob"] == pytest.approx(first["log_prob"] + last["log_prob"], rel=1e-6)
    assert "exists" in failure(capsys, f"{words} --on-bad skip --out {tmp_path}/scores.jsonl")
    message = failure(capsys, f"{words} {tmp_path}/pairs.tsv")
    assert "pairs.tsv: is a table, expected a text file with a text in each line" in message
    assert "pairs.tsv, line 3: the target is empty" in failure(capsys, words)
    (tmp_path / "pairs.tsv").write_text(f"ada\tADA\n{'ada ' * 13}\tADA\n")
    expected = "pairs.tsv, line 2: input 2 is too long: 13 source and 1 target tokens"
    assert expected in failure(capsys, words)


def test_texts_are_scored_as_evaluate_reads_a_file_of_each(
    model_of: Callable[[str], TrainedRun], tmp_path: Path
) -> None:
    run = model_of("language")
    scores: list[Any] = run.score(TEXTS)
    assert scores[1] == {"log_prob": 0.0, "tokens": 0, "perplexity": None, "unknown": 0}
    for text, score in zip(TEXTS, scores, strict=True):
        alone: Any = run.score([text])[0]
        assert alone["log_prob"] == pytest.approx(score["log_prob"], rel=1e-5)
    for text in TEXTS[::2]:  # the second has four windows
        (tmp_path / "text.txt").write_text(text)
        expected = run.evaluate(tmp_path / "text.txt")  # adds a line end
        own: Any = run.score([text + "\n"])[0]
        assert own["tokens"] == expected["tokens"] == len(text)
        assert own["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-5)
    with torch.no_grad():
        ids = run.recipe.encode_text(TEXTS[0]).tolist()
        expected = log_p(run.model, None, ids[:9]) + log_p(run.model, None, ids[8:])
    assert scores[0]["log_prob"] == pytest.approx(expected, rel=1e-5)
    unknown: list[Any] = run.score(["!", "a b c a? b c a b c !", "b"])
    assert [score["unknown"] for score in unknown] == [1, 2, 0]


@pytest.mark.parametrize(
    ("recipe", "inputs"),
    [
        ("language", ["a b", "c", "b c a b"]),
        ("translate", ["a b", "c", "b c a b"]),
        ("reviews", ["good a", "bad", "good c b a b"]),
        ("tags", ["Ann sees Bob", "Bob", "Ann sat"]),
        ("images", ["images/a/0.png", "images/b/1.png"]),
        ("boxes", ["images/a/0.png", "images/b/1.png"]),
        ("caption", ["images/a/0.png", "images/b/1.png"]),
        ("points", ["0.npz", "1.npz"]),
        ("events", ["0.wav", "1.wav"]),
        ("draw", ["a", "b"]),
    ],
)
def test_vectors_are_those_of_each_input_alone(
    model_of: Callable[[str], TrainedRun], recipe: str, inputs: list[str]
) -> None:
    run = model_of(recipe)
    if (folder() / inputs[0]).exists():
        inputs = [str(folder() / name) for name in inputs]
    vectors = run.embed(inputs)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(inputs), 8)
    for given, vector in zip(inputs, vectors, strict=True):
        assert np.allclose(run.embed([given])[0], vector, rtol=0, atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3


def test_vectors_are_pooled_as_the_model_classifies_or_by_the_mean(
    model_of: Callable[[str], TrainedRun],
) -> None:
    run = model_of("reviews")
    recipe: Any = run.recipe
    with torch.no_grad():
        source = recipe.collate(recipe.preprocess("good c b", 1))
        encoded = run.model.encoder(source)
        pooled = run.model.predictor(None, encoded, source=source)
    assert np.allclose(run.embed(["good c b"]), pooled, atol=1e-6)
    mean = run.embed(["good c b", "bad"], pooling="mean")[0]
    assert np.allclose(mean, encoded.items[0].mean(0), atol=1e-6)
    with pytest.raises(UserError, match="pooling must be auto or mean, got 'max'"):
        run.embed(["bad"], pooling="max")  # type: ignore[arg-type]


def test_inputs_without_a_vector_or_a_score_are_refused(
    model_of: Callable[[str], TrainedRun],
) -> None:
    language = model_of("language")
    message = "input 2 has 15 tokens, more than the context of 8; --on-bad truncate cuts such texts"
    with pytest.raises(UserError, match=message):
        language.embed(["a", "a b c a b c a b"])
    assert np.isnan(language.embed(["a", ""], on_bad="skip")).any(1).tolist() == [False, True]
    for recipe, given, problem in (
        ("translate", "", "input 1 is empty: it has no vector"),
        ("tracks", folder() / "tracks.txt", "runs of tracks have no vectors of inputs"),
    ):
        with pytest.raises(UserError, match=problem):
            model_of(recipe).embed([given])
    for recipe, given, problem in (
        ("translate", "a", r"input 1 must be a pair of texts: \(source, target\)"),
        ("language", ("a", "b"), "input 1 must be a text, got tuple"),
        ("images", "a", "runs of images score no texts"),
    ):
        with pytest.raises(UserError, match=problem):
            model_of(recipe).score([given])
    assert model_of("translate").score([("a", "b"), ("a", "")], on_bad="skip")[1] is None


def test_a_recording_is_not_affected(model_of: Callable[[str], TrainedRun]) -> None:
    run = model_of("language")
    with record(run) as capture:
        run.predict(["a b"], length=2)
        run.score(["a b c"])
        run.embed(["a b c"])
    assert len(capture) == 1


@one_core
def test_vectors_are_written_with_the_names_of_their_inputs(
    finished_run: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "texts.txt").write_text("ada sees bob\n\neve\n")
    words = f"embed {finished_run} {tmp_path}/texts.txt --on-bad skip --out {tmp_path}"
    command(f"{words}/a.npy")
    command(f"{words}/a.npz")
    expected = load(finished_run).embed(["ada sees bob", "eve"])
    both, vectors = np.load(tmp_path / "a.npz"), np.load(tmp_path / "a.npy")
    assert vectors.dtype == np.float32
    assert np.allclose(vectors[[0, 2]], expected, atol=1e-6)
    assert np.isnan(vectors[1]).all()
    assert np.array_equal(both["vectors"], vectors, equal_nan=True)
    assert both["names"].tolist() == ["ada sees bob", "", "eve"]
    assert (tmp_path / "a.names.txt").read_text() == "ada sees bob\n\neve\n"
    for suffix in ("csv", "jsonl", "parquet"):
        command(f"{words}/table.{suffix}")
    header, *rows = csv.reader((tmp_path / "table.csv").read_text().splitlines())
    assert header == ["source", *(f"vector_{i + 1}" for i in range(vectors.shape[1]))]
    assert [row[0] for row in rows] == both["names"].tolist()
    assert np.array_equal(np.array(rows[2][1:], np.float32), vectors[2])
    assert not any(rows[1])
    lines = [*map(json.loads, (tmp_path / "table.jsonl").read_text().splitlines())]
    assert lines == pq.read_table(tmp_path / "table.parquet").to_pylist()
    assert lines[1] == {"source": "", "vector": None}
    assert np.array_equal(np.array(lines[0]["vector"], np.float32), vectors[0])
    (tmp_path / "a.npy").unlink()
    assert "a.names.txt exists" in failure(capsys, f"{words}/a.npy")
    assert "--out must be FILE.npy, .npz, .csv" in failure(capsys, f"{words}/a.xlsx")
    assert "b does not exist" in failure(capsys, f"{words}/b/a.npy")
