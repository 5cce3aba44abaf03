"""Basis of comparisons with other libraries: turns, ratios, counted work, equal weights."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.peers.decoded import report_decoding
from benchmarks.peers.engines import OURS, TOKENS, decode_with_transformers
from benchmarks.peers.growth import exponent
from benchmarks.peers.options import Report, parse_options
from benchmarks.peers.rounds import report_ratios, take_turns
from benchmarks.peers.same_weights import as_marian, our_translator
from benchmarks.peers.stepping import our_step, their_step
from benchmarks.peers.translators import flops
from regard.attention.masks import Padded
from regard.data.batches import PairBatch
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig

CONFIG = TransformerConfig(layers=1, width=8, heads=2, feedforward=16)


def test_everybody_begins_a_round_once() -> None:
    order: list[str] = []
    times = take_turns(
        {name: lambda _, name=name: order.append(name) for name in "abc"}, rounds=2, warmup=1
    )
    assert "".join(order) == "abcbcacab"
    assert {name: len(taken) for name, taken in times.seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_peer_that_fails_leaves_and_ours_does_not(tmp_path: Path) -> None:
    def fails(_: int) -> None:
        raise RuntimeError("no such kernel\nsecond line")

    report = Report(tmp_path / "out.txt")
    times = take_turns({"regard": lambda _: None, "peer": fails}, rounds=1, report=report)
    assert set(times.seconds) == {"regard"}
    assert "peer left: RuntimeError: no such kernel" in (tmp_path / "out.txt").read_text()
    with pytest.raises(RuntimeError, match="no such kernel"):
        take_turns({"regard": fails}, rounds=1, report=report)


def test_ratio_is_taken_round_by_round() -> None:
    seconds = {"regard": [1.0, 2.0, 4.0], "slow": [3.0, 4.0, 4.0], "fast": [1.5, 3.0, 2.0]}
    report = Report(None)
    ratios = report_ratios(
        report, SimpleNamespace(seconds=seconds, disturbed=0.0), [6.0, 6.0, 6.0], unit="things"
    )
    assert ratios == {"regard": 1.0, "slow": 2.0, "fast": 1.5}
    assert "1.50 times the best peer (fast)" in report.lines[-1]


def test_best_of_one_stream_and_of_any() -> None:
    rates = {
        "regard, x 1x1": [4.0],
        "regard, x 2x1": [9.0],
        "Transformers": [2.0],
        "CTranslate2 float32 2x1": [3.0],
    }
    outputs = {name: [[1, 2]] for name in rates} | {"Transformers": [[1, 3]]}
    report = Report(None)
    report_decoding(
        report, "title", rates, outputs, together=["regard, x 1x1", "regard, x 2x1", "Transformers"]
    )
    one, several = report.lines[-2:]
    assert "one stream: regard, x 1x1: 2.00 times Transformers" in one
    assert "CTranslate2" not in one
    assert "regard, x 2x1: 4.50 times Transformers, 3.00 times CTranslate2" in several
    assert any("Transformers" in line and line.endswith("0%") for line in report.lines)


def test_work_of_a_batch_by_hand() -> None:
    batch = batch_of([5], [4])
    # A block: 4 x 8 x 8 of attention and 2 x 8 x 16; reading the source: 2 x 8 x 8 for either side;
    # scores: 10,000 x 8.
    source, target = 512 + 128, 512 + 128 + 80_000
    assert flops(CONFIG, batch) == 6 * (5 * source + 3 * target)


def test_both_steps_give_the_mean_loss_of_a_token() -> None:
    torch.manual_seed(1)
    model = build(ModelConfig(core=CONFIG, dropout=0.0), source_vocab=9, target_vocab=9)
    batch = batch_of([5, 3], [4, 2])
    loss = model.loss(batch)
    expected = loss.total.item() / 4
    theirs = their_step(
        [torch.zeros(1, requires_grad=True)], lambda _: loss.total / loss.count, "float32"
    )
    assert theirs(batch) == pytest.approx(expected, rel=1e-6)
    assert our_step(model, "float32")(batch) == pytest.approx(expected, rel=1e-6)


def test_exponent_of_a_power() -> None:
    assert exponent((1, 2, 4, 8), [9.0, 4.0, 16.0, 64.0]) == pytest.approx(2.0)


def test_options_are_those_of_a_comparison() -> None:
    options = parse_options("about", ["--data", "here", "--quick"])
    assert (options.rounds(9), options.threads, options.memory) == (2, 2, "kept")


@pytest.mark.peers
@pytest.mark.parametrize("beam", [1, 2])
def test_transformers_gets_the_same_weights(beam: int) -> None:
    config = TransformerConfig(layers=1, width=16, heads=2, feedforward=32, norm_order="post")
    model = our_translator(config)
    sentences = [[7, 8, 9, 3], [10, 3]]
    first = OURS["regard, torch"].make(model)(sentences, 2, beam)
    assert [len(tokens) for tokens in first] == [TOKENS, TOKENS]
    assert first == decode_with_transformers(as_marian(model, config))(sentences, 2, beam)


def batch_of(sources: list[int], targets: list[int]) -> PairBatch:
    """Rows of these lengths, specials counted."""
    parts = [
        Padded(torch.full((len(lengths), max(lengths)), 5), torch.tensor(lengths))
        for lengths in (sources, targets)
    ]
    return PairBatch(*parts, tuple(range(len(sources))))
