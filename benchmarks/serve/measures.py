"""The parts of the benchmark: what is measured, beside what is asked for."""

import json
import math
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import sync_playwright

from benchmarks.gpu.measure import verdict
from benchmarks.peers.options import Report
from benchmarks.serve.client import LEFT, Answer
from benchmarks.serve.material import SIZES, captions, export, mixed_texts, run_folder
from benchmarks.serve.processes import Offline, Server, Use, ctranslate2_server, regard_server

__all__ = ["OBSERVE", "PARTS", "Setup", "arrivals", "completed", "quantile"]

WARM = 1.0
"""Seconds at the beginning of a load that do not count."""
SMALL, LARGE = SIZES
REFUSED = 429
PATIENT = ("--limits.wait", "600", "--limits.deadline", "600")
"""Options of servers that refuse nothing, on a slow machine either."""


class Setup(NamedTuple):
    """The command line."""

    data: Path
    runs: Path
    quick: bool

    def choose(self, full: int, quick: int) -> int:
        """Return the number for this run."""
        return quick if self.quick else full

    def run(self, size: str) -> Path:
        """Return the run of a size."""
        return run_folder(self.data, self.runs, size)


class Load(NamedTuple):
    """A load of 64 connections: texts a second; mean, median and CPU seconds of a text."""

    rate: float
    mean: float
    median: float
    cpu: float


def completed(answers: Sequence[Answer], begin: float, end: float) -> float:
    """Return how many answers of status 200 came a second between two times."""
    count = sum(answer.status == 200 and begin <= answer.done < end for answer in answers)
    return count / (end - begin)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value such that this share of the values is not larger."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else math.nan


def arrivals(rate: float, begin: float, end: float, *, seed: int) -> list[float]:
    """Return the times of requests that come at random, `rate` a second (Poisson)."""
    draw, times = random.Random(seed), list[float]()
    at = begin + draw.expovariate(rate)
    while at < end:
        times.append(at)
        at += draw.expovariate(rate)
    return times


def check(answers: Sequence[Answer], *allowed: int) -> None:
    """Raise RuntimeError for an answer of another status."""
    if bad := {answer.status for answer in answers} - {200, *allowed}:
        raise RuntimeError(f"answers of status {sorted(bad)}")


def closed_loop(server: Server, texts: Sequence[str], seconds: float) -> Load:
    """Load a server with 64 connections, one text a request."""
    before = server.cpu()
    answers = server.send(texts, seconds=WARM + seconds)
    check(answers)
    cpu = (server.cpu() - before) / len(answers)
    waits = [answer.seconds for answer in answers if answer.done >= WARM]
    rate = completed(answers, WARM, WARM + seconds)
    return Load(rate, statistics.mean(waits), statistics.median(waits), cpu)


def others(use: Use) -> str:
    return f"other processes used {use.others():.2f} cores"


def throughput(setup: Setup, report: Report) -> None:
    """64 connections beside offline `predict`, which take turns."""
    for size, asked in ((SMALL, 0.85), (LARGE, 0.95)):
        run, texts = setup.run(size), captions(setup.data)[: setup.choose(1000, 250)]
        report.write(f"\n  {size}, 64 connections, beam 4: texts/s and CPU ms of a text, by round")
        ratios, cpu_ratios = list[float](), list[float]()
        with regard_server(run, *PATIENT) as server, Offline(run) as offline:
            closed_loop(server, texts, 2.0)
            use = Use(server, offline)
            for _ in range(setup.choose(7, 3)):
                before = offline.cpu()
                seconds = offline.predict(texts)
                rate, cpu = len(texts) / seconds, (offline.cpu() - before) / len(texts)
                load = closed_loop(server, texts, max(5.0, seconds))
                ratios.append(load.rate / rate)
                cpu_ratios.append(cpu / load.cpu)
                line = f"offline {rate:7.1f} {cpu * 1e3:6.2f}   served {load.rate:7.1f} "
                report.write(f"    {line}{load.cpu * 1e3:6.2f}   {ratios[-1]:.3f}")
            line = f"    by CPU {statistics.median(cpu_ratios):.3f}; {others(use)}"
        report.write(line)
        report.write(
            verdict(f"served / offline, {size}", statistics.median(ratios), "least", asked)
        )


def peer(setup: Setup, report: Report) -> None:
    """Beside CTranslate2 behind FastAPI, which take turns; texts of mixed lengths."""
    for size in (SMALL, LARGE)[: setup.choose(2, 1)]:
        run, texts = setup.run(size), mixed_texts(setup.data)
        with regard_server(run, *PATIENT) as ours, ctranslate2_server(export(run)) as theirs:
            servers = {"regard": ours, "CTranslate2 + FastAPI": theirs}
            outputs = [
                said_by(server, texts[: setup.choose(1000, 200)]) for server in servers.values()
            ]
            same = sum(map(str.__eq__, *outputs)) / len(outputs[0])
            report.write(f"\n  {size}, mixed lengths; same outputs {same:.1%}")
            use, loads = Use(ours, theirs), {name: list[Load]() for name in servers}
            for number in range(setup.choose(6, 2)):
                for name in sorted(servers, reverse=bool(number % 2)):
                    seconds = setup.choose(15, 5)
                    loads[name].append(closed_loop(servers[name], texts, seconds))
            capacity = statistics.median(load.rate for load in loads["CTranslate2 + FastAPI"])
            medians = {share: {name: list[float]() for name in servers} for share in (0.6, 0.9)}
            for share, found in medians.items():
                for number in range(setup.choose(4, 2)):
                    due = arrivals(share * capacity, 0.0, setup.choose(15, 8), seed=number)
                    for name, server in servers.items():
                        answers = server.send(texts, due=due)
                        check(answers)
                        found[name].append(statistics.median(a.seconds for a in answers))
            report.write("    64 connections: texts/s, mean ms, median ms, CPU ms")
            for name, found in loads.items():
                rates, mean, waits, cpu = (
                    statistics.median(column) for column in zip(*found, strict=True)
                )
                line = f"{rates:8.1f} {mean * 1e3:8.1f} {waits * 1e3:8.1f} {cpu * 1e3:8.2f}"
                report.write(f"    {name:22} {line}")
            report.write(f"    {others(use)}")
        pairs = [*zip(*loads.values(), strict=True)]
        ratio = statistics.median(our.rate / their.rate for our, their in pairs)
        report.write(verdict(f"throughput, {size}", ratio, "least", 1.3))
        for share, found in medians.items():
            rate, pairs = share * capacity, [*zip(*found.values(), strict=True)]
            ratio = statistics.median(our / their for our, their in pairs)
            at = f"at {rate:.0f} texts/s ({share:g} of CTranslate2's capacity)"
            times = [f"{statistics.median(own) * 1e3:.1f}" for own in found.values()]
            report.write(f"    {at}: median ms {', '.join(times)}")
            report.write(verdict(f"median latency {at}", ratio, "most", 0.7))


def said_by(server: Server, texts: Sequence[str]) -> list[str]:
    """Return the output text of each input."""
    answers = sorted(server.send(texts, count=len(texts), keep=True))
    check(answers)
    found = [json.loads(answer.body) for answer in answers]
    return [one["text"] if "text" in one else output(one)["text"] for one in found]


def output(reply: Any) -> Any:
    """Return the best output of a reply of /v1/predict to one input."""
    return reply["answers"][0]["outputs"][0]


def overload(setup: Setup, report: Report) -> None:
    """Three times the capacity, between two times of a fifth of it."""
    texts, length = captions(setup.data), setup.choose(60, 10)
    run, length_of_loops = setup.run(SMALL), setup.choose(20, 5)
    with regard_server(run, *PATIENT) as patient, regard_server(run) as server:
        closed_loop(patient, texts, 2.0)
        use = Use(patient, server)
        capacity = closed_loop(patient, texts, length_of_loops).rate
        begin, end = 5.0, 5.0 + length
        phases = (0.2, 0.0, begin), (3.0, begin, end), (0.2, end, end + 7.0)
        due = list[float]()
        for seed, (share, *times) in enumerate(phases):
            due += arrivals(share * capacity, *times, seed=seed)
        answers = server.send(texts, due=due)
        check(answers, REFUSED)
        capacity = (capacity + closed_loop(patient, texts, length_of_loops).rate) / 2
        report.write(f"\n  {SMALL}, capacity {capacity:.0f} texts/s; {others(use)}")
    during = [answer for answer in answers if begin <= answer.due < end]
    waits = [answer.seconds for answer in during if answer.status == 200]
    refusals = [answer.seconds for answer in during if answer.status == REFUSED]
    late = quantile([answer.sent - answer.due for answer in during], 0.99)
    count = f"{len(during):,} requests in {length} s, {len(refusals):,} refused"
    report.write(f"    {count}; sent at most {late * 1e3:.1f} ms (p99) after they were due")
    for name, values in (("accepted", waits), ("refused", refusals)):
        shares = [f"{quantile(values, share) * 1e3:.1f}" for share in (0.5, 0.9, 0.99, 0.999, 1.0)]
        report.write(f"    {name}, p50, p90, p99, p99.9, most: {', '.join(shares)} ms")
    accepted = completed(answers, begin + WARM, end) / capacity
    report.write(verdict("accepted / capacity", accepted, "least", 0.9))
    report.write(verdict("p99 of accepted, s", quantile(waits, 0.99), "most", 3.0))
    report.write(verdict("slowest refusal, ms", quantile(refusals, 1.0) * 1e3, "most", 20.0))
    calm = [
        [answer for answer in answers if first <= answer.due < last]
        for first, last in ((1.0, begin), (end + 2.0, math.inf))
    ]
    check(calm[1])
    medians = [statistics.median(answer.seconds for answer in part) for part in calm]
    report.write(
        f"    median before {medians[0] * 1e3:.1f} ms, 2 s after {medians[1] * 1e3:.1f} ms"
    )
    report.write(verdict("median 2 s after / before", medians[1] / medians[0], "most", 1.5))


def equality(setup: Setup, report: Report) -> None:
    """1,000 captions at random moments, and half as many requests that are canceled."""
    texts, draw = captions(setup.data), random.Random(2)
    with regard_server(setup.run(SMALL), *PATIENT) as server, Offline(setup.run(SMALL)) as offline:
        expected = offline.answer(texts)
        load = closed_loop(server, texts, 3.0)
        # Two captions, then a request whose client leaves at a random moment.
        bodies, leave = list[str](), dict[int, float]()
        for first, second in zip(texts[::2], texts[1::2], strict=True):
            leave[len(bodies) + 2] = draw.uniform(0.0, load.median)
            bodies += [first, second, f"{second} {first}"]
        due = sorted(draw.uniform(0.0, 1.5 * len(bodies) / load.rate) for _ in bodies)
        answers = sorted(server.send(bodies, due=due, leave=leave, keep=True))
    left = sum(answer.status == LEFT for answer in answers)
    kept = [answer for answer in answers if answer.number not in leave]
    check(kept)
    equal = 0
    for answer, wanted in zip(kept, expected, strict=True):
        found = json.loads(answer.body)["answers"][0]
        equal += found | wanted == found
    report.write(
        f"\n  {len(kept):,} captions, {left} requests canceled; {equal:,} equal to offline"
    )
    report.write(verdict("equal answers", equal / len(kept), "least", 1.0))


def page(setup: Setup, report: Report) -> None:
    """Milliseconds from a key that is pressed on the page to the first row of attention."""
    texts, durations = captions(setup.data)[: setup.choose(50, 10)], list[float]()
    with regard_server(setup.run(SMALL)) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        opened = browser.new_page()
        opened.goto(f"http://127.0.0.1:{server.port}/")
        opened.wait_for_selector(".host canvas")
        use = Use(server)
        for text in texts:
            opened.locator("textarea").fill(text[:-1])
            opened.wait_for_timeout(1_000)  # its answer has come
            opened.evaluate(OBSERVE)
            opened.locator("textarea").press(text[-1])
            durations.append(opened.evaluate("window.firstRow"))
        report.write(
            f"\n  {SMALL}, {len(texts)} captions; {others(use)}, of which the browser is one"
        )
        browser.close()
    shares = [f"{quantile(durations, share):.0f}" for share in (0.5, 0.9, 1.0)]
    report.write(f"    p50, p90, most: {', '.join(shares)} ms")
    report.write(verdict("key to first row, ms (p90)", quantile(durations, 0.9), "most", 150.0))


OBSERVE = """() => {
  const begin = performance.now();
  window.firstRow = new Promise((done) => {
    const observer = new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) if (entry.startTime >= begin) done(entry.duration);
    });
    observer.observe({ type: "measure" });
  });
}"""
"""Let the page keep the duration of the next measure, which it takes from a key to a first row."""


def soak(setup: Setup, report: Report) -> None:
    """100,000 requests: memory, threads and descriptors."""
    texts, count = captions(setup.data), setup.choose(100_000, 5_000)
    held = list[dict[str, int]]()
    with regard_server(setup.run(SMALL), *PATIENT) as server:
        for part in (count // 10, count - count // 10):
            start = time.perf_counter()
            check(server.send(texts, count=part))
            rate = part / (time.perf_counter() - start)
            time.sleep(2.0)  # connections are closed
            held.append(server.held())
            report.write(f"    {part:,} requests, {rate:.0f} a second: {held[-1]}")
    first, last = held
    report.write(verdict("memory", last["VmRSS"] / first["VmRSS"], "most", 1.03))
    for name in ("Threads", "descriptors"):
        report.write(verdict(f"more {name}", float(last[name] - first[name]), "most", 0.0))


PARTS: dict[str, Callable[[Setup, Report], None]] = {
    part.__name__: part for part in (throughput, peer, overload, equality, page, soak)
}
