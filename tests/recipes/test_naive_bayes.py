"""Naive-Bayes classifier: initial scores, padding, gradients, and a run of `reviews`."""

import numpy as np
import torch

from regard.data.batches import pad
from regard.data.text.labels import LabeledBatch
from regard.models.build import build_classifier
from regard.models.config import ClassifierConfig
from regard.models.cores.config import RecurrentConfig
from regard.models.model import Model
from regard.models.readers.tokens import embedding_table
from regard.recipes.load import load
from regard.recipes.reviews.naive_bayes import NaiveBayesWriter, RatioTextReader, attach_ratios
from tests.helpers import close, without_gradient
from tests.recipes.capture_checks import check_capture
from tests.recipes.commands import command, printed_json

CONFIG = ClassifierConfig(core=RecurrentConfig(width=12, hidden=14), pool_heads=2, dropout=0)
ROWS = [[4, 5, 6, 7, 8], [9], [4, 10]]
DRAW = np.random.default_rng(1)
RATIOS = [DRAW.normal(size=(len(row), 2, 3)).astype(np.float32) for row in ROWS]


def model() -> Model:
    torch.manual_seed(1)
    reader = RatioTextReader(embedding_table(11, CONFIG.core.width))
    kinds = ("word", "bigram")
    classifier = build_classifier(
        CONFIG, reader, lambda dim, pool: NaiveBayesWriter(dim, 3, kinds=kinds, pool=pool)
    )
    return classifier.double().eval()


def test_untrained_classifier_gives_the_sum_of_ratios():
    untrained = model()
    torch.nn.init.ones_(untrained.writer.ratio_scores.scale)
    sums = [torch.from_numpy(rows).double().sum((0, 1)) for rows in RATIOS]
    close(untrained(attach_ratios(pad(ROWS), RATIOS)), torch.stack(sums).softmax(-1))


def test_rows_are_independent_of_their_batch():
    classifier = model()
    torch.nn.init.normal_(classifier.writer.ratio_scores.query)  # so that weights differ
    batched = classifier(attach_ratios(pad(ROWS), RATIOS))
    for row, (ids, rows) in enumerate(zip(ROWS, RATIOS, strict=True)):
        close(classifier(attach_ratios(pad([ids]), [rows])), batched[row : row + 1])


def test_attention_weights_the_ratios():
    scores = model().writer.ratio_scores
    with torch.no_grad():
        scores.scale.fill_(1)
        scores.query.normal_(std=9)
    items = torch.randn(1, 5, 14, dtype=torch.float64)
    source = attach_ratios(pad([ROWS[0]]), RATIOS[:1])
    weights = (scores.key(items)[0] @ scores.query / 14**0.5).softmax(0)
    expected = 5 * weights @ source.ratios[0].double().sum(1)
    close(scores(source.text._replace(items=items), source.ratios)[0], expected)


def test_scores_are_divided_with_those_of_the_counts():
    classifier, source = model(), attach_ratios(pad(ROWS), RATIOS)
    for parameter in classifier.writer.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        before = classifier(source).log()
        classifier.writer.divide_scores(1.7)
        close(classifier(source), (before / 1.7).softmax(-1))


def test_every_parameter_has_a_gradient_except_the_keys_while_the_query_is_zero():
    classifier = model()
    torch.nn.init.normal_(classifier.writer.output.weight)  # zero would stop all gradients
    batch = LabeledBatch(attach_ratios(pad(ROWS), RATIOS), torch.tensor([2, 0, 1]), (0, 1, 2))
    loss = classifier.loss(batch)
    close(loss.total, -classifier(batch.source).gather(1, batch.target[:, None]).log().sum())
    loss.total.backward()
    # The bias of the keys adds the same number to all scores.
    assert without_gradient(classifier) == {
        "writer.ratio_scores.key.weight",
        "writer.pool.attention.key.bias",
    }


def test_contributions_sum_to_the_scores_with_those_of_the_counts():
    classifier = model()
    for parameter in classifier.writer.parameters():
        torch.nn.init.normal_(parameter)
    source = attach_ratios(pad(ROWS), RATIOS)
    encoded = classifier.encoder(source)
    found = classifier.writer.explain(
        classifier.core, encoded, torch.eye(3, dtype=torch.float64), source=source
    )
    hidden = classifier.writer.read(classifier.core, encoded, source=source)
    close(found.total, classifier.writer.scores(hidden))
    assert found.parts == ("counts: word", "counts: bigram", "head 1", "head 2")
    close(found.terms[:, :, :2].sum((2, 3)), hidden[1])
    for row, ids in enumerate(ROWS):
        assert not found.terms[row, ..., len(ids) :].any()


def test_log_count_ratios_alone_classify_from_the_first_step(tmp_path, capsys):
    words = {"good": ["great", "lovely", "wonderful"], "bad": ["awful", "terrible", "dreadful"]}
    for name, number in (("train", 9), ("val", 3)):
        rows = []
        for i in range(number):
            rows += [f"it was {own[i % 3]} {i % 4}\t{kind}\n" for kind, own in words.items()]
        (tmp_path / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    files = f"--data.train {tmp_path}/train.tsv --data.val {tmp_path}/val.tsv"
    small = "--model.core.width 8 --model.core.hidden 8 --tokenizer.min-count 1"
    steps = "--train.steps 1 --train.validate-every 1 --train.tensorboard false"
    run = tmp_path / "run"
    command(f"train reviews --run {run} {files} {small} {steps} --naive-bayes prefixes")
    trained = load(run)
    assert trained.predict(["it was dreadful", "what a wonderful day"]) == ["bad", "good"]
    scores = printed_json(capsys, "evaluate", run, "--data.test", tmp_path / "train.tsv")
    assert scores["accuracy"] == 100
    (sample_maps,) = check_capture(trained, ["it was awful"])
    assert sample_maps.sample.axes["source"].labels == ("it", "was", "awful")
