"""Cost of recording a search with a capture of all attention weights.

    python -m benchmarks.capture [--seconds 2]

noise     two equal searches: pairs of runs, median of their ratio, CPU time of one thread.
on        a search inside `record` and one without; then the time to assemble the maps and to write
the page.
memory    peak of live tensors beyond those of the search alone (counted), and the size of the
          capture.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from benchmarks.record import peak, seconds, time_pairs
from regard.decode.config import DecodeConfig
from regard.decode.search import search
from regard.look.capture import Capture
from regard.look.record import record
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.trace import Trace

_WORK = [(1, 1), (1, 5), (16, 1), (16, 5)]
"""Batch sizes and beam sizes."""
_LENGTH = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    core = TransformerConfig(width=128, heads=4, layers=4, feedforward=256)
    model = build(ModelConfig(core=core, tie="target"), source_vocab=8000, target_vocab=8000).eval()
    print(
        f"one thread, torch {torch.__version__}; 4 + 4 layers of 128, {_LENGTH} tokens in, "
        f"{_LENGTH} out"
    )
    for rows, beam in _WORK:
        sentences = torch.randint(4, 8000, (rows, _LENGTH)).tolist()
        config = DecodeConfig(beam=beam, max_length=_LENGTH)

        def run(
            trace: Trace | None,
            sentences: list[list[int]] = sentences,
            config: DecodeConfig = config,
        ) -> object:
            return search(model, sentences, config=config, bos=2, eos=3, pad=0, trace=trace)

        measure_search(run, f"{rows:>3} sentences, beam {beam}", model, options.seconds)


def measure_search(
    run: Callable[[Trace | None], object], name: str, model: torch.nn.Module, budget: float
) -> None:
    """Print all rows of one search."""

    def plain() -> object:
        return run(None)

    def run_recorded() -> Capture:
        with record(model) as capture:
            run(capture.trace)
        return capture

    def plain_seconds() -> float:
        return seconds(plain, nullcontext())

    first, second, ratio = time_pairs(plain_seconds, plain_seconds, budget)
    print(
        f"{name}  {'noise':>6} {first * 1e3:>8.1f} ms  {second * 1e3:>8.1f} ms  {ratio:.3f}",
        flush=True,
    )
    first, second, ratio = time_pairs(
        lambda: seconds(run_recorded, nullcontext()), plain_seconds, budget
    )
    extra = peak(run_recorded, nullcontext()) - peak(plain, nullcontext())
    capture = run_recorded()
    num_bytes = sum(call.nbytes for read in capture.recording for call in capture.recording[read])
    start = time.process_time()
    count = sum(map_.weights.numel() for sample_maps in capture for map_ in sample_maps.maps)
    assembled = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        size = capture.save(Path(folder) / "a.html").stat().st_size
        write_seconds = time.process_time() - start
    print(
        f"{name}  {'on':>6} {first * 1e3:>8.1f} ms  {second * 1e3:>8.1f} ms  {ratio:.2f}",
        flush=True,
    )
    print(
        f"    {extra / 2**20:.1f} MB more live tensors, {num_bytes / 2**20:.1f} MB recorded; ",
        end="",
    )
    print(
        f"{count:,} weights assembled in {assembled * 1e3:.0f} ms, page of {size / 1e6:.1f} MB in ",
        end="",
    )
    print(f"{write_seconds * 1e3:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
