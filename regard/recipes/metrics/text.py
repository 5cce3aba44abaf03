"""Metrics of text outputs with one or several references each.

exact   100 * outputs that equal their reference / all
bleu    corpus BLEU-4 by sacrebleu, with its signature        papineni2002, post2018
chrf    corpus chrF by sacrebleu                              popovic2015
ter     corpus translation edit rate by sacrebleu             snover2006
"""

from collections.abc import Mapping, Sequence
from typing import Any

from regard.recipes.metrics.bootstrap import Estimate
from regard.recipes.metrics.config import BleuConfig


def exact_match(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the percentage of outputs that equal one of their references."""
    pairs = zip(outputs, references, strict=True)
    return 100 * sum(output in own for output, own in pairs) / max(len(references), 1)


def bleu(
    outputs: Sequence[str], references: Sequence[Sequence[str]], config: BleuConfig
) -> dict[str, Any]:
    """Return corpus BLEU by sacrebleu, and its signature, which states how many references."""
    scorer = _bleu(config)
    score = float(scorer.corpus_score(list(outputs), _streams(references)).score)
    return {"bleu": score, "signature": str(scorer.get_signature())}


def further_scores(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return chrF and TER by sacrebleu's default settings. Source: popovic2015; snover2006."""
    from sacrebleu.metrics import TER  # noqa: PLC0415

    ter = TER().corpus_score(list(outputs), _streams(references))
    return {"chrf": chrf(outputs, references), "ter": float(ter.score)}


def chrf(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return corpus chrF by sacrebleu's default settings. Source: popovic2015."""
    from sacrebleu.metrics import CHRF  # noqa: PLC0415

    return float(CHRF().corpus_score(list(outputs), _streams(references)).score)


def paired_test(
    outputs: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    config: BleuConfig,
    *,
    names: Sequence[str],
    samples: int,
) -> Mapping[str, list[Estimate]]:
    """Return the estimates of sacrebleu's paired bootstrap of runs, by name of the metric.

    outputs: of each run; the first one is the baseline.
    """
    from sacrebleu.metrics import CHRF, TER  # noqa: PLC0415
    from sacrebleu.significance import PairedTest  # noqa: PLC0415

    metrics = {"bleu": _bleu(config), "chrf": CHRF(), "ter": TER()}
    systems = [(str(number), own) for number, own in enumerate(outputs)]
    estimates = {}
    for name in names:
        chosen, streams = {name: metrics[name]}, _streams(references)
        test = PairedTest(systems, chosen, streams, test_type="bs", n_samples=samples)
        results: Any = [*test()[1].values()][1]  # after the names of the systems
        estimates[name] = []
        for own, result in zip(outputs, results, strict=True):
            mean, half, p = float(result.mean), float(result.ci), result.p_value
            is_same = p is not None and [*own] == [*outputs[0]]  # sacrebleu has p < 0.05 for it
            one = Estimate(float(result.score), mean - half, mean + half, 1.0 if is_same else p)
            estimates[name].append(one)
    return estimates


def _bleu(config: BleuConfig) -> Any:
    from sacrebleu.metrics import BLEU  # noqa: PLC0415

    # force: no warning about tokenized texts, since `tokenize` is set explicitly for them.
    return BLEU(tokenize=config.tokenize, lowercase=config.lowercase, force=True)


def _streams(references: Sequence[Sequence[str]]) -> list[Any]:
    """Return the k-th references of all outputs, for each k; None for an output that has fewer."""
    most = max(map(len, references), default=1)
    return [[row[k] if k < len(row) else None for row in references] for k in range(most)]
