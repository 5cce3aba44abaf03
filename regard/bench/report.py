"""Text report of `regard bench`."""

from typing import Any

from regard.system.terminal import table

Results = dict[str, Any]


def format_report(results: Results) -> str:
    """Return the tables of machine, training, inference, and operators."""
    machine, training = results["machine"], results["training"]
    title = f"{results['run']}: recipe {results['recipe']}, {results['parameters']:,} parameters"
    where = f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}"
    rows = []
    for precision, rate in machine["products_gflops"].items():
        rows.append([f"matrix products, {precision}", f"{rate:,.0f} GFLOP/s"])
    rows.append(["copying memory", f"{machine['copy_gb_s']:,.0f} GB/s"])
    parts = [f"{title}\n{where}, device {machine['device']}", f"machine\n{table(rows)}"]
    if "missing" in training:
        parts.append(f"training: not measured, {training['missing']}")
    else:
        parts.append(_format_training(training, machine["products_gflops"]))
    if results["inference"]:
        parts.append(_format_inference(results["inference"]))
    else:
        missing = results["inference_missing"]
        parts.append(f"inference: not measured, {missing} (--input FILE gives other inputs)")
    if "profile" in training:
        parts.append(_format_profile("training", training["profile"]))
    for mode in results["inference"]:
        parts.append(_format_profile(f"{mode['mode']}, {mode['engine']}", mode["profile"]))
    return "\n\n".join(parts)


def _format_training(training: Results, limits: Results) -> str:
    limit = limits[training["precision"]]
    rate = f"{_number(training['gflops'])} GFLOP/s, {100 * training['gflops'] / limit:.0f} % of"
    rows = [
        ["step", f"{_number(training['ms_per_step'])} ms"],
        ["examples", f"{_number(training['examples_per_second'])} per second"],
        ["targets", f"{_number(training['targets_per_second'])} per second"],
        ["matrix products", f"{rate} the machine's in {training['precision']}"],
    ]
    count = f"{training['batches']} of the {training['steps_per_epoch']:,} steps of an epoch"
    return f"training in {training['precision']}, {count}\n{table(rows)}"


def _format_inference(modes: list[Results]) -> str:
    rows = [["", "one at a time", "answers/s", "batch", "answers/s"]]
    for mode in modes:
        name, time = f"{mode['mode']}, {mode['engine']}", f"{_number(mode['ms_per_answer'])} ms"
        alone, batched = mode["answers_per_second"], mode["batched_answers_per_second"]
        rows.append([name, time, _number(alone), str(mode["batch"]), _number(batched)])
    return f"inference\n{table(rows)}"


def _format_profile(name: str, operators: list[Results]) -> str:
    rows = [["%", "ms", "calls", ""]]
    for row in [*operators[:-1][:12], operators[-1]]:
        percent, calls = f"{row['percent']:.1f}", str(row["calls"])
        rows.append([percent, _number(row["ms"]), calls, row["operator"]])
    return f"where the time goes: {name}\n{table(rows)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
