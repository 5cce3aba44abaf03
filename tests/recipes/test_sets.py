"""Runs of set prediction, from files to answers: boxes in images, events in sound."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import wavfile

from regard.cli.main import main
from regard.data.sound import files as sound_files
from regard.data.sound.events import SoundEvent
from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.figures.results import plot_boxes
from regard.look.hooks import record_weights
from regard.look.maps import GRADIENT
from regard.models.writers.sets import SetPredictions
from regard.recipes.events.recipe import EventPrediction
from regard.recipes.load import load
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
    is_equal,
    predict_each,
)

_BEST = SetPredictions.best
LIMITS = (
    "--train.warmup 10 --train.validate-every 100 --train.tensorboard false "
    "--train.precision float32 --train.lr 3e-3"
)
SMALL = (
    "--model.nms-threshold 0.3 --model.core.width 24 --model.core.layers 1 --model.core.heads 2 "
    "--model.core.feedforward 32 "
    "--model.dropout 0"
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


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("boxes"), np.random.default_rng(1)
    for split, count in (("train", 60), ("val", 10), ("test", 20)):
        (folder / split).mkdir()
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["file", "x", "y", "width", "height", "label"])
            for i in range(count):
                image, image_boxes = picture(draw)
                image.save(folder / split / f"{i}.png")
                writer.writerows(
                    [(f"{i}.png", *box) for box in image_boxes]
                    or [(f"{i}.png", "", "", "", "", "")]
                )
    files = " ".join(
        f"--data.{name} {folder / name}.csv --data.{name}-images {folder / name}"
        for name in ("train", "val", "test")
    )
    size = (
        "--data.width 32 --data.height 24 --downsampling-layers 2 "
        "--model.num-queries 4 --batch 16 --train.steps 300"
    )
    assert main(f"train boxes --run {folder / 'run'} {files} {size} {SMALL} {LIMITS}".split()) == 0
    return folder


def test_boxes_are_detected(boxes, capsys):
    test = json.loads((boxes / "run" / "report.json").read_text())["test"]
    assert test["ap50"] > 80
    assert test["examples"] == 20
    assert main(["predict", str(boxes / "run"), str(boxes / "test" / "0.png")]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line]
    (predictions,) = load(boxes / "run").predict([boxes / "test" / "0.png"])
    assert [(row[0], *map(float, row[2:])) for row in rows] == [
        (box.label, *(pytest.approx(number, abs=0.06) for number in box[2:])) for box in predictions
    ]


def check_references(run, found, tmp_path):
    """Check that references of evaluated sets are those of test.csv, with the keys of
    predictions."""
    out = tmp_path / "answers.jsonl"
    assert main(["evaluate", str(run / "run"), "--predictions", str(out)]) == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    with (run / "test.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["label"]]
    references = [
        (item["label"], *item.values()) for answer in answers for item in answer["reference"]
    ]
    names = [name for name in rows[0] if name not in ("file", "label")]
    assert [reference[2:] for reference in references] == [
        tuple(pytest.approx(float(row[name]), abs=1e-3) for name in names) for row in rows
    ]
    assert [reference[0] for reference in references] == [row["label"] for row in rows]
    keys = {
        tuple(key for key in item if key != "score") for answer in answers for item in answer[found]
    }
    assert (
        keys
        == {tuple(item) for answer in answers for item in answer["reference"]}
        == {("label", *names)}
    )


def test_references_of_boxes_have_the_form_of_predictions(boxes, tmp_path):
    check_references(boxes, "boxes", tmp_path)


def test_references_of_events_have_the_form_of_predictions(events, tmp_path):
    check_references(events, "events", tmp_path)


def test_boxes_are_scored_on_other_files_and_drawn(boxes, capsys):
    assert main(["evaluate", str(boxes / "run"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(boxes / "run")]) == 0
    output = capsys.readouterr().out
    assert re.search(rf"AP50, % +{scores['ap50']:.4g}\n", output)
    assert re.search(
        r"classes +AP50, % +precision, % +recall, % +F1, % +examples\n +green +\d", output
    )
    arguments = ["--data.test", str(boxes / "test.csv"), "--data.images", str(boxes / "test")]
    assert main(["evaluate", str(boxes / "run"), "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out) == scores
    out = boxes / "seen.png"
    assert main(["look", str(boxes / "run"), str(boxes / "test" / "1.png"), "--out", str(out)]) == 0
    with Image.open(out) as figure:
        assert figure.size[0] > 300
    with pytest.raises(UserError, match="already exists"):
        load(boxes / "run").look([str(boxes / "test" / "1.png")]).plot(out)


def test_threshold_of_evaluate_and_look(boxes, capsys):
    run, folder = load(boxes / "run"), str(boxes / "run")
    rows = {}
    for threshold in ("0", "0.4", "1"):
        assert main(["evaluate", folder, "--json", "--threshold", threshold]) == 0
        rows[threshold] = json.loads(capsys.readouterr().out)
    assert rows["0"]["ap"] == rows["1"]["ap"]  # all boxes are ranked
    recalls = [rows[t]["classes"]["red"]["recall"] for t in rows]
    assert recalls == sorted(recalls, reverse=True)
    assert recalls[-1] == 0
    assert run.evaluate()["classes"] == rows["0.4"]["classes"]  # the run's own threshold
    image = str(boxes / "test" / "0.png")
    assert (
        main(
            ["look", folder, image, "--threshold", "0", "--out", str(boxes / "all.html"), "--force"]
        )
        == 0
    )
    title = capsys.readouterr().out.splitlines()[0]
    assert (
        sum(int(number) for number in re.findall(r"(?:red|green) (\d+)", title)) == 4
    )  # every query
    assert run.look([image], threshold=1.0)[0].sample.title.endswith("nothing")


def test_boxes_are_clipped_to_the_image(boxes, monkeypatch):
    run = load(boxes / "run")
    image = Image.new("RGB", (64, 24))  # scaled by 1/2: 32 x 12, and padding below
    monkeypatch.setattr(
        SetPredictions, "best", _best_at([[0.9, 0.45, 0.6, 0.4], [0.0, 0.0, 0.1, 0.1]])
    )
    found = run.predict([image], threshold=0.0)[0]
    assert all(box.x >= 0 and box.y >= 0 for box in found)
    assert all(box.x + box.width <= 64 and box.y + box.height <= 24 for box in found)
    # Center 0.9 of 32 and 0.45 of 24 pixels, sizes 0.6 and 0.4, twice as large in the image.
    assert (found[0].x, found[0].y) == (pytest.approx(38.4), pytest.approx(12))
    assert (found[0].width, found[0].height) == (pytest.approx(64 - 38.4), pytest.approx(12))


def _best_at(regions):
    def best(predictions):
        score, label, region = _BEST(predictions)
        region = region.clone()
        region[0, : len(regions)] = torch.tensor(regions)
        return score, label, region

    return best


def test_results_have_the_ids_of_a_coco_file(boxes, capsys, tmp_path):
    with Image.open(boxes / "test" / "0.png") as image:
        image.save(tmp_path / "a.png")
    file = tmp_path / "test.json"
    content = {
        "images": [{"id": 77, "file_name": "a.png", "width": 32, "height": 24}],
        "categories": [{"id": 5, "name": "red"}, {"id": 9, "name": "green"}],
        "annotations": [],
    }
    file.write_text(json.dumps(content))
    out = tmp_path / "results.json"
    assert main(["predict", str(boxes / "run"), str(file), "--coco", "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    found = load(boxes / "run").predict([tmp_path / "a.png"], threshold=0.0)[0]
    assert len(found) > len(
        load(boxes / "run").predict([tmp_path / "a.png"])[0]
    )  # all, not those above the threshold
    assert [row["image_id"] for row in results] == [77] * len(found) != []
    assert [row["category_id"] for row in results] == [
        {"red": 5, "green": 9}[box.label] for box in found
    ]
    assert [row["bbox"] for row in results] == [
        pytest.approx([box.x, box.y, box.width, box.height], abs=1e-3) for box in found
    ]
    assert (
        main(["predict", str(boxes / "run"), str(tmp_path / "a.png"), "--coco", "--threshold", "1"])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == []
    content["categories"] = [{"id": 5, "name": "red"}]
    file.write_text(json.dumps(content))
    assert main(["predict", str(boxes / "run"), str(file), "--coco"]) == 2
    assert "has no category 'green'" in capsys.readouterr().err


def test_boxes_of_larger_images_are_in_original_pixels(boxes, tmp_path):
    with Image.open(boxes / "test" / "1.png") as image:
        image.resize((128, 96), Image.Resampling.NEAREST).save(tmp_path / "large.png")
    small, large = load(boxes / "run").predict(
        [boxes / "test" / "1.png", tmp_path / "large.png"], threshold=0.3
    )
    assert len(small) == len(large) > 0
    for a, b in zip(small, large, strict=True):
        assert [4 * number for number in a[2:]] == pytest.approx(list(b[2:]), abs=4)


def test_images_are_rotated_by_exif_wherever_they_are_read(boxes, tmp_path, capsys):
    path, exif = boxes / "test" / "1.png", Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "1.png", exif=exif)
        pixels = np.array(image)
    trained = load(boxes / "run")
    with Image.open(tmp_path / "1.png") as image:
        assert image.size == (24, 32)
        upright, rotated, from_image = predict_each(
            trained, [path, tmp_path / "1.png", image], threshold=0.3
        )
    assert upright == rotated == from_image != []
    assert np.array_equal(
        trained.look([tmp_path / "1.png"])[0].sample.pictures["image"].pixels, pixels
    )
    (tmp_path / "one.csv").write_text(
        "file,x,y,width,height,label\n1.png,1,1,4,4,red\ngone.png,1,1,4,4,red\n"
    )
    arguments = ["--data.test", str(tmp_path / "one.csv"), "--data.on-bad", "skip"]
    assert main(["evaluate", str(boxes / "run"), *arguments]) == 0
    output = capsys.readouterr().err
    assert "one.csv: skipped 1 of the images or boxes; first: " in output


def test_more_boxes_than_queries_are_refused(boxes, capsys):
    arguments = (
        f"train boxes --run {boxes / 'no'} --data.train {boxes / 'train.csv'} "
        f"--data.train-images {boxes / 'train'} --model.num-queries 1"
    )
    assert main([*arguments.split(), "--data.width", "32", "--data.height", "24"]) == 2
    assert "1.png has 2 boxes, but the model detects at most 1" in capsys.readouterr().err


def test_boxes_name_the_queries_that_predicted_them(boxes):
    trained, path = load(boxes / "run"), boxes / "test" / "1.png"
    with Image.open(path) as image:
        pixels = np.array(image)
    (sample_maps,) = check_capture(trained, [path])
    picture, queries = sample_maps.sample.pictures["image"], sample_maps.sample.axes["queries"]
    assert picture.labels == trained.recipe.labels.names
    assert np.array_equal(picture.pixels, pixels)  # they have the input size of the model
    (predictions,) = trained.predict([path])
    assert [(box.label, box.score) for box in picture.boxes] == [
        (box.label, box.score) for box in predictions
    ]
    source = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    with record_weights(trained.model) as maps, torch.no_grad():
        outputs: SetPredictions = trained.model(source)
    scores, labels = outputs.logits[0].sigmoid().max(-1)
    for box, answer in zip(picture.boxes, predictions, strict=True):
        assert box.score == pytest.approx(float(scores[box.query]), abs=1e-6)
        assert box.label == trained.recipe.labels.names[labels[box.query]]
        x, y, width, height = outputs.regions[0, box.query].tolist()
        assert box.place == pytest.approx((x - width / 2, y - height / 2, width, height), abs=1e-5)
        assert [
            side * scale for side, scale in zip(box.place, (32, 24, 32, 24), strict=True)
        ] == pytest.approx(list(answer[2:]), abs=1e-3)
    for number, (label, region) in enumerate(zip(queries.labels, queries.places, strict=True)):
        assert label == f"{trained.recipe.labels.names[labels[number]]} {scores[number]:.2f}"
        x, y, width, height = outputs.regions[0, number].tolist()
        assert region == pytest.approx((x - width / 2, y - height / 2, width, height), abs=1e-5)
    for cross in sample_maps.find("cross"):
        torch.testing.assert_close(cross.weights, maps[cross.name][0][0], atol=1e-5, rtol=0)
    assert len(sample_maps.sample.axes["source"]) == (24 // 4) * (32 // 4)


def test_weights_and_boxes_follow_the_order_of_the_queries(boxes, monkeypatch):
    """Queries in another order give the same boxes, which name the new indices of their queries."""
    trained, path = load(boxes / "run"), boxes / "test" / "1.png"
    (maps_before,) = trained.look([path])
    order, select_queries = torch.tensor([2, 0, 3, 1]), trained.model.writer.select_queries

    def permute_queries(items, proposed):
        queries, start = select_queries(items, proposed)
        return queries[:, order], SetPredictions(start.logits[:, order], start.regions[:, order])

    monkeypatch.setattr(trained.model.writer, "select_queries", permute_queries)
    (maps_after,) = check_capture(trained, [path])
    new = {int(old): number for number, old in enumerate(order)}
    boxes_before, boxes_after = (
        sample_maps.sample.pictures["image"].boxes for sample_maps in (maps_before, maps_after)
    )
    assert boxes_before
    for box, other_box in zip(boxes_before, boxes_after, strict=True):
        assert other_box.query == new[box.query]
        assert other_box.place == pytest.approx(box.place, abs=1e-5)
    weights = (sample_maps.find("cross")[0].weights for sample_maps in (maps_before, maps_after))
    first, second = weights
    torch.testing.assert_close(second, first[:, order], atol=1e-5, rtol=0)
    assert maps_after.sample.axes["queries"].labels == tuple(
        maps_before.sample.axes["queries"].labels[i] for i in order
    )


def test_gradients_are_those_of_the_detected_boxes(boxes):
    trained, path = load(boxes / "run"), boxes / "test" / "1.png"
    check_gradients(trained, [path])
    (predictions,) = trained.predict([path])
    assert predictions
    assert answer_log_probs(trained, [path])[0]().item() == pytest.approx(
        sum(np.log(box.score) for box in predictions), abs=1e-4
    )
    black = np.zeros((24, 32, 3), np.uint8)
    assert trained.predict([black]) == [[]]
    with pytest.raises(UserError, match=r"no box is detected in it, .* a lower threshold"):
        trained.look([black], gradients=True)
    with_boxes, without_boxes = trained.look([path, black], gradients=True)
    assert with_boxes.find("cross", measure=GRADIENT)
    assert without_boxes.find("cross")
    assert not without_boxes.find("cross", measure=GRADIENT)
    out = boxes / "black.svg"
    trained.look([black]).plot(out)
    assert "nothing" in out.read_text(encoding="utf-8")


def test_images_are_accepted_as_files_arrays_and_images(boxes):
    trained, path = load(boxes / "run"), boxes / "test" / "1.png"
    with Image.open(path) as image:
        image.load()
        pixels = np.asarray(image)
        answers = predict_each(trained, [path, image, pixels])
        titles = [
            sample_maps.sample.title.partition(" -> ")[0]
            for sample_maps in check_capture(trained, [path, image, pixels])
        ]
    assert is_equal(answers[0], answers[1])
    assert is_equal(answers[0], answers[2])
    assert titles == ["1.png", "image 2", "image 3"]
    test_input = check_test_input(trained)
    assert test_input.size == (32, 24)
    assert trained.look([test_input], names=["test image 0"])[0].sample.title.startswith(
        "test image 0 -> "
    )
    with pytest.raises(
        UserError,
        match=r"input 1: pixels must be bytes \(uint8\) of \(height, width\) or \(height, width",
    ):
        trained.predict([pixels.astype(float)])


def test_figures_show_boxes_on_the_image_at_its_own_size(boxes, tmp_path, monkeypatch):
    figures = []

    def keep_figure(figure, image, **options):
        figures.append(figure)
        plot_boxes(figure, image, **options)

    monkeypatch.setattr("regard.look.figures.draw.plot_boxes", keep_figure)
    trained, path = load(boxes / "run"), boxes / "test" / "1.png"
    with Image.open(path) as image:
        large = image.convert("RGB").resize(
            (image.width * 4, image.height * 6)
        )  # padded on the right
    trained.look([large], threshold=0.0).plot(tmp_path / "a.png")
    axes = figures[0].axes[0]
    pixels = axes.images[0].make_image(None, unsampled=True)[0]
    assert np.array_equal(pixels[..., :3], np.asarray(large))
    expected = [box[2:] for box in trained.predict([large], threshold=0.0)[0]]
    frames = [frame.get_bbox().bounds for frame in axes.patches]
    assert np.allclose(np.add(frames, (0.5, 0.5, 0, 0)), expected, atol=1e-3)


def test_images_smaller_than_the_input_size_are_shown_with_padding(boxes, tmp_path):
    trained = load(boxes / "run")
    (sample_maps,) = check_capture(trained, [np.zeros((24, 16, 3), np.uint8)])
    pixels = sample_maps.sample.pictures["image"].pixels
    assert pixels.shape == (24, 32, 3)
    assert (pixels[:, :16] == 0).all()
    assert (pixels[:, 16:] == 128).all()


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Train on low and high tones of a tenth to a third of a second, up to two in a second."""
    folder, draw = tmp_path_factory.mktemp("events"), np.random.default_rng(2)
    for split, count in (("train", 60), ("val", 10), ("test", 20)):
        rows = []
        for i in range(count):
            sound = draw.normal(0, 0.005, 2000)
            for first in (0.0, 0.5):
                if draw.random() < 0.7:
                    high, duration = bool(draw.integers(2)), draw.uniform(0.1, 0.33)
                    onset = first + draw.uniform(0, 0.45 - duration)
                    time = np.arange(round(duration * 2000)) / 2000
                    start = round(onset * 2000)
                    sound[start : start + len(time)] += 0.5 * np.sin(
                        2 * np.pi * (600 if high else 200) * time
                    )
                    rows.append((f"{split}{i}.wav", onset, duration, "high" if high else "low"))
            wavfile.write(folder / f"{split}{i}.wav", 2000, (sound * 32767).astype(np.int16))
            rows += [(f"{split}{i}.wav", "", "", "")] * (
                not rows or rows[-1][0] != f"{split}{i}.wav"
            )
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("file", "onset", "duration", "label"), *rows])
    files = " ".join(f"--data.{name} {folder / name}.csv" for name in ("train", "val", "test"))
    size = (
        "--data.seconds 1 --data.sample-rate 2000 --data.bands 12 --channels "
        "16 --model.num-queries 4 --batch 16"
    )
    assert (
        main(
            f"train events --run {folder / 'run'} {files} {size} --train.steps 300 {SMALL} "
            f"{LIMITS}".split()
        )
        == 0
    )
    return folder


def test_events_are_detected(events, capsys):
    test = json.loads((events / "run" / "report.json").read_text())["test"]
    assert test["f1"] > 70
    assert test["examples"] == 20
    assert main(["predict", str(events / "run"), str(events / "test0.wav")]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line]
    (predictions,) = load(events / "run").predict([events / "test0.wav"])
    assert [(row[0], float(row[2]), float(row[3])) for row in rows] == [
        (event.label, pytest.approx(event.onset, abs=1e-3), pytest.approx(event.duration, abs=1e-3))
        for event in predictions
    ]


def test_events_of_long_files_are_detected_once(events, tmp_path, monkeypatch):
    """A perfect detector finds each event once, however the file is segmented: samples encode their
    own time."""
    true_events = [SoundEvent(0.25 * i, 0.2, f"e{i}") for i in range(18)]

    def detect(_model, source):
        rows = []
        for start in (source[:, 0].double() * 32768 / 2000).tolist():
            inside = [
                event for event in true_events if start <= event.onset and event.offset <= start + 1
            ]
            rows.append(
                [
                    EventPrediction(replace(event, onset=event.onset - start), 0.9)
                    for event in inside
                ]
            )
        return rows

    run = load(events / "run")
    monkeypatch.setattr(run.recipe, "detect", detect)
    for seconds in (1.0, 1.3, 2.0, 4.7):
        wavfile.write(tmp_path / "long.wav", 2000, np.arange(round(2000 * seconds), dtype=np.int16))
        (predictions,) = run.predict([tmp_path / "long.wav"])
        expected = [event for event in true_events if event.offset <= seconds]
        assert [event.label for event in predictions] == [event.label for event in expected]
        assert [event.onset for event in predictions] == pytest.approx(
            [event.onset for event in expected], abs=1e-3
        )


def test_events_are_clipped_to_the_sound(events, monkeypatch):
    run = load(events / "run")
    found = [SoundEvent(-0.1, 0.4, "a"), SoundEvent(0.3, 0.6, "b"), SoundEvent(0.7, 0.2, "c")]
    monkeypatch.setattr(
        run.recipe, "detect", lambda *_: [[EventPrediction(event, 0.9) for event in found]]
    )
    rate = run.config.data.sample_rate
    (predictions,) = run.predict([np.zeros(round(0.75 * rate), np.int16)])
    times = [(event.label, event.onset, event.duration) for event in predictions]
    assert times == [
        ("a", 0, pytest.approx(0.3)),
        ("b", 0.3, pytest.approx(0.45)),
    ]  # the middle of c is after the end


def test_answers_do_not_depend_on_the_blocks_that_are_read(events, tmp_path, monkeypatch):
    long = np.concatenate([wavfile.read(events / f"test{i}.wav")[1] for i in range(6)])
    wavfile.write(tmp_path / "long.wav", 3000, long)  # another rate, so that it is resampled
    run = load(events / "run")
    (expected,) = run.predict([tmp_path / "long.wav"])
    monkeypatch.setattr(sound_files, "_BLOCK", 700)
    assert run.predict([tmp_path / "long.wav"]) == [expected]
    assert len(expected) > 2


def test_events_name_the_queries_that_predicted_them(events):
    trained, path = load(events / "run"), events / "test0.wav"
    samples = wavfile.read(path)[1]
    (sample_maps,) = check_capture(trained, [path])
    sound, queries = sample_maps.sample.pictures["sound"], sample_maps.sample.axes["queries"]
    assert sound.seconds == 1
    assert sound.labels == trained.recipe.labels.names
    assert sound.bands.shape == (12, 100)
    with torch.no_grad():
        outputs = trained.model(torch.from_numpy(samples).float()[None] / 32768)
    scores, labels = outputs.logits[0].sigmoid().max(-1)
    (predictions,) = trained.predict([path])
    assert sorted((event.onset, event.label) for event in sound.events) == [
        (event.onset, event.label) for event in predictions
    ]
    for event in sound.events:
        middle, duration = outputs.regions[0, event.query].tolist()
        assert event.score == pytest.approx(float(scores[event.query]), abs=1e-6)
        assert event.label == trained.recipe.labels.names[labels[event.query]]
        assert (event.onset, event.duration) == pytest.approx(
            (middle - duration / 2, duration), abs=1e-5
        )
    for number, (start, stop) in enumerate(queries.places):
        middle, duration = outputs.regions[0, number].tolist()
        assert (start, stop) == pytest.approx(
            (middle - duration / 2, middle + duration / 2), abs=1e-5
        )
    source = sample_maps.sample.axes["source"]
    assert len(source) == 25
    assert source.places[0] == pytest.approx(
        (0, 0.035)
    )  # four frames, the first of which is cut in half
    assert source.places[10] == pytest.approx((0.395, 0.435), abs=1e-6)
    assert sample_maps.find("cross")[0].weights.shape == (2, len(queries), 25)


def test_files_of_a_table_are_inputs_by_their_names(events, capsys):
    assert (
        main(
            ["predict", str(events / "run"), str(events / "test.csv"), "--json", "--threshold", "0"]
        )
        == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    files = dict.fromkeys(
        line.partition(",")[0] for line in (events / "test.csv").read_text().splitlines()[1:]
    )
    assert [row["file"] for row in rows] == [str(events / file) for file in files]
    (expected,) = load(events / "run").predict([events / next(iter(files))], threshold=0.0)
    assert [event["onset"] for event in rows[0]["events"]] == [
        pytest.approx(event.onset) for event in expected
    ]


def test_long_sounds_have_several_samples(events):
    trained = load(events / "run")
    samples = np.concatenate([wavfile.read(events / f"test{i}.wav")[1] for i in range(2)])
    capture = check_capture(trained, [samples, samples[:1500]])
    names = [sample_maps.sample.title.partition(" -> ")[0] for sample_maps in capture]
    assert names == ["sound 1, 0 to 1 s", "sound 1, 0.5 to 1.5 s", "sound 1, 1 to 2 s", "sound 2"]
    sounds = [sample_maps.sample.pictures["sound"] for sample_maps in capture[:3]]
    detected = [
        (0.5 * i + event.onset, event.label)
        for i, sound in enumerate(sounds)
        for event in sound.events
    ]
    assert sorted(detected) == [
        (pytest.approx(event.onset, abs=1e-6), event.label)
        for event in trained.predict([samples])[0]
    ]


def test_a_picture_of_a_long_sound_has_all_its_events(events, tmp_path):
    trained = load(events / "run")
    long = np.concatenate([wavfile.read(events / f"test{i}.wav")[1] for i in range(3)])
    capture = trained.look([long])
    assert [sample_maps.sample.pictures["sound"].begin for sample_maps in capture] == [
        0,
        0.5,
        1,
        1.5,
        2,
    ]
    path = capture.plot(tmp_path / "long.svg")
    labels = re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))
    assert "sound 1" in labels
    detected = [label.split()[0] for label in labels if re.fullmatch(r"(low|high) 0\.\d\d", label)]
    assert detected == [event.label for event in trained.predict([long])[0]]
    capture.save(tmp_path / "long.safetensors")
    second_path = Capture.open(tmp_path / "long.safetensors").plot(tmp_path / "again.svg")
    assert re.findall(r">([^<>]+)</text>", second_path.read_text(encoding="utf-8")) == labels


def test_gradients_are_those_of_the_events_of_each_segment(events):
    trained = load(events / "run")
    sounds = [wavfile.read(events / f"test{i}.wav")[1] for i in range(6)]
    long = np.concatenate(
        [
            sound
            for sound, with_events in zip(sounds, trained.predict(sounds), strict=True)
            if with_events
        ][:2]
    )
    capture = trained.look([long], gradients=True)
    parts = answer_log_probs(trained, [long])
    assert [len(row.samples) for row in trained.recipe.preprocess(long, 1)] == [2000] * 3
    with_events = [
        (part, sample_maps)
        for part, sample_maps in zip(parts, capture, strict=True)
        if sample_maps.sample.pictures["sound"].events
    ]
    assert len(with_events) > 1
    for part, sample_maps in with_events:
        scores = [event.score for event in sample_maps.sample.pictures["sound"].events]
        assert part().item() == pytest.approx(np.log(scores).sum(), abs=1e-4)
    for sample_maps in capture:
        weights, changed = sample_maps.find(), sample_maps.find(measure=GRADIENT)
        expected = (
            [attention_map.name for attention_map in weights]
            if sample_maps.sample.pictures["sound"].events
            else []
        )
        assert [attention_map.name for attention_map in changed] == expected
    check_gradients(trained, [sound for sound in sounds if trained.predict([sound]) != [[]]][:2])
    with pytest.raises(UserError, match="no event is detected in it"):
        trained.look([np.zeros(2000, np.int16)], gradients=True)


def test_samples_are_accepted_as_integers_and_floats(events):
    trained = load(events / "run")
    samples = wavfile.read(events / "test0.wav")[1]
    assert trained.predict([samples]) == trained.predict([events / "test0.wav"])
    assert trained.predict([samples / 32767]) == trained.predict([samples])
    test_input = check_test_input(trained)
    assert np.array_equal(test_input, samples)
    assert trained.look([test_input], names=["test sound 0"])[0].sample.title.startswith(
        "test sound 0 -> "
    )
    for bad, message in [
        (samples[None], r"input 1: samples must be one row .* int16 of \(1, 2000\)"),
        (samples[:0], "samples must be one row"),
        (samples.astype(np.int32), "got int32"),
        (samples.astype(float), r"floating samples must lie within \[-1, 1\]"),
        (np.full(9, np.nan), r"floating samples must lie within \[-1, 1\]"),
    ]:
        with pytest.raises(UserError, match=message):
            trained.predict([bad])


def test_events_are_scored_on_other_files_and_drawn(events, capsys):
    assert (
        main(["evaluate", str(events / "run"), "--json", "--data.test", str(events / "test.csv")])
        == 0
    )
    test = json.loads((events / "run" / "report.json").read_text())["test"]
    assert json.loads(capsys.readouterr().out)["f1"] == test["f1"]
    assert main(["evaluate", str(events / "run")]) == 0
    assert re.search(
        rf"F1 of events, onset within 50 ms, % +{test['f1']:.4g}\n", capsys.readouterr().out
    )
    out = events / "events.png"
    assert main(["look", str(events / "run"), str(events / "test1.wav"), "--out", str(out)]) == 0
    with Image.open(out) as figure:
        assert figure.size[0] > 300


def test_file_that_is_not_a_sound_is_named(events, capsys, tmp_path):
    (tmp_path / "no.wav").write_text("no", encoding="utf-8")
    assert main(["predict", str(events / "run"), str(tmp_path / "no.wav")]) == 2
    assert "no.wav: not a readable sound file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "train boxes --data.width 32 --data.height 24 --downsampling-layers 2",
        "train events --data.seconds 2 --data.bands 12 --data.epoch-size 8 --data.val-size 4 "
        "--data.test-size 4",
    ],
)
def test_runs_without_any_data(arguments, tmp_path):
    more = f"--run {tmp_path / 'run'} --train.steps 2 --batch 2 {SMALL} {LIMITS}"
    assert main([*arguments.split(), *more.split()]) == 0
    assert json.loads((tmp_path / "run" / "report.json").read_text())["test"]["examples"] > 3
