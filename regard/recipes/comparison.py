"""Comparison of runs of one recipe on the same test data."""

from collections.abc import Sequence
from typing import Any

from regard.errors import UserError
from regard.recipes.base.recipe import Dataset, Results
from regard.recipes.base.trained import TrainedRun
from regard.recipes.metrics.bootstrap import Estimate, paired_bootstrap
from regard.recipes.metrics.report import round_scores
from regard.recipes.metrics.text import chrf, paired_test
from regard.system.progress import track

TEXT_METRICS = ("bleu", "chrf", "ter")


def compare_runs(runs: Sequence[TrainedRun], *, samples: int, examples: int) -> dict[str, Any]:
    """Return the metrics of runs on their test data, or validation data if they have none, and the
    examples that differ most, as JSON.

    A metric without `low`, `high` and `p` is not computed from the answers to single examples.
    Raises: UserError naming two runs with other test data.
    """
    dataset, first = runs[0].read_results()
    results, count = [first], len(dataset)
    for run in runs[1:]:
        other, found = run.read_results()
        results.append(found)
        if _examples(dataset, first) != _examples(other, found):
            hint = "--data.test FILE evaluates all runs on the same data"
            if [*_names(dataset)] == [*_names(other)]:
                hint = "the inputs are equal, but not the references, as these runs read them"
            raise UserError(
                f"{runs[0].folder} and {run.folder} have other test data: the examples of "
                f"{dataset.origin} and {other.origin} differ; {hint}"
            )
    metrics, estimates = dict[str, Any](), dict[str, list[Estimate]]()
    names = [name for name in TEXT_METRICS if name in first.scores]
    if names and count > 1:
        outputs, config = [found.outputs for found in results], runs[0].config.bleu
        options = {"names": names, "samples": samples}
        estimates |= paired_test(outputs, first.references, config, **options)
    if count > 1:
        estimates |= paired_bootstrap([one.rescore for one in results], count, samples=samples)
    for name, value in first.scores.items():
        is_of_all = all(name in found.scores for found in results)
        if name in estimates:
            metrics[name] = [one._asdict() for one in estimates[name]]
        elif isinstance(value, float) and is_of_all and name != "length_penalty":
            metrics[name] = [{"score": found.scores[name]} for found in results]
    return {
        "data": f"{'' if runs[0].recipe.has_test() else 'validation data, '}{dataset.origin}",
        "examples": count,
        "samples": samples,
        "metrics": round_scores(metrics),
        "differences": _find_differences(runs, results, _names(dataset), examples),
    }


def _examples(dataset: Dataset[Any], results: Results) -> list[str]:
    """Return the inputs and targets of a dataset."""
    names = [*_names(dataset)]
    targets = results.references or dataset.references or names
    return [f"{name}\t{target}" for name, target in zip(names, targets, strict=True)]


def _names(dataset: Dataset[Any]) -> Sequence[Any]:
    return dataset.inputs if dataset.names is None else dataset.names


def _find_differences(
    runs: Sequence[TrainedRun], results: Sequence[Results], names: Sequence[Any], most: int
) -> list[dict[str, Any]]:
    """Return the examples whose metric differs most between runs; of equal ones, whose nll does."""
    metric, rows = runs[0].recipe.metric, []
    if results[0].outputs:
        metric = "chrf"
    elif all("bits_per_byte" in found.scores for found in results):
        metric = "bits_per_byte"  # tokenizers may differ
    for i in track(range(len(names)), "examples", len(names), size=lambda _: 1):
        scores, losses = [], []
        for found in results:
            own = found.rescore([i])
            if found.outputs:
                own = {metric: chrf([found.outputs[i]], [found.references[i]])}
            scores.append(own.get(metric, 0.0))
            losses.append(own.get("nll", 0.0))
        rows.append((max(scores) - min(scores), max(losses) - min(losses), i, scores))
    rows = sorted((row for row in rows if row[0] or row[1]), key=lambda row: (-row[0], -row[1]))
    chosen = [i for _, _, i, _ in rows[:most]]
    samples = [run.samples(chosen) for run in runs]
    differences = []
    for place, (*_, i, scores) in enumerate(rows[:most]):
        entry = {"input": i + 1, "source": str(names[i])}
        own = [found[place] for found in samples if found]
        if own:  # else texts without answers
            entry |= {"source": own[0]["source"], "reference": own[0]["reference"]}
            entry["outputs"] = [sample["output"] for sample in own]
        differences.append(entry | {"metric": metric, "scores": round_scores(scores)})
    return differences
