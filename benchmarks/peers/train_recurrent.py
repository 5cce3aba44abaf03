"""Training speed of a recurrent translator with additive attention, compared with JoeyNMT and plain
PyTorch.

    python -m benchmarks.peers.train_recurrent --data FOLDER [--memory kept|default] [--quick]

GRU, one layer, encoder in both directions (128 each), decoder of 256, attention of 256, embeddings
of 256, a tied table, Multi30k batches of at most 4,096 tokens, label smoothing 0.1, dropout 0.1,
fused Adam. "plain PyTorch" is what one would write: nn.GRU reads the packed source, nn.GRUCell
takes target after target, v . tanh(W q + U k) scores what was read, and the scores of the
vocabulary are one product behind the loop.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.peers.material import VOCAB, inputs_and_targets, small, translation_batches
from benchmarks.peers.options import Options, Report, parse_options, training_precisions
from benchmarks.peers.rounds import (
    OURS,
    measure_growth,
    measure_growth_alone,
    report_ratios,
    take_turns,
)
from benchmarks.peers.stepping import Step, our_step, their_step
from benchmarks.peers.translators import DROPOUT, SMOOTHING
from regard.data.batches import PairBatch, count_target_tokens
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig
from regard.system.allocator import keep_freed_memory

SIZE = 256
NAMES = ("JoeyNMT", "plain PyTorch")


class PlainTranslator(nn.Module):
    """GRU translator with additive attention, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, SIZE, padding_idx=0)
        nn.init.normal_(self.table.weight, std=SIZE**-0.5)
        self.reader = nn.GRU(SIZE, SIZE // 2, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(2 * SIZE, SIZE)
        self.bridge = nn.Linear(SIZE, SIZE)
        self.of_key, self.of_query, self.to_score = (
            nn.Linear(SIZE, SIZE),
            nn.Linear(SIZE, SIZE),
            nn.Linear(SIZE, 1),
        )
        self.readout = nn.Linear(3 * SIZE, SIZE)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, source: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self._embed(source), lengths, batch_first=True, enforce_sorted=False
        )
        states, last = self.reader(packed)
        states = self.dropout(
            pad_packed_sequence(states, batch_first=True)[0]
        )  # (batch, source, SIZE)
        state = torch.tanh(self.bridge(torch.cat((last[0], last[1]), -1)))
        keys, padding = self.of_key(states), source.eq(0)
        targets = self._embed(inputs)
        context, outputs = self._read(state, keys, states, padding), []
        for target in targets.unbind(1):
            state = self.cell(torch.cat((target, context), -1), state)
            context = self._read(state, keys, states, padding)
            outputs.append(torch.cat((state, context), -1))
        hidden = torch.tanh(
            self.readout(self.dropout(torch.cat((torch.stack(outputs, 1), targets), -1)))
        )
        return nn.functional.linear(hidden, self.table.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * SIZE**0.5)

    def _read(self, state: Tensor, keys: Tensor, states: Tensor, padding: Tensor) -> Tensor:
        scores = self.to_score(torch.tanh(self.of_query(state)[:, None] + keys)).squeeze(-1)
        weights = scores.masked_fill(padding, float("-inf")).softmax(-1)
        return torch.bmm(weights[:, None], states).squeeze(1)


def contestant(name: str, precision: str) -> Step:
    """Return a training step of a newly initialized model."""
    torch.manual_seed(1)
    if name == OURS:
        core = RecurrentConfig(width=SIZE, hidden=SIZE, attention_hidden=SIZE)
        sizes = {"source_vocab": VOCAB, "target_vocab": VOCAB, "label_smoothing": SMOOTHING}
        return our_step(build(ModelConfig(core=core, dropout=DROPOUT), **sizes), precision)
    if name == "JoeyNMT":
        from benchmarks.peers import joeynmt  # noqa: PLC0415  # imported only if needed

        read = {
            "type": "recurrent",
            "rnn_type": "gru",
            "hidden_size": SIZE // 2,
            "bidirectional": True,
        }
        write = {
            "type": "recurrent",
            "rnn_type": "gru",
            "hidden_size": SIZE,
            "attention": "bahdanau",
        }
        write |= {"init_hidden": "bridge", "input_feeding": True, "hidden_dropout": DROPOUT}
        rest = {"num_layers": 1, "dropout": DROPOUT}
        module, mean_loss = joeynmt.model(
            VOCAB, read | rest, write | rest, width=SIZE, smoothing=SMOOTHING
        )
    else:
        module = PlainTranslator()

        def mean_loss(batch: PairBatch) -> Tensor:
            source, inputs, targets = inputs_and_targets(batch)
            logits = module(source, batch.source.lengths, inputs)
            return nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=SMOOTHING
            )

    module.train()
    return their_step(list(module.parameters()), mean_loss, precision)


def compare(options: Options, report: Report, precision: str) -> None:
    """Report one table."""
    rounds = options.rounds(10)
    batches = translation_batches(options.data, rounds + 2)
    steps = {name: contestant(name, precision) for name in (OURS, *NAMES)}
    turns = {name: lambda number, step=step: step(batches[number]) for name, step in steps.items()}
    times = take_turns(turns, rounds=rounds, warmup=2, report=report)
    alone = {}
    if not options.quick and precision == "float32":
        alone = {
            name: measure_growth_alone("benchmarks.peers.train_recurrent", options, name)
            for name in steps
        }
    report.write()
    report.write(
        f"  {precision}: target tokens/s min, median, max; times of it / ours"
        f"{'; memory growth of a separate process' if alone else ''}"
    )
    tokens = [float(count_target_tokens(batch)) for batch in batches[2:]]
    grown = {name: f" {megabytes:7,.0f} MB" for name, megabytes in alone.items()}
    report_ratios(
        report, times, tokens, unit="target tokens", extra=lambda name, _: grown.get(name, "")
    )


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(options.threads)
    if options.memory_of:
        (name,) = options.memory_of
        batches = translation_batches(options.data, 3)
        first, work = (lambda: _train(name, [small(batches[0])])), (lambda: _train(name, batches))
        print(measure_growth(first, work, keep_freed=options.memory == "kept"))
        return
    if options.memory == "kept":
        keep_freed_memory()
    report = Report(options.out)
    report.head("Training a recurrent translator", options, "joeynmt")
    for precision in training_precisions(options, report):
        compare(options, report, precision)


def _train(name: str, batches: list[PairBatch]) -> None:
    step = contestant(name, "float32")
    for batch in batches:
        step(batch)


if __name__ == "__main__":
    main()
