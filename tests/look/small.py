"""A small encoder-decoder with random weights, and captures of its outputs."""

import torch

from regard.decode.config import DecodeConfig
from regard.decode.search import search
from regard.look.capture import Capture
from regard.look.record import record
from regard.look.sample import Axis, Sample
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.models.model import Model

PAD, BOS, EOS = 0, 2, 3
SENTENCES = [[5, 6, 7, 8, 3], [9, 4, 3], [4, 5, 6, 7, 8, 9, 3], [8, 3]]

CORES = {
    "transformer": TransformerConfig(width=16, heads=2, layers=2, feedforward=32),
    "recurrent": RecurrentConfig(width=16, hidden=16, attention="additive"),
}


def small(core: str = "transformer", *, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    model = build(ModelConfig(core=CORES[core], tie="none"), source_vocab=10, target_vocab=9).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)  # so that outputs differ, and beams diverge from the start
    return model


def label(token: int) -> str:
    return f"t{token}"


def samples(sentences: list[list[int]]) -> list[Sample]:
    return [
        Sample(
            title=" ".join(map(str, ids)),
            axes={"source": Axis(labels=tuple(f"s{number}" for number in ids), kind="token")},
            tokens=lambda tokens: [label(token) for token in tokens],
            text=lambda tokens: " ".join(label(token) for token in tokens),
            begin="begin",
        )
        for ids in sentences
    ]


def capture_search(
    model: Model, sentences: list[list[int]], *, beam: int = 1, n_best: int = 1, **settings: object
) -> Capture:
    config = DecodeConfig(beam=beam, n_best=n_best, max_length=8, batch_tokens=40)
    with record(model, **settings) as capture, capture.trace.segment(samples(sentences)):
        search(model, sentences, config=config, bos=BOS, eos=EOS, pad=PAD, trace=capture.trace)
    return capture
