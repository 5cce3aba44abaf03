"""Runs of set prediction, from files to answers: boxes in images, events in sound."""

import contextlib
import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy.io import wavfile

from regard.data.sound.events import SoundEvent
from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.figures.results import plot_boxes
from regard.look.hooks import record_weights
from regard.look.maps import GRADIENT
from regard.models.writers.sets import SetPredictions
from regard.recipes.events.recipe import EventPrediction
from regard.recipes.load import load
from regard.recipes.metrics.detection import Detections, Truth, average_precision
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
    is_equal,
    predict_each,
)
from tests.recipes.commands import command, failure, printed, printed_json, report

_BEST = SetPredictions.best
_OTHER = ("ar1", "ar10")
"""Scores of COCO that are not reported."""
SMALL = (
    "--model.nms-threshold 0.3 --model.core.width 24 --model.core.layers 1 --model.core.heads 2 "
    "--model.core.feedforward 32 --model.dropout 0 --train.warmup 10 --train.validate-every 160 "
    "--train.tensorboard false --train.precision float32 --train.lr 5e-3"
)


def picture(draw: np.random.Generator) -> tuple[Image.Image, list[tuple]]:
    """Return an image with up to two red or green squares on black, and their boxes."""
    pixels, boxes = np.zeros((24, 32, 3), np.uint8), []
    for offset in (0, 16):
        if draw.random() < 0.7:
            kind, side = int(draw.integers(2)), int(draw.integers(6, 11))
            x, y = offset + int(draw.integers(0, 16 - side)), int(draw.integers(0, 24 - side))
            pixels[y : y + side, x : x + side, kind] = 255
            boxes.append((x, y, side, side, ("red", "green")[kind]))
    return Image.fromarray(pixels), boxes


def write_csv(path: Path, rows: list[tuple]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("boxes"), np.random.default_rng(1)
    files = ""
    for split, count in (("train", 60), ("val", 10), ("test", 20)):
        (folder / split).mkdir()
        rows = [("file", "x", "y", "width", "height", "label")]
        for i in range(count):
            image, image_boxes = picture(draw)
            image.save(folder / split / f"{i}.png")
            rows += [(f"{i}.png", *row) for row in image_boxes or [("",) * 5]]
        write_csv(folder / f"{split}.csv", rows)
        files += f"--data.{split} {folder}/{split}.csv --data.{split}-images {folder}/{split} "
    size = "--data.width 32 --data.height 24 --downsampling-layers 2 --model.num-queries 4"
    limits = "--batch 16 --train.steps 160"
    command(f"train boxes --run {folder}/run {files} {size} {SMALL} {limits}")
    return folder


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Train on low and high tones of a tenth to a third of a second, up to two in a second."""
    folder, draw = tmp_path_factory.mktemp("events"), np.random.default_rng(2)
    files = ""
    for split, count in (("train", 60), ("val", 10), ("test", 20)):
        rows = [("file", "onset", "duration", "label")]
        for i in range(count):
            sound, name, before = draw.normal(0, 0.005, 2000), f"{split}{i}.wav", len(rows)
            for first in (0.0, 0.5):
                if draw.random() < 0.7:
                    high, duration = bool(draw.integers(2)), draw.uniform(0.1, 0.33)
                    onset = first + draw.uniform(0, 0.45 - duration)
                    time = np.arange(round(duration * 2000)) / 2000
                    start = round(onset * 2000)
                    tone = np.sin(2 * np.pi * (600 if high else 200) * time)
                    sound[start : start + len(time)] += 0.5 * tone
                    rows.append((name, onset, duration, "high" if high else "low"))
            wavfile.write(folder / name, 2000, (sound * 32767).astype(np.int16))
            if len(rows) == before:
                rows.append((name, "", "", ""))
        write_csv(folder / f"{split}.csv", rows)
        files += f"--data.{split} {folder}/{split}.csv "
    size = "--data.seconds 1 --data.sample-rate 2000 --data.bands 12 --channels 16"
    limits = "--model.num-queries 4 --batch 16 --train.steps 160"
    command(f"train events --run {folder}/run {files} {size} {SMALL} {limits}")
    return folder


@pytest.mark.parametrize(
    ("recipe", "path", "metric", "least"),
    [("boxes", "test/0.png", "ap50", 80), ("events", "test0.wav", "f1", 70)],
)
def test_detections_scores_and_references(  # noqa: PLR0917
    recipe, path, metric, least, request, tmp_path, capsys
):
    folder = request.getfixturevalue(recipe)
    run, test = folder / "run", report(folder / "run")
    assert test[metric] > least
    assert test["examples"] == 20
    (predictions,) = load(run).predict([folder / path])
    rows = [line.split("\t") for line in printed(capsys, "predict", run, folder / path).split("\n")]
    answers = printed_json(capsys, "predict", run, folder / path)[recipe]
    for row, answer, found in zip(rows[:-1], answers, predictions, strict=True):
        assert row[0] == answer["label"] == found.label
        numbers = [value for key, value in answer.items() if key not in ("label", "score")]
        assert [float(cell) for cell in row[2:]] == pytest.approx(numbers, abs=0.06)
        assert numbers == [getattr(found, key) for key in answer if key not in ("label", "score")]
    # References of evaluated sets are those of test.csv, with the keys of predictions.
    out = tmp_path / "answers.jsonl"
    assert f"{test[metric]:.4g}\n" in printed(capsys, "evaluate", run, "--predictions", out)
    evaluated = [json.loads(line) for line in out.read_text().splitlines()]
    references = [item for answer in evaluated for item in answer["reference"]]
    with (folder / "test.csv").open(newline="") as file:
        expected = [row for row in csv.DictReader(file) if row["label"]]
    for reference, row in zip(references, expected, strict=True):
        assert reference["label"] == row["label"]
        assert [*reference] == [key for key in answers[0] if key != "score"]
        for key in reference.keys() - {"label"}:
            assert reference[key] == pytest.approx(float(row[key]), abs=1e-3)
    # The file of the test data given again has the same scores; a look draws a picture.
    other = ["--data.test", folder / "test.csv"]
    other += ["--data.images", folder / "test"] if recipe == "boxes" else []
    assert printed_json(capsys, "evaluate", run, *other) == test
    command("look", run, folder / path, "--out", tmp_path / "seen.png")
    with Image.open(tmp_path / "seen.png") as figure:
        assert figure.size[0] > 300


def test_threshold_of_evaluate_and_look(boxes, capsys):
    run, folder, image = load(boxes / "run"), boxes / "run", str(boxes / "test" / "0.png")
    rows = {}
    for threshold in ("0", "0.4", "1"):
        rows[threshold] = printed_json(capsys, "evaluate", folder, "--threshold", threshold)
    assert rows["0"]["ap"] == rows["1"]["ap"]  # all boxes are ranked
    recalls = [scores["classes"]["red"]["recall"] for scores in rows.values()]
    assert recalls == sorted(recalls, reverse=True)
    assert recalls[-1] == 0
    assert run.evaluate()["classes"] == rows["0.4"]["classes"]  # the run's own threshold
    title = run.look([image], threshold=0.0)[0].sample.title
    counts = re.findall(r"(?:red|green) (\d+)", title)
    assert sum(map(int, counts)) == 4  # every query
    assert run.look([image], threshold=1.0)[0].sample.title.endswith("nothing")


def test_boxes_are_clipped_to_the_image(boxes, monkeypatch):
    regions = torch.tensor([[0.9, 0.45, 0.6, 0.4], [0.0, 0.0, 0.1, 0.1]])

    def best(predictions):
        score, label, region = _BEST(predictions)
        region = region.clone()
        region[0, :2] = regions
        return score, label, region

    monkeypatch.setattr(SetPredictions, "best", best)
    image = Image.new("RGB", (64, 24))  # scaled by 1/2: 32 x 12, and padding below
    found = load(boxes / "run").predict([image], threshold=0.0)[0]
    assert all(box.x >= 0 and box.y >= 0 for box in found)
    assert all(box.x + box.width <= 64 and box.y + box.height <= 24 for box in found)
    # Center 0.9 of 32 and 0.45 of 24 pixels, sizes 0.6 and 0.4, twice as large in the image.
    assert found[0][2:] == pytest.approx((38.4, 12, 64 - 38.4, 12))


def test_results_have_the_ids_of_a_coco_file(boxes, capsys, tmp_path):
    with Image.open(boxes / "test" / "0.png") as image:
        image.save(tmp_path / "a.png")
    file, out = tmp_path / "test.json", tmp_path / "results.json"
    content = {
        "images": [{"id": 77, "file_name": "a.png", "width": 32, "height": 24}],
        "categories": [{"id": 5, "name": "red"}, {"id": 9, "name": "green"}],
        "annotations": [],
    }
    file.write_text(json.dumps(content))
    command("predict", boxes / "run", file, "--coco", "--out", out)
    results, trained = json.loads(out.read_text()), load(boxes / "run")
    found = trained.predict([tmp_path / "a.png"], threshold=0.0)[0]
    assert len(found) > len(trained.predict([tmp_path / "a.png"])[0])  # all boxes
    assert [row["image_id"] for row in results] == [77] * len(found)
    numbers = {"red": 5, "green": 9}
    assert [row["category_id"] for row in results] == [numbers[box.label] for box in found]
    for row, box in zip(results, found, strict=True):
        assert row["bbox"] == [*box[2:]]
    words = ("predict", boxes / "run", tmp_path / "a.png", "--coco", "--threshold", "1")
    assert json.loads(printed(capsys, *words)) == []
    content["categories"] = [{"id": 5, "name": "red"}]
    file.write_text(json.dumps(content))
    message = failure(capsys, "predict", boxes / "run", file, "--coco")
    assert "has no category 'green'" in message


def coco_scores(content: dict, results: list[dict]) -> dict[str, float]:
    """Return the scores of pycocotools in percent, without those of sizes that do not occur."""
    truth = COCO()
    truth.dataset = content
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    sizes = ("small", "medium", "large")
    names = ["ap", "ap50", "ap75", *(f"ap_{size}" for size in sizes)]
    names += ["ar1", "ar10", "ar", *(f"ar_{size}" for size in sizes)]
    scores = dict(zip(names, (100 * evaluation.stats).tolist(), strict=True))
    return {name: score for name, score in scores.items() if score >= 0 and name not in _OTHER}


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_coco_with_crowds_areas_and_many_detections(seed):
    draw, names = np.random.default_rng(seed), ("a", "b")
    truths, detections, annotations, results = [], [], [], []
    for image in range(1, 4):
        count = int(draw.integers(0, 40))
        boxes = np.hstack((draw.uniform(0, 400, (count, 2)), draw.uniform(5, 150, (count, 2))))
        truth = Truth(
            boxes, draw.integers(0, 2, count), draw.uniform(9, 2e4, count), draw.random(count) < 0.2
        )
        truths.append(truth)
        for box, kind, area, is_crowd in zip(*truth, strict=True):
            entry = {"id": len(annotations) + 1, "image_id": image, "category_id": int(kind)}
            entry |= {"bbox": box.tolist(), "area": area, "iscrowd": int(is_crowd)}
            annotations.append(entry)
        near = np.vstack([boxes + draw.normal(0, spread, boxes.shape) for spread in (1, 3, 9)])
        far = np.hstack((draw.uniform(0, 400, (220, 2)), draw.uniform(5, 90, (220, 2))))
        found = np.vstack((near, far))
        scores = np.sort(draw.uniform(0, 1, len(found)))[::-1]
        kinds = np.append(np.tile(truth.classes, 3), draw.integers(0, 2, 220))
        order = draw.permutation(len(found))
        detections.append(Detections(scores, kinds[order], found[order]))
        for score, kind, box in zip(*detections[-1][:3], strict=True):
            entry = {"image_id": image, "category_id": int(kind), "bbox": box.tolist()}
            results.append(entry | {"score": float(score)})
    content = {
        "images": [{"id": image} for image in range(1, 4)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
        "annotations": annotations,
    }
    scores = average_precision(detections, truths, names, threshold=0.5)
    expected = coco_scores(content, results)
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert expected["ap"] > 1
    assert set(scores) == {*expected, "classes"}


def test_evaluation_equals_that_of_coco_on_written_results(boxes, capsys, tmp_path):
    # Images of other sides, whose scaled sides are rounded; areas of masks, a crowd in some, and
    # boxes beyond the image.
    draw = np.random.default_rng(5)
    images, annotations = [], []
    for number in range(24):
        image, rows = picture(draw)
        wide, high = int(draw.integers(20, 90)), int(draw.integers(9, 60))
        image.resize((wide, high), Image.Resampling.BILINEAR).save(tmp_path / f"{number}.png")
        images.append({"id": 100 - number, "file_name": f"{number}.png"})
        for x, y, width, height, label in rows:
            box = [x * wide / 32, y * high / 24, width * wide / 32, height * high / 24]
            box[2 + number % 2] += 3.3 * (number % 5 == 0)
            entry = {"id": len(annotations) + 1, "image_id": 100 - number, "bbox": box}
            entry |= {"category_id": 5 if label == "red" else 9, "iscrowd": int(number % 6 == 1)}
            annotations.append(entry | {"area": float(draw.choice([box[2] * box[3], 1500.0]))})
    content = {"images": images, "annotations": annotations}
    content["categories"] = [{"id": 5, "name": "red"}, {"id": 9, "name": "green"}]
    file, out = tmp_path / "test.json", tmp_path / "results.json"
    file.write_text(json.dumps(content))
    command("predict", boxes / "run", file, "--coco", "--out", out)
    expected = coco_scores(content, json.loads(out.read_text()))
    assert {"ap_small", "ap_medium"} < set(expected)
    assert expected["ap"] > 10
    scores = printed_json(capsys, "evaluate", boxes / "run", "--data.test", file)
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_boxes_name_the_queries_that_predicted_them(boxes):
    trained, path = load(boxes / "run"), boxes / "test" / "1.png"
    with Image.open(path) as image:
        pixels = np.array(image)
    (sample_maps,) = check_capture(trained, [path])
    shown, queries = sample_maps.sample.pictures["image"], sample_maps.sample.axes["queries"]
    names = trained.recipe.labels.names
    assert shown.labels == names
    assert np.array_equal(shown.pixels, pixels)  # they have the input size of the model
    source = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    with record_weights(trained.model) as maps, torch.no_grad():
        outputs: SetPredictions = trained.model(source)
    scores, labels = outputs.logits[0].sigmoid().max(-1)
    for number, (label, place) in enumerate(zip(queries.labels, queries.places, strict=True)):
        assert label == f"{names[labels[number]]} {scores[number]:.2f}"
        x, y, width, height = outputs.regions[0, number].tolist()
        assert place == pytest.approx((x - width / 2, y - height / 2, width, height), abs=1e-5)
    for box, answer in zip(shown.boxes, trained.predict([path])[0], strict=True):
        assert (box.label, box.score) == answer[:2]
        assert box.score == pytest.approx(float(scores[box.query]), abs=1e-6)
        assert box.place == queries.places[box.query]
        assert np.array(box.place) * (32, 24, 32, 24) == pytest.approx(answer[2:], abs=1e-3)
    for cross in sample_maps.find("cross"):
        torch.testing.assert_close(cross.weights, maps[cross.name][0][0], atol=1e-5, rtol=0)
    assert len(sample_maps.sample.axes["source"]) == (24 // 4) * (32 // 4)


def test_gradients_are_those_of_the_detected_boxes(boxes, tmp_path):
    trained, path = load(boxes / "run"), boxes / "test" / "1.png"
    check_gradients(trained, [path])
    (predictions,) = trained.predict([path])
    assert predictions
    expected = sum(np.log(box.score) for box in predictions)
    assert answer_log_probs(trained, [path])[0]().item() == pytest.approx(expected, abs=1e-4)
    black = np.zeros((24, 32, 3), np.uint8)
    assert trained.predict([black]) == [[]]
    with pytest.raises(UserError, match=r"no box is detected in it, .* a lower threshold"):
        trained.look([black], gradients=True)
    with_boxes, without_boxes = trained.look([path, black], gradients=True)
    assert with_boxes.find("cross", measure=GRADIENT)
    assert without_boxes.find("cross")
    assert not without_boxes.find("cross", measure=GRADIENT)
    trained.look([black]).plot(tmp_path / "black.svg")
    assert "nothing" in (tmp_path / "black.svg").read_text(encoding="utf-8")


def test_images_are_files_arrays_or_images_rotated_by_exif(boxes, tmp_path, capsys):
    trained, path, exif = load(boxes / "run"), boxes / "test" / "1.png", Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        inputs = [path, image.copy(), np.asarray(image)]
        image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "1.png", exif=exif)
    with Image.open(tmp_path / "1.png") as image:
        assert image.size == (24, 32)
        answers = predict_each(trained, [*inputs, tmp_path / "1.png", image])
    assert answers[0] != []
    assert all(is_equal(answers[0], answer) for answer in answers)
    titles = [maps.sample.title.partition(" -> ")[0] for maps in check_capture(trained, inputs)]
    assert titles == ["1.png", "image 2", "image 3"]
    assert check_test_input(trained).size == (32, 24)
    with pytest.raises(UserError, match=r"input 1: .* got float64 of \(24, 32, 3\)"):
        trained.predict([inputs[2].astype(float)])
    table = "file,x,y,width,height,label\n1.png,1,1,4,4,red\ngone.png,1,1,4,4,red\n"
    (tmp_path / "one.csv").write_text(table)
    command("evaluate", boxes / "run", "--data.test", tmp_path / "one.csv", "--data.on-bad", "skip")
    assert "one.csv: skipped 1 of the images and boxes; first: " in capsys.readouterr().err


def test_figures_show_boxes_on_the_image_at_its_own_size(boxes, tmp_path, monkeypatch):
    figures = []

    def keep_figure(figure, image, **options):
        figures.append(figure)
        plot_boxes(figure, image, **options)

    monkeypatch.setattr("regard.look.figures.draw.plot_boxes", keep_figure)
    trained = load(boxes / "run")
    with Image.open(boxes / "test" / "1.png") as image:
        large = image.convert("RGB").resize((128, 144))  # padded on the right
    trained.look([large], threshold=0.0).plot(tmp_path / "a.png")
    axes = figures[0].axes[0]
    pixels = axes.images[0].make_image(None, unsampled=True)[0]
    assert np.array_equal(pixels[..., :3], np.asarray(large))
    expected = [box[2:] for box in trained.predict([large], threshold=0.0)[0]]
    frames = [frame.get_bbox().bounds for frame in axes.patches]
    assert np.allclose(np.add(frames, (0.5, 0.5, 0, 0)), expected, atol=1e-3)


def test_images_smaller_than_the_input_size_are_shown_with_padding(boxes):
    (maps,) = check_capture(load(boxes / "run"), [np.zeros((24, 16, 3), np.uint8)])
    pixels = maps.sample.pictures["image"].pixels
    assert pixels.shape == (24, 32, 3)
    assert (pixels[:, :16] == 0).all()
    assert (pixels[:, 16:] == 128).all()


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_perfect_detector_finds_each_event_of_a_long_sound_once_and_whole(
    events, monkeypatch, noise
):
    """Samples encode their own time. Events are up to four segments long, and cut by edges."""
    random = np.random.default_rng(3)
    true_events, ends = [], [0.0, 0.0]
    for i in range(60):
        onset = max(ends[i % 2], ends[i % 2 - 1] - 0.2) + random.uniform(0.05, 0.3)
        duration = random.choice([0.1, 0.4, 0.7, 1.2, 3.9])
        true_events.append(SoundEvent(onset, duration, "ab"[i % 2]))
        ends[i % 2] = onset + duration  # events of different labels may overlap
    true_events.sort()

    def detect(_model, source):
        rows = []
        for start in (source[:, 0].double() * 32768 / 200).tolist():
            row = []
            for event in true_events:
                first, last = max(start, event.onset), min(start + 1, event.offset)
                if last - first >= min(1, event.duration) / 3:
                    first, last = np.add((first, last), random.uniform(-noise, noise, 2))
                    part = SoundEvent(first - start, last - first, event.label)
                    row.append(EventPrediction(part, 0.9))
            rows.append(row)
        return rows

    run = load(events / "run")
    monkeypatch.setattr(run.recipe, "detect", detect)
    sound = (np.arange(round(2000 * (max(ends) + 1))) // 10).astype(np.int16)  # a number every 5 ms
    (predictions,) = run.predict([sound])
    assert [event.label for event in predictions] == [event.label for event in true_events]
    for field in ("onset", "offset"):
        expected = [getattr(event, field) for event in true_events]
        found = [getattr(event, field) for event in predictions]
        assert found == pytest.approx(expected, abs=noise + 0.006)


def test_events_are_clipped_to_the_sound(events, monkeypatch):
    run = load(events / "run")
    found = [SoundEvent(-0.1, 0.4, "a"), SoundEvent(0.3, 0.6, "b"), SoundEvent(0.7, 0.2, "c")]
    rows = [[EventPrediction(event, 0.9) for event in found]]
    monkeypatch.setattr(run.recipe, "detect", lambda *_: rows)
    (predictions,) = run.predict([np.zeros(round(0.75 * 2000), np.int16)])
    first, second = predictions  # the middle of c is after the end
    assert (first.label, first.onset, first.duration) == ("a", 0, pytest.approx(0.3))
    assert (second.label, second.onset, second.duration) == ("b", 0.3, pytest.approx(0.45))


def test_events_name_the_queries_that_predicted_them(events):
    trained, path = load(events / "run"), events / "test0.wav"
    samples, names = wavfile.read(path)[1], trained.recipe.labels.names
    (sample_maps,) = check_capture(trained, [path])
    sound, queries = sample_maps.sample.pictures["sound"], sample_maps.sample.axes["queries"]
    assert (sound.seconds, sound.labels, sound.bands.shape) == (1, names, (12, 100))
    with torch.no_grad():
        outputs = trained.model(torch.from_numpy(samples).float()[None] / 32768)
    scores, labels = outputs.logits[0].sigmoid().max(-1)
    (predictions,) = trained.predict([path])
    found = sorted((event.onset, event.label) for event in sound.events)
    assert found == [(event.onset, event.label) for event in predictions]
    for number, place in enumerate(queries.places):
        middle, duration = outputs.regions[0, number].tolist()
        assert place == pytest.approx((middle - duration / 2, middle + duration / 2), abs=1e-5)
    for event in sound.events:
        assert event.score == pytest.approx(float(scores[event.query]), abs=1e-6)
        assert event.label == names[labels[event.query]]
        start, stop = queries.places[event.query]
        assert (event.onset, event.duration) == pytest.approx((start, stop - start), abs=1e-5)
    source = sample_maps.sample.axes["source"]
    assert len(source) == 25
    assert source.places[0] == pytest.approx((0, 0.035))  # four frames, the first cut in half
    assert source.places[10] == pytest.approx((0.395, 0.435), abs=1e-6)
    assert sample_maps.find("cross")[0].weights.shape == (2, len(queries), 25)


def test_files_of_a_table_are_inputs_by_their_names(events, capsys):
    words = ("predict", events / "run", events / "test.csv", "--json", "--threshold", "0")
    rows = [json.loads(line) for line in printed(capsys, *words).splitlines()]
    assert [row["file"] for row in rows] == [str(events / f"test{i}.wav") for i in range(20)]
    (expected,) = load(events / "run").predict([events / "test0.wav"], threshold=0.0)
    onsets = [event["onset"] for event in rows[0]["events"]]
    assert onsets == pytest.approx([event.onset for event in expected])


def test_long_sounds_have_a_sample_for_each_segment_and_one_picture(events, tmp_path):
    trained = load(events / "run")
    long = np.concatenate([wavfile.read(events / f"test{i}.wav")[1] for i in range(3)])
    capture = check_capture(trained, [long[:4000], long[:1500]])
    names = [sample_maps.sample.title.partition(" -> ")[0] for sample_maps in capture]
    assert names == ["sound 1, 0 to 1 s", "sound 1, 0.5 to 1.5 s", "sound 1, 1 to 2 s", "sound 2"]
    detected = []
    for sample_maps in capture[:3]:
        sound = sample_maps.sample.pictures["sound"]
        detected += [(sound.begin + event.onset, event.label) for event in sound.events]
    (expected,) = trained.predict([long[:4000]])
    for (onset, label), event in zip(sorted(detected), expected, strict=True):
        assert (label, onset) == (event.label, pytest.approx(event.onset, abs=1e-6))
    capture = trained.look([long])
    path = capture.plot(tmp_path / "long.svg")
    labels = re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))
    assert "sound 1" in labels
    shown = [label.split()[0] for label in labels if re.fullmatch(r"(low|high) 0\.\d\d", label)]
    assert shown == [event.label for event in trained.predict([long])[0]]
    capture.save(tmp_path / "long.safetensors")
    second = Capture.open(tmp_path / "long.safetensors").plot(tmp_path / "again.svg")
    assert re.findall(r">([^<>]+)</text>", second.read_text(encoding="utf-8")) == labels


def test_gradients_are_those_of_the_events_of_each_segment(events):
    trained = load(events / "run")
    sounds = [wavfile.read(events / f"test{i}.wav")[1] for i in range(6)]
    with_events = [sound for sound in sounds if trained.predict([sound]) != [[]]][:2]
    long = np.concatenate(with_events)
    capture, parts = trained.look([long], gradients=True), answer_log_probs(trained, [long])
    assert [len(row.samples) for row in trained.recipe.preprocess(long, 1)] == [2000] * 3
    count = 0
    for part, sample_maps in zip(parts, capture, strict=True):
        scores = [event.score for event in sample_maps.sample.pictures["sound"].events]
        names = [attention_map.name for attention_map in sample_maps.find()]
        changed = [attention_map.name for attention_map in sample_maps.find(measure=GRADIENT)]
        assert changed == (names if scores else [])
        if scores:
            assert part().item() == pytest.approx(np.log(scores).sum(), abs=1e-4)
            count += 1
    assert count > 1
    check_gradients(trained, with_events)
    with pytest.raises(UserError, match="no event is detected in it"):
        trained.look([np.zeros(2000, np.int16)], gradients=True)


def test_samples_are_accepted_as_integers_and_floats(events):
    trained = load(events / "run")
    samples = wavfile.read(events / "test0.wav")[1]
    expected = trained.predict([events / "test0.wav"])
    for same in (samples, samples.astype(">i2"), samples / 32768):
        assert trained.predict([same]) == expected
    assert np.array_equal(check_test_input(trained), samples)
    loud, unknown = samples.astype(float), np.full(9, np.nan)
    for bad in (samples[None], samples[:0], samples.astype(np.int32), loud, unknown):
        with pytest.raises(UserError, match="input 1: samples must be one row of int16, or of"):
            trained.predict([bad])


def test_runs_without_any_data(tmp_path):
    sizes = "--data.epoch-size 8 --data.val-size 4 --data.test-size 4"
    for name, words in (
        ("boxes", "--data.width 32 --data.height 24 --downsampling-layers 2"),
        ("events", f"--data.seconds 2 --data.bands 12 {sizes}"),
    ):
        command(f"train {name} {words} --run {tmp_path / name} {SMALL} --train.steps 2 --batch 2")
        assert report(tmp_path / name)["examples"] > 3
