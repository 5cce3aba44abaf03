"""Whole runs that end in a class: trained, finished, used from Python and from the command line; and their scores."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.cli.main import main
from regard.data.labeled import Labels
from regard.errors import UserError
from regard.models.reads.images import ImageReader
from regard.recipes.pictures import patches
from regard.recipes.targets import ClassTarget
from regard.recipes.task import load
from regard.recipes.vector_scores import class_scores
from tests.recipes.looked import checked, checked_test_input, differentiated

WORDS = {"good": ["great", "fine", "lovely"], "bad": ["awful", "dull", "grim"], "odd": ["strange", "queer", "weird"]}


def rows(number: int) -> list[str]:
    return [
        f"{json.dumps({'text': f'it was {WORDS[kind][i % 3]} {i % 5}', 'label': kind})}\n"
        for i in range(number)
        for kind in WORDS
    ]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    for name, number in (("train", 12), ("val", 3), ("test", 3)):
        (folder / f"{name}.jsonl").write_text("".join(rows(number)), encoding="utf-8")
    files = " ".join(f"--data.{name} {folder / name}.jsonl" for name in ("train", "val", "test"))
    small = (
        "--model.core transformer --model.core.width 16 --model.core.layers 1 --model.core.feedforward 16 "
        "--model.dropout 0 --word-dropout 0.1"
    )
    limits = "--train.steps 60 --train.warmup 5 --train.lr 5e-3 --train.validate-every 20 --train.tensorboard false"
    assert main(f"train reviews --run {folder / 'run'} {files} {small} {limits} --tokenizer.min-count 1".split()) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bars that lie or stand, as files in a folder a class."""
    folder, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(1)
    for split, number in (("train", 24), ("test", 6)):
        for kind in ("lying", "standing"):
            (folder / split / kind).mkdir(parents=True)
            for i in range(number):
                pixels = draw.integers(0, 40, (8, 8)).astype(np.uint8)
                place = int(draw.integers(1, 7))
                pixels[(place, slice(None)) if kind == "lying" else (slice(None), place)] = 255
                Image.fromarray(pixels).save(folder / split / kind / f"{i}.png")
    small = "--model.core.width 24 --model.core.layers 1 --model.core.feedforward 24 --augment none --batch 16"
    limits = "--train.steps 60 --train.warmup 5 --train.lr 5e-3 --train.validate-every 30 --train.tensorboard false"
    data = f"--data.train {folder / 'train'} --data.test {folder / 'test'} --data.val-share 0.2"
    assert main(f"train images --run {folder / 'run'} {data} {small} {limits}".split()) == 0
    return folder


def test_reviews_learn_and_report(reviews):
    found = json.loads((reviews / "report.json").read_text())
    assert found["test"]["examples"] == 9
    assert found["test"]["accuracy"] == 100
    assert {"accuracy", "macro_f1", "nll"} <= set(found["validation"])
    assert found["test"]["signature"] == "3 classes: bad, good, odd"


def test_reviews_answer_from_python(reviews):
    trained = load(reviews)
    assert trained.predict(["it was grim", "it was lovely"]) == ["bad", "good"]
    ((best, second, third),) = trained.predict(["it was weird"], n_best=9)
    assert best.text == "odd"
    assert best.score > second.score > third.score
    assert best.score + second.score + third.score == pytest.approx(1, abs=1e-5)
    with pytest.warns(UserWarning, match="input 2 is empty"):
        assert len(trained.predict(["it was fine", " "])) == 2
    with pytest.raises(TypeError, match="must be a list of texts"):
        trained.predict("it was fine")


def test_reviews_answer_on_the_command_line(reviews, capsys, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("it was dull\nit was great\n", encoding="utf-8")
    assert main(["predict", str(reviews), str(lines)]) == 0
    assert capsys.readouterr().out == "bad\ngood\n"
    assert main(["predict", str(reviews), "it was queer", "--n-best", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"]]
    assert rows[0][3] == "odd"


def test_other_texts_are_scored_and_unknown_labels_named(reviews, capsys, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text("it was dull\tbad\nit was great\tnice\n", encoding="utf-8")
    assert main(["evaluate", str(reviews), "--data.test", str(other)]) == 2
    assert (
        "other.tsv, line 2: label 'nice' is none of those of the training texts: bad, good, odd"
        in capsys.readouterr().err
    )
    assert main(["evaluate", str(reviews), "--data.test", str(other), "--data.on-bad", "skip", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 100


def test_looking_with_a_core_that_reads_its_past_shows_chains(reviews, tmp_path):
    files = " ".join(f"--data.{name} {reviews.parent / name}.jsonl" for name in ("train", "val", "test"))
    small = "--model.core self-attentive --model.core.width 16 --model.core.hidden 16 --model.core.cell rnn"
    limits = "--train.steps 2 --train.validate-every 2 --train.tensorboard false --tokenizer.min-count 1"
    assert main(f"train reviews --run {tmp_path / 'run'} {files} {small} {limits}".split()) == 0
    (seen,) = checked(load(tmp_path / "run"), ["it was awful"])
    chains = seen.find("chain")
    assert {one.direction for one in chains} == {"from the start", "from the end"}
    labels = {one.direction: seen.keys(one).labels for one in chains}
    assert labels == {"from the start": ("it", "was", "awful"), "from the end": ("awful", "was", "it")}
    assert seen.scene.title.startswith("it was awful -> ")
    for one in chains:
        torch.testing.assert_close(one.weights.sum(-1), torch.ones(1, 3))
    (one,) = seen.find("pooling")
    assert seen.keys(one).labels == ("it", "was", "awful")
    differentiated(load(tmp_path / "run"), ["it was awful", "it was"])


def test_looking_shows_what_the_pool_read(reviews):
    trained = load(reviews)
    first, second = checked(trained, ["it was awful", " it was a lovely fine one "])
    (one,) = first.find("pooling")
    assert first.keys(one).labels == ("it", "was", "awful")
    assert first.queries(one).labels == ("bad",)
    assert first.scene.title.startswith("it was awful -> bad (")
    assert second.scene.title.startswith("it was a lovely fine one -> good (")
    assert checked_test_input(trained) == "it was great 0"
    with pytest.raises(UserError, match="input 2 is empty: there is nothing to look at"):
        trained.look(["it was awful", " "])
    with pytest.raises(UserError, match="no input is given"):
        trained.look([])
    with pytest.raises(TypeError, match="must be a list"):
        trained.look("it was awful")


def test_gradients_are_those_of_the_class_that_is_said(reviews, pictures):
    trained = load(reviews)
    capture = differentiated(trained, ["it was awful", " it was a lovely fine one "])
    for text, seen in zip(["it was awful", "it was a lovely fine one"], capture, strict=True):
        ((best,),) = trained.predict([text], n_best=1)
        assert trained.likelihood(text, seen).item() == pytest.approx(np.log(best.score), abs=1e-5)
    trained, paths = load(pictures / "run"), [pictures / "test" / kind / "0.png" for kind in ("lying", "standing")]
    capture = differentiated(trained, paths)
    for path, seen in zip(paths, capture, strict=True):
        ((best,),) = trained.predict([path], n_best=1)
        assert trained.likelihood(path, seen).item() == pytest.approx(np.log(best.score), abs=1e-5)


def test_images_learn_and_answer(pictures, capsys):
    found = json.loads((pictures / "run" / "report.json").read_text())
    assert found["test"]["examples"] == 12
    assert found["test"]["accuracy"] >= 90
    one = str(pictures / "test" / "standing" / "0.png")
    assert load(pictures / "run").predict([one]) == ["standing"]
    assert main(["predict", str(pictures / "run"), one]) == 0
    assert capsys.readouterr().out == "standing\n"
    other = str(pictures / "test" / "lying" / "0.png")
    assert main(["predict", str(pictures / "run"), one, other]) == 0
    assert capsys.readouterr().out.splitlines() == load(pictures / "run").predict([one, other])
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(one) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(pictures / "turned.png", exif=exif)
    assert load(pictures / "run").predict([pictures / "turned.png"]) == ["standing"]
    (pictures / "train" / "standing" / "a.heic").write_bytes(b"x")
    assert main(["evaluate", str(pictures / "run"), "--data.test", str(pictures / "train"), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["examples"] == 48
    assert "train: 1 files are not read: 1 .heic (convert them to JPEG); first: " in told.err


def test_looking_at_images_shows_patches_on_what_the_model_saw(pictures):
    trained, one = load(pictures / "run"), pictures / "test" / "standing" / "0.png"
    with Image.open(one) as image:
        pixels = np.asarray(image)
    of_file, of_pixels = checked(trained, [str(one), pixels[None]])
    assert of_file.scene.title.startswith("0.png -> standing (")
    assert of_pixels.scene.title.startswith("image 2 -> standing (")
    for seen in (of_file, of_pixels):
        assert np.array_equal(seen.scene.pictures["image"].pixels, pixels)
        (pooled,) = seen.find("pooling")
        assert pooled.weights.shape == (4, 1, 4)
        assert seen.queries(pooled).labels == ("standing",)
        assert seen.keys(pooled).places == (
            (0, 0, 0.5, 0.5),
            (0.5, 0, 0.5, 0.5),
            (0, 0.5, 0.5, 0.5),
            (0.5, 0.5, 0.5, 0.5),
        )
    one = checked_test_input(trained)
    assert one.shape == (1, 8, 8)
    assert trained.look([one])[0].scene.title.startswith("test image 0 -> ")


def test_pixels_of_another_shape_are_refused(pictures):
    trained = load(pictures / "run")
    for bad, message in [
        (
            np.zeros((8, 8), np.uint8),
            r"input 1: pixels must be bytes \(uint8\) .* \(1, 8, 8\), but are uint8 of \(8, 8\)",
        ),
        (np.zeros((1, 8, 8)), r"but are float64 of \(1, 8, 8\)"),
    ]:
        with pytest.raises(UserError, match=message):
            trained.predict([bad])


def test_patches_that_reach_over_the_edge_are_cut_there():
    axis = patches(ImageReader((3, 10, 6), 8, halvings=2))
    assert axis.labels[-1] == "row 3, column 2"
    assert axis.places[0] == pytest.approx((0, 0, 4 / 6, 4 / 10))
    assert axis.places[-1] == pytest.approx((4 / 6, 8 / 10, 2 / 6, 2 / 10))


def test_images_name_what_they_cannot_read(pictures, tmp_path):
    trained = load(pictures / "run")
    with pytest.raises(UserError, match=r"input 1: nothing\.png is no file"):
        trained.predict(["nothing.png"])
    (tmp_path / "crooked").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "crooked" / "a.png")
    with pytest.raises(UserError, match=r"a.png: class 'crooked' is none of those"):
        trained.evaluate(tmp_path)


def test_scores_by_hand():
    probabilities = torch.tensor([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0], [0.1, 0.7, 0.2]])
    found = class_scores(probabilities, torch.tensor([0, 1, 1, 1]))
    assert found["accuracy"] == 75
    assert found["macro_f1"] == pytest.approx(100 * (2 / 3 + 4 / 5) / 2)
    assert found["nll"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.7]).mean(), abs=1e-6)
    assert [answer.text for answer in ClassTarget(Labels(("a", "b", "c"))).ranked(probabilities, 2)[3]] == ["b", "c"]


def test_run_without_data_uses_made_up_reviews(tmp_path):
    options = (
        "--train.steps 2 --train.validate-every 2 --train.tensorboard false --model.core.width 8 --model.core.hidden 8"
    )
    assert main(f"train reviews --run {tmp_path / 'run'} {options}".split()) == 0
    assert json.loads((tmp_path / "run" / "report.json").read_text())["test"]["data"] == "made-up reviews, test"


def test_what_is_left_out_is_told_beside_the_answers(reviews, capsys, tmp_path):
    other = tmp_path / "other.jsonl"
    rows = [{"text": "it was dull", "label": "bad"}, {"text": "", "label": "bad"}]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["evaluate", str(reviews), "--data.test", str(other), "--data.on-bad", "skip", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["examples"] == 1
    assert "skipped 1 bad lines" in told.err
