"""Text report of `regard bench`: tables, bars and suggestions."""

from typing import Any

from regard.system.terminal import table

_BAR = 24
"""Length of the longest bar, in characters."""
_MUCH = 40.0
"""Percentage of the time above which a group is worth a suggestion."""
_FASTER = _CACHED = _SLOWER = 1.3
_NAMES = 2
"""Number of operators shown for each group."""

Results = dict[str, Any]
Rows = list[list[str]]


def format_report(results: Results) -> str:
    """Return the whole report as text."""
    parts = [
        f"{results['run']}: recipe {results['recipe']}, {results['parameters']:,} parameters, "
        f"{results['parameters_mb']:,.3g} MB",
        _format_machine(results["machine"]),
        _format_training(results["training"]),
        _format_inference(results),
        *(_format_profile(name, profile) for name, profile in profiles(results)),
    ]
    suggestions = [f"  {hint}" for hint in hints(results)]
    if suggestions:
        parts.append("\n".join(["suggestions", *suggestions]))
    return "\n\n".join(parts)


def profiles(results: Results) -> list[tuple[str, Results]]:
    """Return the title and the measurements of each profile."""
    training, inference = results["training"], results["inference"].get("profiles", ())
    named = [("training", training)] if "profile" in training else []
    for profile in inference:
        engine = f", {profile['engine']}" if len(inference) > 1 else ""
        named.append((f"{profile['mode']}, one at a time{engine}", profile))
    return named


def hints(results: Results) -> list[str]:
    """Return suggestions that follow from the measurements."""
    training, inference, suggestions = results["training"], results["inference"], []
    products = results["machine"]["products_gflops"]
    faster = max(products["bfloat16"].values()) / max(products["float32"].values())
    shares = {share["group"]: share["percent"] for share in training.get("profile", ())}
    is_wide = training.get("precision") == "float32" and results["machine"]["has_native_bfloat16"]
    if is_wide and faster > _FASTER and shares.get("matrix products", 0.0) > _MUCH:
        suggestions.append(
            f"matrix products in bfloat16 are {faster:.1f} times as fast: --train.precision "
            f"bfloat16"
        )
    if shares.get("Python and compiled loops", 0.0) > _MUCH:
        suggestions.append("training waits for Python between small operations: use larger batches")
    for mode in inference.get("modes", ())[:1]:
        gain = mode["batched"]["answers_per_second"] / mode["single"]["answers_per_second"]
        if gain > _FASTER:
            suggestions.append(
                f"a batch of inputs is answered {gain:.1f} times as fast: `regard predict RUN FILE`"
            )
    return suggestions


def _format_machine(machine: Results) -> str:
    title = f"machine: {machine['processor']}, {_count(machine['threads'], 'thread')}, torch {machine['torch']}"
    if machine["device"] != "cpu":
        title += f", {machine['device']}"
    rows = []
    for precision, products in machine["products_gflops"].items():
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in products.items())
        is_emulated = precision == "bfloat16" and not machine["has_native_bfloat16"]
        note = f"{rates}; emulated" if is_emulated else rates
        rows.append(
            [f"matrix products, {precision}", f"{max(products.values()):,.0f} GFLOP/s", f"({note})"]
        )
    rows.append(["reading memory", f"{machine['memory_read_gb_s']:,.0f} GB/s", ""])
    rows.append(
        ["copying memory", f"{machine['memory_copy_gb_s']:,.0f} GB/s", "(read and written)"]
    )
    repeated = machine["parameters_read_gb_s"]
    cached = "(they fit into a cache)" if repeated > _CACHED * machine["memory_read_gb_s"] else ""
    rows.append(
        [
            "as many bytes as the parameters",
            f"{repeated:,.0f} GB/s",
            f"read repeatedly {cached}".rstrip(),
        ]
    )
    return f"{title}\n{table(rows)}"


def _format_training(training: Results) -> str:
    if "missing" in training:
        return f"training: not measured, because the data cannot be read: {training['missing']}"
    title = f"training in {training['precision']}, on {training['batches']} of the {training['steps_per_epoch']:,} steps "
    step = training["step"]
    spread = f"({_ms(step['p10_ms'])} to {_ms(step['p90_ms'])}: 10th to 90th percentile of {step['num_calls']})"
    rows = [["step", _ms(step["median_ms"]), spread]]
    rows.append(["examples per second", _number(training["examples_per_second"]), ""])
    if training["targets_per_second"] != training["examples_per_second"]:
        rows.append(["targets per second", _number(training["targets_per_second"]), ""])
    share = f"({training['percent_of_limit']:.0f} % of {training['limit_gflops']:,.0f})"
    rows.append(["matrix products", f"{training['gflops']:,.3g} GFLOP/s", share])
    rows.append(
        [
            "",
            f"{training['flop_per_step'] / 1e9:,.3g} GFLOP",
            "per step, matrix products only, padding included",
        ]
    )
    if training["padding_percent"]:
        rows.append(
            ["padding", f"{training['padding_percent']:.1f} %", "of the positions in a batch"]
        )
    if training["peak_memory_mb"] is not None:
        before = f"({training['initial_memory_mb']:,.0f} MB before, with the data loaded)"
        rows.append(["peak memory", f"{training['peak_memory_mb']:,.0f} MB", before])
    return f"{title}of an epoch\n{table(rows)}"


def _format_inference(results: Results) -> str:
    inference = results["inference"]
    if "missing" in inference:
        return f"inference: not measured: {inference['missing']} (--input FILE gives other inputs)"
    modes = inference["modes"]
    several = len({mode["engine"] for mode in modes}) > 1
    rows = [["", "median", "95 % within", "answers/s", "batch", "answers/s"]]
    for mode in modes:
        alone, batched = mode["single"], mode["batched"]
        times = [_ms(alone["median_ms"]), _ms(alone["p95_ms"])]
        rates = [
            _number(alone["answers_per_second"]),
            str(batched["inputs"]),
            _number(batched["answers_per_second"]),
        ]
        rows.append([_label(mode, several), *times, *rates])
    lines = [
        f"inference: {inference['inputs']} inputs of the {inference['input_source']}, one at a "
        f"time and as a batch"
    ]
    lines.append(table(_align(rows)))
    reads = [row for mode in modes if (row := _format_reads(mode, several))]
    if reads:
        lines += [
            "",
            "token-by-token decoding, one input at a time: each step reads all parameters",
            table(reads),
        ]
    return "\n".join(lines)


def _format_reads(mode: Results, several: bool) -> list[str] | None:
    alone = mode["single"]
    if "steps_per_second" not in alone:
        return None
    steps = f"{alone['steps_per_answer']:.1f} steps per answer"
    rate = f"{_number(alone['steps_per_second'])} steps/s"
    read = f"parameters read at {alone['parameters_read_gb_s']:.3g} GB/s"
    share = f"{_percent(alone['percent_of_memory_read'])} % of the memory bandwidth"
    if alone["percent_of_memory_read"] > _CACHED * alone["percent_of_parameters_read"]:
        share += f", {_percent(alone['percent_of_parameters_read'])} % of the cache bandwidth"
    return [_label(mode, several), steps, rate, read, share]


def _format_profile(name: str, profile: Results) -> str:
    """Return a table of the groups of a profile, with their largest operators."""
    groups, calls = profile["profile"], profile["profiled_calls"]
    most = max(group["percent"] for group in groups) or 1.0
    rows = [["", "%", "ms", "GFLOP"]]
    ends = [""]
    for group in groups:
        if group["percent"] >= 0.05 or group is groups[-1]:
            flop = group["flop"] / calls / 1e9
            milliseconds = 1e3 * group["seconds"] / calls
            rows.append(
                [
                    group["group"],
                    f"{group['percent']:.1f}",
                    f"{milliseconds:.3g}",
                    f"{flop:.3g}" if flop else "",
                ]
            )
            names = [operator["name"] for operator in group["operators"][:_NAMES]]
            operators = ", ".join(name for name in names if name != group["group"])
            ends.append(f"{'#' * round(_BAR * group['percent'] / most):{_BAR}}  {operators}")
    lines = table([[*row, end] for row, end in zip(_align(rows), ends, strict=True)])
    slowdown = profile["profiler_slowdown"]
    note = (
        f"; with the profiler it takes {slowdown:.1f} times as long" if slowdown > _SLOWER else ""
    )
    return f"where the time goes: {name}, mean of {_count(calls, 'call')}{note}\n{lines}"


def _align(rows: Rows) -> Rows:
    """Align the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def _label(mode: Results, several: bool) -> str:
    return f"{mode['mode']}, {mode['engine']}" if several else mode["mode"]


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
