"""Detector: order of queries, matching loss, gradients, and a short training run."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded, Unpadded
from regard.data.elements import LabeledRegions
from regard.layers.positions.config import AlibiConfig, NoPositionsConfig
from regard.models.build import build_core, build_detector
from regard.models.config import DetectorConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.readers.reader import Reader
from regard.models.writers.sets import SetHidden, SetPredictions, SetWriter
from tests.helpers import close, without_gradient

TRANSFORMER = {"width": 12, "heads": 3, "feedforward": 17}
RECURRENT = {"width": 12, "hidden": 14, "attention_hidden": 9}
CORES = {
    "transformer": TransformerConfig(**TRANSFORMER, layers=2, positions=NoPositionsConfig()),
    "alibi": TransformerConfig(**TRANSFORMER, layers=1, positions=AlibiConfig()),
    "recurrent": RecurrentConfig(**RECURRENT),
    "self-attentive": SelfAttentiveConfig(**RECURRENT, self_attention_hidden=5),
    "without attention": RecurrentConfig(**RECURRENT, attention="none", cell="lstm", layers=2),
}

FIRST_STEP = {
    "recurrent": {"core.cells.0.context_weight", "core.cells.0.state_weight"},
    "self-attentive": {
        "core.cells.0.cell.context_weight",
        "core.cells.0.cell.state_weight",
        "core.cells.0.feedback_weight",
        "core.cells.0.key_weight",
        "core.cells.0.query_weight",
        "core.cells.0.read.score.v",
    },
    "without attention": {"core.cells.0.state_weight", "core.cells.1.state_weight"},
}
"""Weights of the previous state and context: each query takes one step, from zeros."""


class LineReader(Reader):
    """Reader of items along a line."""

    def __init__(self, length: int, dim: int):
        super().__init__()
        centers = (torch.arange(length)[:, None] + 0.5) / length
        self.register_buffer("centers", centers, persistent=False)
        self.map = nn.Linear(3, dim)

    def forward(self, source: Tensor) -> Padded:
        return Unpadded.of(self.map(source))


@dataclass
class Batch:
    source: Tensor
    target: LabeledRegions


def detector(core, **settings):
    config = DetectorConfig(core=CORES[core], num_queries=4, dropout=0.0, **settings)
    return build_detector(config, LineReader(8, 12), num_classes=3, axes=1)


def make_batch(rows: int) -> Batch:
    """Return a batch in which each element raises one of three inputs over its time interval."""
    draw = torch.Generator().manual_seed(3)
    source = torch.zeros(rows, 8, 3)
    labels = torch.full((rows, 2), -1)
    regions = torch.zeros(rows, 2, 2)
    for row in range(rows):
        for element in range(int(torch.randint(0, 3, (), generator=draw))):
            kind = int(torch.randint(0, 3, (), generator=draw))
            start = 4 * element + int(torch.randint(0, 2, (), generator=draw))
            source[row, start : start + 2, kind] = 1
            labels[row, element] = kind
            regions[row, element] = torch.tensor([(start + 1) / 8, 2 / 8])
    return Batch(source, LabeledRegions(labels, regions))


@pytest.mark.parametrize("core", CORES)
def test_predictions_are_equivariant_to_the_order_of_queries(core):
    torch.manual_seed(1)
    model = build_core(CORES[core], in_order=False).double().eval()
    queries, items = torch.randn(2, 5, 12).double(), torch.randn(2, 6, model.memory_dim).double()
    encoded = Padded(items, torch.tensor([6, 4]))
    out = model.decode_set(queries, encoded)
    order = torch.tensor([3, 0, 4, 1, 2])
    for expected, actual in zip(out, model.decode_set(queries[:, order], encoded), strict=True):
        close(actual, expected[:, order])
    padded = model.decode_set(queries[1:], Padded(items[1:, :4], torch.tensor([4])))
    close(padded[-1], out[-1][1:])


def test_transformer_queries_attend_to_one_another():
    torch.manual_seed(1)
    core = build_core(CORES["transformer"], in_order=False).double().eval()
    queries, encoded = torch.randn(1, 3, 12).double(), Unpadded.of(torch.randn(1, 6, 12).double())
    changed = queries.clone()
    changed[:, 2] = torch.randn(12)
    first, other = core.decode_set(queries, encoded)[-1], core.decode_set(changed, encoded)[-1]
    assert (other[:, 0] - first[:, 0]).abs().max() > 1e-4


@pytest.mark.parametrize("core", ["transformer", "recurrent"])
def test_core_for_sequences_does_not_decode_sets(core):
    model = build_core(CORES[core])
    with pytest.raises(ValueError, match="in_order=False"):
        model.decode_set(torch.zeros(1, 2, 12), Unpadded.of(torch.zeros(1, 3, model.memory_dim)))


def test_core_for_sets_rejects_a_window():
    with pytest.raises(ValueError, match="window has no effect with in_order=False"):
        build_core(TransformerConfig(window=3), in_order=False)


def test_perfect_prediction_has_the_lowest_loss():
    torch.manual_seed(4)
    writer = SetWriter(12, 3, axes=1, num_queries=4, blocks=1)
    target = LabeledRegions(
        torch.tensor([[2, 0], [1, -1]]),
        torch.tensor([[[0.3, 0.2], [0.7, 0.1]], [[0.5, 0.4], [0, 0]]]),
    )

    def loss(predictions, target):
        return writer.loss(SetHidden([predictions], None), target).total

    def cost(label=(2, 0, 1), middle=(0.3, 0.7, 0.5), sure=9.0, extra=-9.0):
        logits = torch.full((2, 4, 3), -9.0)
        regions = torch.full((2, 4, 2), 0.9)
        for row, query, i in ((0, 3, 0), (0, 1, 1), (1, 0, 2)):
            logits[row, query, label[i]] = sure
            regions[row, query] = torch.tensor([middle[i], (0.2, 0.1, 0.4)[i]])
        logits[1, 2, 1] = extra
        return float(loss(SetPredictions(logits, regions), target))

    perfect = cost()
    assert perfect < 0.02
    assert cost(label=(1, 0, 1)) > perfect + 1
    assert cost(middle=(0.35, 0.7, 0.5)) > perfect + 0.2
    assert cost(sure=0.0) > perfect + 0.5
    assert cost(extra=5.0) > perfect + 1  # a false positive
    shuffled = LabeledRegions(target.labels[:, [1, 0]], target.regions[:, [1, 0]])
    logits, regions = torch.randn(2, 4, 3), torch.rand(2, 4, 2)
    predictions = SetPredictions(logits, regions)
    close(loss(predictions, shuffled), loss(predictions, target))
    centers = torch.rand(5, 1)
    proposer = SetWriter(12, 3, axes=1, num_queries=4, blocks=1, centers=centers)
    proposed = SetPredictions(torch.randn(2, 5, 3), torch.rand(2, 5, 2))
    hidden = SetHidden([predictions], proposed, centers)
    close(proposer.loss(hidden, shuffled).total, proposer.loss(hidden, target).total)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("queries", ["proposed", "learned"])
@pytest.mark.parametrize("core", CORES)
def test_every_parameter_has_a_gradient(core, queries):
    torch.manual_seed(5)
    model, batch = detector(core, queries=queries), make_batch(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    never = {name for name, _ in model.named_parameters()}
    for _ in range(4):  # weights initialized to zero pass no gradient at first
        optimizer.zero_grad()
        model.loss(batch).total.backward()
        never &= without_gradient(model)
        optimizer.step()
    expected = FIRST_STEP.get(core, set())
    names = [name for name, _ in model.named_parameters()]
    if core in ("transformer", "alibi"):  # softmax ignores what all keys add to a query's scores
        expected = {name for name in names if name.endswith(".key.bias")}
    elif core == "without attention" and queries == "learned":  # nothing is read of the source
        parts = ("reader.", "core.encoder.")
        expected = expected | {name for name in names if name.startswith(parts)}
    assert never == expected


def test_loss_of_empty_rows_and_batches_without_elements():
    model = detector("transformer")
    target = LabeledRegions(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 0, 2))
    loss = model.loss(Batch(torch.zeros(2, 8, 3), target))
    assert loss.count == 2
    loss.total.backward()
    assert loss.total.isfinite()


@pytest.mark.usefixtures("no_shape_checks")  # the same calls as above, hundreds of times
@pytest.mark.parametrize("core", ["transformer", "recurrent"])
def test_training_finds_the_elements(core):
    torch.manual_seed(6)
    model, batch = detector(core, nms_threshold=0.3), make_batch(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(200):
        optimizer.zero_grad()
        loss = model.loss(batch)
        (loss.total / loss.count).backward()
        optimizer.step()
    score, label, region = model.eval()(batch.source).best()
    num_correct, more = 0, 0
    for row in range(16):
        is_real = batch.target.labels[row] >= 0
        count = int(is_real.sum())
        labels = sorted(batch.target.labels[row][is_real].tolist())
        middles = sorted(batch.target.regions[row][is_real][:, 0].tolist())
        near = sorted(region[row, :count, 0].tolist()) == pytest.approx(middles, abs=0.05)
        num_correct += near and sorted(label[row, :count].tolist()) == labels
        more += int((score[row, count:] > 0.5).sum())
    # By chance one row in five is right: the empty ones. The final accuracy depends on rounding.
    assert num_correct >= 12
    assert more <= 5


def test_padding_is_not_proposed():
    torch.manual_seed(7)
    model = detector("transformer")
    items = Padded(torch.randn(1, 8, 12), torch.tensor([5]))
    proposed = model.writer.propose(items, model.reader.centers)
    _, start = model.writer.select_queries(torch.randn(1, 8, 12), proposed)
    assert (proposed.logits[0, 5:] < -50).all()
    assert start.regions.shape == (1, 4, 2)


def test_untrained_decoder_returns_the_distinct_proposals():
    torch.manual_seed(8)
    model, source = detector("transformer").eval(), torch.randn(1, 8, 3)
    with torch.no_grad():
        proposed, predictions = model.hidden(source).proposed, model(source)
    # Untrained proposals have regions of 0.1 around their centers, which do not overlap: the best
    # four become queries.
    surest = proposed.logits.amax(-1)[0].topk(4).indices
    close(predictions.logits[0], proposed.logits[0, surest])
    close(predictions.regions[0], proposed.regions[0, surest])


def test_suppressed_proposals_give_queries_without_a_class():
    torch.manual_seed(9)
    writer = SetWriter(12, 3, axes=1, num_queries=4, blocks=1, centers=torch.rand(5, 1))
    logits = torch.full((1, 5, 3), -9.0)
    logits[0, :, 1] = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2])
    middles = torch.tensor([0.3, 0.31, 0.8, 0.32, 0.81])
    regions = torch.stack((middles, torch.full_like(middles, 0.2)), -1)[None]
    _, start = writer.select_queries(torch.randn(1, 5, 12), SetPredictions(logits, regions))
    assert start.regions[0, :, 0].tolist() == pytest.approx([0.3, 0.8, 0.31, 0.32])
    assert start.logits[0, :2, 1].tolist() == [3.0, 1.0]
    assert (start.logits[0, 2:].sigmoid() <= 0.011).all()


def test_sampled_keys_get_a_gradient_from_the_loss_of_their_row():
    core = TransformerConfig(**TRANSFORMER, layers=1, choice="hard", hard="reinforce")
    config = DetectorConfig(core=core, num_queries=4, dropout=0.0, queries="learned")
    batch = make_batch(3)
    model = build_detector(config, LineReader(8, 12), num_classes=3, axes=1).train()
    model.loss(batch).total.backward()
    for part in (model.core.encoder[0].attention, model.core.decoder[0].cross):
        assert part.query.weight.grad.abs().max() > 0
    model.eval()
    hidden = model.hidden(batch.source, batch.target)
    costs = model.writer.costs(hidden, batch.target)
    assert costs.items.shape == (3, 1)
    close(costs.items.sum(), model.writer.loss(hidden, batch.target)[0])
