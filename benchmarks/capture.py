"""What looking costs a search: nobody looking, and a capture of everything that it reads.

    python -m benchmarks.capture [--seconds 2]

telling   one telling that nobody hears; a step of a search has three or four.
off       a search whose tellings nobody hears, beside one from which the telling is taken out; and the same between two
          searches alike, which is the noise. Pairs of runs, median of their ratio, processor time of one thread.
on        a search inside `record`, beside one without; then what putting the maps together takes, and the page.
memory    tensors alive at once beyond those of the search alone (counted), and what the capture keeps.
"""

import argparse
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import torch

from benchmarks.record import in_pairs, peak, seconds
from regard.decode.config import DecodeConfig
from regard.decode.search import search
from regard.look.record import record
from regard.models.build import build
from regard.models.config import ModelConfig, TransformerConfig
from regard.telling import Rows, tell

_WORK = [(1, 1), (1, 5), (16, 1), (16, 5)]
"""Sentences at once, and beams."""
_LENGTH = 20


@contextmanager
def without_telling() -> Iterator[None]:
    """Searches as they would be if they told nothing."""
    names = [f"regard.decode.{module}.tell" for module in ("beam", "greedy", "search")]
    patches = [mock.patch(name, new=_nothing) for name in names]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def _nothing(_make: Callable[[], object]) -> None:
    """In place of telling."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    core = TransformerConfig(width=128, heads=4, layers=4, feedforward=256)
    model = build(ModelConfig(core=core, tie="target"), source_vocab=8000, target_vocab=8000).eval()
    print(f"one thread, torch {torch.__version__}; 4 + 4 layers of 128, {_LENGTH} tokens in, {_LENGTH} out")
    each = min(timeit.repeat(lambda: tell(lambda: Rows(())), number=100_000, repeat=5)) / 100_000
    print(f"a telling that nobody hears: {each * 1e9:.0f} ns")
    for rows, beam in _WORK:
        sentences = torch.randint(4, 8000, (rows, _LENGTH)).tolist()
        config = DecodeConfig(beam=beam, max_length=_LENGTH)

        def run(sentences: list[list[int]] = sentences, config: DecodeConfig = config) -> object:
            return search(model, sentences, config=config, bos=2, eos=3, pad=0)

        timed(run, f"{rows:>3} sentences, beam {beam}", model, options.seconds)


def timed(run: Callable[[], object], name: str, model: torch.nn.Module, budget: float) -> None:
    """Print all rows of one search."""

    def plain() -> float:
        return seconds(run, nullcontext())

    for what, other in (("off", lambda: seconds(run, without_telling())), ("noise", plain)):
        one, two, ratio = in_pairs(plain, other, budget)
        print(f"{name}  {what:>6} {one * 1e3:>8.1f} ms  {two * 1e3:>8.1f} ms  {ratio:.3f}", flush=True)
    one, two, ratio = in_pairs(lambda: seconds(run, record(model)), plain, budget)
    extra = peak(run, record(model)) - peak(run, nullcontext())
    with record(model) as capture:
        run()
    kept = sum(call.nbytes for read in capture.recording for call in capture.recording[read])
    start = time.process_time()
    count = sum(one.weights.numel() for seen in capture for one in seen.maps)
    made = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        size = capture.save(Path(folder) / "a.html").stat().st_size
        written = time.process_time() - start
    print(f"{name}  {'on':>6} {one * 1e3:>8.1f} ms  {two * 1e3:>8.1f} ms  {ratio:.2f}", flush=True)
    print(
        f"    {extra / 2**20:.1f} MB alive beyond it, {kept / 2**20:.1f} MB kept; {count:,} weights put together in ",
        end="",
    )
    print(f"{made * 1e3:.0f} ms, page of {size / 1e6:.1f} MB in {written * 1e3:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
