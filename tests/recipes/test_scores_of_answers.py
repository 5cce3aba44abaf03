"""A score is that of what `predict` answers: `evaluate` equals a public metric of its answers.

Models are hardly trained. Their answers to inputs, with mistakes put in, are the references of a
test file, so that scores are neither nothing nor all.
"""

import csv
import json
import shutil
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import numpy as np
import pytest
import sacrebleu
import soundfile
import torch
from PIL import Image
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from seqeval import metrics as seqeval
from sklearn import metrics as sklearn

from regard.cli.main import main
from regard.recipes.load import load
from regard.recipes.registry import RECIPES
from tests.recipes.answer_checks import changed_keys, check_answers
from tests.recipes.commands import command, printed, printed_json
from tests.recipes.tiny import quick_options

Rows = list[dict[str, Any]]
"""Answers as JSON."""


class Case(NamedTuple):
    """How a recipe is tested."""

    recipe: str
    options: str
    """Of the training."""
    inputs: Callable[[Path], list[Any]]
    """Write inputs to a folder, and return them."""
    write: Callable[[Path, list[Any], Rows], list[Any]]
    """Write the test data, and return its files."""
    score: Callable[[Rows, list[Path]], dict[str, float]]
    """Return the metrics of answers to the inputs of the test data."""
    change: str = ""
    """Settings of answers."""


def draw() -> np.random.Generator:
    return np.random.default_rng(5)


def write_rows(path: Path, rows: list[Any]) -> list[Path]:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)
    return [path]


def read_rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")]


# Texts

WORDS = ("\u00e9", "\u00fc", "\u00d1", "ba\u0302", "c")


def write_pairs(folder: Path) -> list[str]:
    """Write training pairs, and return other sources."""
    random = draw()
    rows = [[" ".join(random.choice(WORDS, 4)) for _ in range(2)] for _ in range(60)]
    write_rows(folder / "train.tsv", rows[:40])
    return [source for source, _ in rows[40:]]


def mistake(output: str, number: int) -> str:
    """Return an output as a reference, in every other row with another word; decomposed."""
    words = output.split() or ["c"]
    if number % 2:
        words[number % len(words)] = "x"
    return unicodedata.normalize("NFD", " ".join(words))


def text_pairs(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    outputs = [answer["outputs"][0]["text"] for answer in answers]
    pairs = [(a, mistake(b, i)) for i, (a, b) in enumerate(zip(inputs, outputs, strict=True))]
    return write_rows(folder / "test.tsv", pairs)


def cased_pairs(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    (path,) = text_pairs(folder, inputs, answers)
    return write_rows(path, [(source, target.upper()) for source, target in read_rows(path)])


def texts_of(rows: Rows, files: list[Path]) -> tuple[list[str], list[str]]:
    references = [unicodedata.normalize("NFC", target) for _, target in read_rows(files[0])]
    return [row["outputs"][0]["text"] for row in rows], references


def text_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    outputs, references = texts_of(rows, files)
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [references]).score,
        "ter": sacrebleu.corpus_ter(outputs, [references]).score,
    }


def uncased_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    outputs, references = texts_of(rows, files)
    lower = [reference.lower() for reference in references]
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, [references], lowercase=True).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [lower]).score,
        "ter": sacrebleu.corpus_ter(outputs, [references]).score,
    }


def exact_matches(rows: Rows, files: list[Path]) -> dict[str, float]:
    outputs, references = texts_of(rows, files)
    return {"exact_match": 100 * sklearn.accuracy_score(references, outputs)}


def write_images(folder: Path) -> list[str]:
    files = []
    for number in range(8):
        pixels = draw().integers(0, 256, (24, 24, 3), dtype=np.uint8)
        pixels[:, : 3 * number] = 20 * number
        files.append(str(folder / f"{number}.png"))
        Image.fromarray(pixels).save(files[-1])
    return files


def captions(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    rows = []
    for number, (file, answer) in enumerate(zip(inputs, answers, strict=True)):
        words = answer["outputs"][0]["text"].upper().split() or ["a"]
        rows += [(file, "A RED CIRCLE"), (file, " ".join(words[number % 2 :] or ["a"]))]
    return write_rows(folder / "test.tsv", rows)


def caption_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    texts = [text.lower() for _, text in read_rows(files[0])]
    outputs = [row["outputs"][0]["text"] for row in rows]
    pairs = [*zip(texts[::2], texts[1::2], strict=True)]
    hits = [output in own for output, own in zip(outputs, pairs, strict=True)]
    bleu = sacrebleu.corpus_bleu(outputs, [texts[::2], texts[1::2]], lowercase=True).score
    return {"bleu": bleu, "exact_match": 100 * float(np.mean(hits))}


# Tags, classes, labels and numbers

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def write_sentences(folder: Path) -> list[str]:
    random, lines = draw(), []
    for _ in range(30):
        lines += [f"{random.choice(WORDS)} {tag}" for tag in random.permutation(TAGS)] + [""]
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    return [" ".join(random.choice(WORDS, 6)) for _ in range(20)]


def sentences(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    random, lines = draw(), []
    for text, answer in zip(inputs, answers, strict=True):
        tags = np.where(random.random(6) < 0.6, answer["tags"], random.choice(TAGS, 6))
        lines.append(json.dumps({"tokens": text.split(), "tags": tags.tolist()}))
    (folder / "test.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return [folder / "test.jsonl"]


def tag_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    true = [json.loads(line)["tags"] for line in files[0].read_text().splitlines()]
    found = [row["tags"] for row in rows]
    names = {"f1": "f1_score", "precision": "precision_score", "recall": "recall_score"}
    scores = {f"entity_{a}": 100 * getattr(seqeval, b)(true, found) for a, b in names.items()}
    return scores | {"accuracy": 100 * seqeval.accuracy_score(true, found)}


def write_reviews(folder: Path, kind: str) -> list[str]:
    random, rows = draw(), []
    for number in range(40):
        label = {"class": "xyz"[number % 3], "labels": "xyz"[: number % 4], "number": number}[kind]
        if kind == "labels":
            label = ",".join(label) or "[]"
        rows.append((" ".join(random.choice(WORDS, 5)), label))
    write_rows(folder / "train.tsv", rows)
    return [" ".join(random.choice(WORDS, 5)) for _ in range(30)]


def classes(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    names = sorted(answers[0]["labels"])
    random = draw()
    rows = [("file", "label")] if Path(inputs[0]).exists() else []
    for given, answer in zip(inputs, answers, strict=True):
        rows.append((given, answer["label"] if random.random() < 0.6 else random.choice(names)))
    return write_rows(folder / f"test.{'csv' if len(rows) > len(inputs) else 'tsv'}", rows)


def class_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    true = [label for _, label in read_rows(files[0])[-len(rows) :]]
    found = [row["label"] for row in rows]
    likelihood = [row["labels"][label] for row, label in zip(rows, true, strict=True)]
    return {
        "accuracy": 100 * sklearn.accuracy_score(true, found),
        "macro_f1": 100 * sklearn.f1_score(true, found, average="macro"),
        "nll": -float(np.log(likelihood).mean()),
    }


def label_sets(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    random, rows = draw(), []
    for text, answer in zip(inputs, answers, strict=True):
        kept = set(answer["predicted"]) ^ {str(random.choice([*"xyz", ""]))}
        rows.append((text, ",".join(kept - {""}) or "[]"))
    return write_rows(folder / "test.tsv", rows)


def label_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    true = np.array([[name in own for name in "xyz"] for _, own in read_rows(files[0])])
    found = np.array([[name in row["predicted"] for name in "xyz"] for row in rows])
    probabilities = np.array([[row["labels"][name] for name in "xyz"] for row in rows])
    return {
        "micro_f1": 100 * sklearn.f1_score(true, found, average="micro"),
        "exact_match": 100 * sklearn.accuracy_score(true, found),
        "average_precision": 100 * sklearn.average_precision_score(true, probabilities),
    }


def numbers(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    noise = draw().normal(0, 1, len(inputs))
    values = [answer["values"]["value"] for answer in answers]
    return write_rows(folder / "test.tsv", [*zip(inputs, np.add(values, noise), strict=True)])


def number_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    true = [float(value) for _, value in read_rows(files[0])]
    found = [row["values"]["value"] for row in rows]
    return {
        "mae": sklearn.mean_absolute_error(true, found),
        "rmse": sklearn.root_mean_squared_error(true, found),
        "r2": sklearn.r2_score(true, found),
    }


def photos(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    (folder / "test" / "a").mkdir(parents=True)
    for file in inputs:
        shutil.copy(file, folder / "test" / "a")
    return [folder / "test"]


def rebuild_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    return {"mse": float(np.mean([row["error"] for row in rows]))}


# Events, tracks, boxes in clouds


def write_sounds(folder: Path) -> list[str]:
    files = [str(folder / f"{seconds}.wav") for seconds in (0.4, 1.0, 1.7, 4.3)]
    for file in files:
        sound = draw().normal(0, 0.2, round(8000 * float(Path(file).stem)))
        soundfile.write(file, sound * (np.arange(len(sound)) // 2000 % 2), 8000)
    return files


def events(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    random, rows = draw(), [("file", "onset", "duration", "label")]
    for file, answer in zip(inputs, answers, strict=True):
        rows.append((Path(file).name, "", "", ""))
        for event in answer["events"]:
            onset = abs(event["onset"] + random.choice([0.02, -0.04, 0.07]))
            if random.random() < 0.8 and onset < float(Path(file).stem) - 0.01:
                rows.append((Path(file).name, onset, event["duration"], event["label"]))
    return write_rows(folder / "test.csv", rows)


def event_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    true = defaultdict(list)
    for file, onset, _, label in read_rows(files[0])[1:]:
        if onset:
            true[file].append((float(onset), label))
    hits, total = 0, sum(map(len, true.values()))
    for row in rows:
        own = true[Path(row["file"]).name]
        total += len(row["events"])
        near = np.zeros((len(row["events"]), len(own)))
        for i, event in enumerate(row["events"]):
            for j, (onset, label) in enumerate(own):
                near[i, j] = label == event["label"] and abs(onset - event["onset"]) <= 0.05
        if near.size:
            hits += int((maximum_bipartite_matching(csr_array(near)) >= 0).sum())
    return {"f1": 200 * hits / total}


def write_recordings(folder: Path) -> list[str]:
    files = []
    for number in range(3):
        walk = draw().normal(0, 0.1 + number, (8, 3, 2)).cumsum(0)
        lines = [f"{t}\t{i}\t{x}\t{y}" for t in range(8) for i, (x, y) in enumerate(walk[t])]
        files.append(str(folder / f"{number}.txt"))
        Path(files[-1]).write_text("\n".join(lines))
    return files


def recordings(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    files = []
    for file, answer in zip(inputs, answers, strict=True):
        lines = Path(file).read_text().splitlines()
        for track in answer["tracks"]:
            noise = draw().normal(0, 0.3, (len(answer["frames"]), 2))
            path = np.add(track["positions"], noise)
            for frame, (x, y) in zip(answer["frames"], path, strict=True):
                lines.append(f"{frame:g}\t{track['id']}\t{x}\t{y}")
        files.append(folder / f"test-{Path(file).name}")
        files[-1].write_text("\n".join(lines))
    return files


def track_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    errors = []
    for row, file in zip(rows, files, strict=True):
        true = {(float(t), i): (float(x), float(y)) for t, i, x, y in read_tsv(file)}
        for track in row["tracks"]:
            path = [true[frame, track["id"]] for frame in row["frames"]]
            errors.append(np.linalg.norm(np.subtract(track["positions"], path), axis=-1))
    return {"ade": float(np.mean(errors)), "fde": float(np.mean(errors, 0)[-1])}


def best_track_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    """ADE and FDE of the most probable path, and of the best of all paths of each track."""
    least = []
    for row, file in zip(rows, files, strict=True):
        true = {(float(t), i): (float(x), float(y)) for t, i, x, y in read_tsv(file)}
        for track in row["tracks"]:
            path = [true[frame, track["id"]] for frame in row["frames"]]
            paths = np.array([one["positions"] for one in track["paths"]])
            error = np.linalg.norm(paths - path, axis=-1)
            least.append((error.mean(1).min(), error[:, -1].min()))
            assert track["positions"] == track["paths"][0]["positions"]
            assert sum(one["probability"] for one in track["paths"]) == pytest.approx(1)
    ade, fde = np.mean(least, 0).tolist()
    return track_scores(rows, files) | {"min_ade": ade, "min_fde": fde}


def read_tsv(file: Path) -> list[list[str]]:
    return [line.split("\t") for line in file.read_text().splitlines()]


def write_clouds(folder: Path) -> list[str]:
    files = [str(folder / f"{number}.npz") for number in range(6)]
    for number, file in enumerate(files):
        np.savez(file, points=draw().uniform(0, 1 + number, (40, 3)))
    return files


BOX = ("x", "y", "z", "dx", "dy", "dz")


def boxes(folder: Path, inputs: list[Any], answers: Rows) -> list[Path]:
    random, rows = draw(), [("file", *BOX, "label")]
    for file, answer in zip(inputs, answers, strict=True):
        for box in answer["boxes"][::2]:
            scale = random.uniform(0.7, 1.3, 3)
            sides = [box[name] * float(one) for name, one in zip(BOX[3:], scale, strict=True)]
            rows.append((file, *(box[name] for name in BOX[:3]), *sides, box["label"]))
    return write_rows(folder / "test.csv", rows)


def box_scores(rows: Rows, files: list[Path]) -> dict[str, float]:
    true, average = defaultdict(list), defaultdict(list)
    for file, *sides, label in read_rows(files[0])[1:]:
        true[label].append((Path(file).name, np.array(sides, float)))
    for label, own in true.items():
        found = []
        for row in rows:
            mine = [box for box in row["boxes"] if box["label"] == label]
            found += [(box["score"], Path(row["file"]).name, box) for box in mine]
        for threshold in (0.25, 0.5):
            free, hits = [True] * len(own), []
            for _, file, box in sorted(found, key=lambda one: -one[0]):
                sides = np.array([box[name] for name in BOX])
                ious = [iou(sides, b) if f == file else 0 for f, b in own]
                best = max(range(len(own)), key=lambda i: ious[i] * free[i])
                hits.append(ious[best] * free[best] >= threshold)
                free[best] = free[best] and not hits[-1]
            precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
            recall = np.cumsum(hits) / len(own)
            points = [precision[recall >= r].max(initial=0) for r in np.linspace(0, 1, 101)]
            average[threshold].append(100 * np.mean(points))
    return {"ap25": np.mean(average[0.25]), "ap50": np.mean(average[0.5])}


def iou(a: Any, b: Any) -> float:
    low = np.maximum(a[:3] - a[3:] / 2, b[:3] - b[3:] / 2)
    both = (np.minimum(a[:3] + a[3:] / 2, b[:3] + b[3:] / 2) - low).clip(0).prod()
    return both / (a[3:].prod() + b[3:].prod() - both)


TRAIN = "--data.train {0}/train.tsv"
MORE = "--train.steps 25 --train.lr 0.01 --train.warmup 0"
CASES = {
    "translate": Case("translate", f"{TRAIN} {MORE}", write_pairs, text_pairs, text_scores),
    "lowercase": Case(
        "translate",
        f"{TRAIN} {MORE} --tokenizer.lowercase true",
        write_pairs,
        cased_pairs,
        uncased_scores,
    ),
    "dates": Case("dates", MORE, write_pairs, text_pairs, exact_matches),
    "caption": Case("caption", MORE, write_images, captions, caption_scores),
    "tags": Case(
        "tags", f"--data.train {{0}}/train.txt {MORE}", write_sentences, sentences, tag_scores
    ),
    "class": Case("reviews", TRAIN, lambda at: write_reviews(at, "class"), classes, class_scores),
    "labels": Case(
        "reviews",
        f"{TRAIN} --data.target labels",
        lambda at: write_reviews(at, "labels"),
        label_sets,
        label_scores,
    ),
    "number": Case(
        "reviews",
        f"{TRAIN} --data.target number",
        lambda at: write_reviews(at, "number"),
        numbers,
        number_scores,
    ),
    "images": Case("images", "", write_images, classes, class_scores),
    "rebuild": Case("rebuild", "", write_images, photos, rebuild_scores),
    "events": Case("events", "", write_sounds, events, event_scores, "--threshold 0.01"),
    "tracks": Case("tracks", "", write_recordings, recordings, track_scores),
    "joint tracks": Case(
        "tracks", "--model.joint true", write_recordings, recordings, track_scores
    ),
    "tracks of 4 paths": Case(
        "tracks", "--model.paths 4", write_recordings, recordings, best_track_scores
    ),
    "joint tracks of 4 paths": Case(
        "tracks",
        "--model.joint true --model.paths 4",
        write_recordings,
        recordings,
        best_track_scores,
    ),
    "points": Case("points", "", write_clouds, boxes, box_scores, "--threshold 0"),
}


@pytest.mark.parametrize("name", CASES)
def test_scores_of_a_test_file_are_those_of_the_answers(tmp_path, capsys, name):
    case, run = CASES[name], tmp_path / "run"
    inputs = case.inputs(tmp_path)
    own, words = case.options.format(tmp_path).split(), quick_options(case.recipe)
    if "--data.train" in own:
        words = words[words.index(next(w for w in words if w.startswith("--model"))) :]
    assert main(["train", case.recipe, "--run", str(run), *words, *own]) == 0
    change = case.change.split()
    command("predict", run, *inputs, "--json", "--out", tmp_path / "first", *change)
    answers = [json.loads(line) for line in (tmp_path / "first").read_text().splitlines()]
    files = case.write(tmp_path, inputs, answers)
    scores = printed_json(capsys, "evaluate", run, "--data.test", *files, *change)
    again = inputs if case.recipe == "tracks" else files  # the future is not an input
    lines = printed(capsys, "predict", run, *again, "--json", *change).splitlines()
    expected = case.score([*map(json.loads, lines)], files)
    assert {key: scores[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    check_answers(load(run), answers, origin=("input", "file", "line", "source"))
    assert all(0 < value < 100 for key, value in expected.items() if key not in ("ter", "r2"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_answers_are_json_and_depend_on_nothing_but_the_inputs(tmp_path, recipe):
    assert main(["train", recipe, "--run", str(tmp_path), *quick_options(recipe)]) == 0
    run = load(tmp_path, notify=lambda _: None)
    given = [run.test_input(0)]
    assert (len(run.predict([])), run.answer([])) == (0, [])
    assert run.predict([None], on_bad="skip") == [None]
    assert "error" in run.answer([None], on_bad="skip")[0]
    answers = run.answer(given)
    assert json.loads(json.dumps(answers)) == answers
    options = {"threshold": 0.0} if hasattr(run.config, "threshold") else {}
    (answer,) = run.answer(given, **options)
    check_answers(run, [answer])
    for changed in changed_keys(answer):
        with pytest.raises(jsonschema_rs.ValidationError):
            check_answers(run, [changed])
    with torch.autocast("cpu", torch.bfloat16):
        assert run.answer(given) == answers
        scores = run.evaluate()
    assert run.evaluate() == scores
