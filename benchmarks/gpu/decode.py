"""Decoding 20 tokens a sentence with the same random weights (see benchmarks.peers.same_weights),
6 + 6 blocks of width 512, float32, engine torch: sentences a second and share of equal outputs.

`generate` is that of Transformers with its usual cache; `static` the same with a static cache, for
which it compiles a step on a GPU.
"""

import statistics

from benchmarks.gpu.measure import Setting, ratio, row, succeeds, verdict
from benchmarks.gpu.training import select_installed
from benchmarks.peers.engines import Decode, decode_with_transformers, part_by_part
from benchmarks.peers.material import test_sentences
from benchmarks.peers.options import Report
from benchmarks.peers.rounds import OURS, take_turns
from benchmarks.peers.same_weights import as_marian, our_translator
from benchmarks.peers.translators import SIZES
from regard.engines.registry import prepare

NAMES = (OURS, "generate", "static")
SETTINGS = {(1, 1): 4.0, (1, 4): 4.0, (64, 1): 2.0, (64, 4): 2.0, (512, 1): 1.5}
"""Batch and beam, and the least times as fast as `generate`."""


def contestants(size: str, setting: Setting) -> dict[str, Decode]:
    """Return the decoders, which have the same weights."""
    model = our_translator(SIZES[size])
    theirs = as_marian(model, SIZES[size]) if select_installed(["Transformers, generate"]) else None
    methods = {OURS: part_by_part(prepare("torch", model.to(setting.device)).search)}
    if theirs is not None:
        theirs.to(setting.device)
        methods["generate"] = decode_with_transformers(theirs)
        methods["static"] = decode_with_transformers(theirs, cache_implementation="static")
    return methods


def run(setting: Setting) -> None:
    assert setting.data is not None
    sentences = test_sentences(setting.data)
    size = "4+4 x 128" if setting.quick else "6+6 x 512"
    methods = contestants(size, setting)
    words = [*NAMES, "/ generate", "/ static", "= generate", "= static"]
    print(row("sentences/s", "batch, beam", *words))
    verdicts = []
    for (batch, beam), target in ({(2, 2): 4.0} if setting.quick else SETTINGS).items():
        part = sentences[300 : 300 + batch]
        outputs: dict[str, list[list[int]]] = {}

        def turn(name: str) -> None:
            outputs[name] = methods[name](part, batch, beam)  # noqa: B023  # called in this round
            setting.synchronize()

        names = [name for name in methods if succeeds(name, lambda n=name: turn(n), setting)]
        turns = {name: lambda _, n=name: turn(n) for name in names}
        rounds = 1 if setting.quick else 5
        times = take_turns(turns, rounds=rounds, report=Report(None)).seconds
        seconds = {name: statistics.median(values) for name, values in times.items()}
        cells = [batch / seconds[name] if name in seconds else None for name in NAMES]
        cells += [ratio(seconds, name, OURS) for name in NAMES[1:]]
        for name in NAMES[1:]:
            equal = [a == b for a, b in zip(outputs[OURS], outputs.get(name, []), strict=False)]
            cells.append(sum(equal) / len(equal) if equal else None)
        print(row(size, f"{batch}, {beam}", *cells), flush=True)
        name = f"batch {batch}, beam {beam} / generate"
        verdicts.append(verdict(name, ratio(seconds, "generate", OURS), "least", target))
    print("\n".join(verdicts))
