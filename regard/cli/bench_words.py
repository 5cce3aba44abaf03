"""What `regard bench` found, as people read it: tables, bars, and what could be done about it."""

from collections.abc import Sequence
from typing import Any

from regard.cli.report import table

_BAR = 24
"""Characters of the longest bar."""
_MUCH = 40.0
"""Per cent of the time."""
_FASTER = _CACHED = _SLOWER = 1.3
_OTHER = "other operators"

Found = dict[str, Any]
Rows = list[list[str]]


def in_words(found: Found) -> str:
    """The whole report."""
    parts = [
        f"{found['run']}: recipe {found['recipe']}, {found['weights']:,} weights, {found['weights_mb']:,.3g} MB",
        _machine(found["machine"]),
        _training(found["training"]),
        _using(found),
        *(_where(name, shares) for name, shares in panels(found)),
        *_watching(found),
    ]
    told = [f"  {one}" for one in hints(found)]
    return "\n\n".join([*parts, *(["\n".join(["what could be tried", *told])] if told else [])])


def panels(found: Found) -> list[tuple[str, list[Found]]]:
    """What was looked into, each with its groups."""
    shown = [("training", found["training"]["where"])] if "where" in found["training"] else []
    several = len(found["using"].get("where", ())) > 1
    for one in found["using"].get("where", ()):
        engine = f", {one['engine']}" if several else ""
        shown.append((f"{one['way']}, one at a time{engine}", one["where"]))
    return shown


def _machine(machine: Found) -> str:
    title = f"machine: {machine['processor']}, {_count(machine['threads'], 'thread')}, torch {machine['torch']}"
    if machine["device"] != "cpu":
        title += f", {machine['device']}"
    rows = []
    for precision, products in machine["products_gflops"].items():
        each = ", ".join(f"{name} {rate:,.0f}" for name, rate in products.items())
        is_emulated = precision == "bfloat16" and not machine["has_native_bfloat16"]
        note = f"{each}; emulated" if is_emulated else each
        rows.append([f"matrix products, {precision}", f"{max(products.values()):,.0f} GFLOP/s", f"({note})"])
    rows.append(["reading memory", f"{machine['memory_read_gb_s']:,.0f} GB/s", ""])
    rows.append(["copying memory", f"{machine['memory_copy_gb_s']:,.0f} GB/s", "(read and written)"])
    again = machine["weights_read_gb_s"]
    cached = "(they stay in a cache)" if again > _CACHED * machine["memory_read_gb_s"] else ""
    rows.append(["as many bytes as the weights", f"{again:,.0f} GB/s", f"read again and again {cached}".rstrip()])
    return f"{title}\n{table(rows)}"


def _training(training: Found) -> str:
    if "missing" in training:
        return f"training: not measured, for the data cannot be read: {training['missing']}"
    title = (
        f"training in {training['precision']}, on {training['batches']} of the {training['steps_an_epoch']:,} steps "
    )
    step = training["step"]
    spread = f"({_ms(step['low_ms'])} to {_ms(step['high_ms'])}: eight in ten of {step['measured']})"
    rows = [["a step", _ms(step["median_ms"]), spread]]
    rows.append(["examples a second", _number(training["examples_per_second"]), ""])
    if training["targets_per_second"] != training["examples_per_second"]:
        rows.append(["targets a second", _number(training["targets_per_second"]), ""])
    share = f"({training['percent_of_limit']:.0f} % of {training['limit_gflops']:,.0f})"
    rows.append(["matrix products", f"{training['gflops']:,.3g} GFLOP/s", share])
    rows.append(
        ["", f"{training['flop_a_step'] / 1e9:,.3g} GFLOP", "a step: of products alone, those of padding included"]
    )
    if training["padding_percent"]:
        rows.append(["padding", f"{training['padding_percent']:.1f} %", "of the places in a batch"])
    if training["peak_memory_mb"] is not None:
        before = f"({training['memory_before_mb']:,.0f} MB before, with the data read)"
        rows.append(["peak memory", f"{training['peak_memory_mb']:,.0f} MB", before])
    return f"{title}of an epoch\n{table(rows)}"


def _using(found: Found) -> str:
    using = found["using"]
    if "missing" in using:
        return f"using: not measured: {using['missing']} (--input FILE gives others)"
    several = len({one["engine"] for one in using["ways"]}) > 1
    rows = [["", "median", "95 % within", "answers/s", "at once", "answers/s"]]
    for one in using["ways"]:
        alone, many = one["one_by_one"], one["at_once"]
        times = [_ms(alone["median_ms"]), _ms(alone["p95_ms"])]
        rates = [_number(alone["answers_per_second"]), str(many["inputs"]), _number(many["answers_per_second"])]
        rows.append([_way(one, several), *times, *rates])
    lines = [f"using: {using['inputs']} inputs of the {using['inputs_from']}, one at a time and many at once"]
    lines.append(table(_columns(rows)))
    reading = [row for one in using["ways"] if (row := _reading(one, several))]
    if reading:
        lines += [
            "",
            "writing token after token, one input at a time: each step reads the weights once",
            table(reading),
        ]
    return "\n".join(lines)


def _reading(one: Found, several: bool) -> list[str] | None:
    alone = one["one_by_one"]
    if "steps_per_second" not in alone:
        return None
    steps = f"{alone['steps_an_answer']:.1f} steps an answer"
    rate = f"{_number(alone['steps_per_second'])} steps/s"
    read = f"weights read at {alone['weights_read_gb_s']:.3g} GB/s"
    share = f"{_percent(alone['percent_of_memory_read'])} % of what memory gives"
    if alone["percent_of_memory_read"] > _CACHED * alone["percent_of_weights_read"]:
        share += f", {_percent(alone['percent_of_weights_read'])} % of what the cache gives"
    return [_way(one, several), steps, rate, read, share]


def _where(name: str, shares: Sequence[Found]) -> str:
    most = max(one["percent"] for one in shares) or 1.0
    rows = [
        [one["group"], f"{one['percent']:5.1f}", "#" * round(_BAR * one["percent"] / most) + _named(one)]
        for one in shares
        if one["percent"] >= 0.05 or one is shares[-1]
    ]
    return f"where the time goes, %: {name}\n{table(rows)}"


def _named(share: Found) -> str:
    """What is meant by others."""
    return f" ({', '.join(share['operators'])})" if share["group"] == _OTHER else ""


def _watching(found: Found) -> list[str]:
    """How much slower all was while the profiler looked on, where it matters."""
    looks = [("a step", found["training"]), *(("an answer", one) for one in found["using"].get("where", ()))]
    much = [f"{what} {one['slower']:.1f} times" for what, one in looks if one.get("slower", 1.0) > _SLOWER]
    if not much:
        return []
    told = (
        f"While the profiler looked on, it took {' and '.join(much)} as long. That is taken off as far as it is known:"
    )
    return [f"{told}\nsmall operators may still look slower than they are."]


def hints(found: Found) -> list[str]:
    """What the figures suggest."""
    training, using, told = found["training"], found["using"], []
    products = found["machine"]["products_gflops"]
    faster = max(products["bfloat16"].values()) / max(products["float32"].values())
    shares = {one["group"]: one["percent"] for one in training.get("where", ())}
    is_wide = training.get("precision") == "float32" and found["machine"]["has_native_bfloat16"]
    if is_wide and faster > _FASTER and shares.get("matrix products", 0.0) > _MUCH:
        told.append(f"matrix products in bfloat16 are {faster:.1f} times as fast here: --train.precision bfloat16")
    if shares.get("Python and waiting", 0.0) > _MUCH:
        told.append("training waits for Python between small operations: larger batches do more in each")
    for one in using.get("ways", ())[:1]:
        gain = one["at_once"]["answers_per_second"] / one["one_by_one"]["answers_per_second"]
        if gain > _FASTER:
            told.append(f"inputs handed over together are answered {gain:.1f} times as fast: `regard predict RUN FILE`")
    return told


def _columns(rows: Rows) -> Rows:
    """Numbers at the right of their columns, names at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if not number else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def _way(one: Found, several: bool) -> str:
    return f"{one['way']}, {one['engine']}" if several else one["way"]


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
