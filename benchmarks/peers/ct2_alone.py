"""CTranslate2 in a separate process without torch, because torch's threads would slow it down.

    python -m benchmarks.peers.ct2_alone < JSON > JSON

In:  folder, kind (translator or generator), compute_type, inter_threads (workers), intra_threads
     (threads of each), rounds, and jobs: {name: {texts, batch, beam, tokens}}, texts as lists of
     tokens.
Out: {name: {seconds: one per round, outputs: ids or tokens of each text}}; a job is one call with
     all its texts, `batch` of them at once. The first round is not reported.
"""

import json
import subprocess
import sys
import time
from typing import Any

__all__ = ["run_alone", "run_jobs"]


def run_alone(task: dict[str, Any]) -> dict[str, Any]:
    """Run `run_jobs` in a separate process."""
    command = [sys.executable, "-m", "benchmarks.peers.ct2_alone"]
    result = subprocess.run(
        command, input=json.dumps(task), check=True, capture_output=True, text=True
    )
    return json.loads(result.stdout)


def run_jobs(task: dict[str, Any]) -> dict[str, Any]:
    """Run every job in each round, one after the other."""
    import ctranslate2  # noqa: PLC0415  # optional package

    threads = {name: task[name] for name in ("inter_threads", "intra_threads", "compute_type")}
    kind = ctranslate2.Translator if task["kind"] == "translator" else ctranslate2.Generator
    engine, results = kind(task["folder"], **threads), {}
    for number in range(task["rounds"] + 1):
        for name, job in task["jobs"].items():
            texts = job["texts"] if number else job["texts"][: max(2, job["batch"])]
            start = time.perf_counter()
            outputs = _outputs(engine, task["kind"], job, texts)
            if number:
                results.setdefault(name, {"seconds": []})["seconds"].append(
                    time.perf_counter() - start
                )
                results[name]["outputs"] = outputs
    return results


def _outputs(
    engine: Any, kind: str, job: dict[str, Any], texts: list[list[str]]
) -> list[list[Any]]:
    if kind == "translator":
        limits = {
            "beam_size": job["beam"],
            "max_decoding_length": job["tokens"],
            "max_batch_size": job["batch"],
        }
        return [result.hypotheses[0] for result in engine.translate_batch(texts, **limits)]
    limits = {
        "max_length": job["tokens"],
        "min_length": job["tokens"],
        "max_batch_size": job["batch"],
    }
    results = engine.generate_batch(
        texts, **limits, sampling_topk=1, include_prompt_in_result=False
    )
    return [result.sequences_ids[0] for result in results]


if __name__ == "__main__":
    json.dump(run_jobs(json.load(sys.stdin)), sys.stdout)
