"""`regard evaluate RUN`: the metrics of a trained run on its test data, or on other data."""

import json
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

from regard.cli.notices import print_notice
from regard.cli.runs import (
    DecodingOptions,
    help_ending,
    load_trained,
    read_run_argument,
    say_if_slow,
)
from regard.errors import DONE, UserError
from regard.recipes.base.config import Evaluation, defaults_of_run
from regard.recipes.metrics.report import score_table
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import check_data_files, find_unfinished_step
from regard.settings.declare import settings
from regard.settings.help import page
from regard.settings.options import parse, wants_help
from regard.settings.tree import collect_groups
from regard.system.progress import show_progress
from regard.system.writing import open_text_atomically

USAGE = "regard evaluate RUN [options]"
ABOUT = "Evaluate a trained model on the test data of its run, or on other data of the same kind."
_SUFFIXES = (".jsonl", ".ndjson")
"""Suffixes of JSON lines; a name without a suffix is accepted, too."""


@settings
class EvaluateOptions(DecodingOptions):
    """Options of the command."""

    json: bool = False
    """Print one JSON object per test set instead of tables."""
    predictions: Path | None = None
    """File, .jsonl or .ndjson, to which the answer to each example is written, with its reference:
    a line of JSON each."""
    force: bool = False
    """Replace the file of --predictions if it exists."""


def run(argv: list[str]) -> int:
    """Parse the options, evaluate and print the scores."""
    folder, record = read_run_argument(argv, USAGE)
    defaults = (
        Evaluation()
        if record is None
        else defaults_of_run(get_entry(record.recipe).evaluation, record.config)
    )
    if wants_help(argv):
        print(
            page(USAGE, ABOUT, [*collect_groups(EvaluateOptions()), *collect_groups(defaults)])
            + help_ending("evaluate", record)
        )
        return DONE
    parsed = parse(argv, EvaluateOptions(), defaults, max_positionals=1)
    if "-" in parsed.config.data.test:
        raise UserError(
            "--data.test must be a file, got - (standard input): write the data to a file"
        )
    if record is not None:
        check_data_files(record.recipe, parsed.config.data)
        if (
            not parsed.config.data.test
            and get_entry(record.recipe).needs_data
            and not record.config.data.test
        ):
            raise UserError(f"the run {folder} has no test data: give it with --data.test")
    out = parsed.own.predictions
    if out is not None:
        if len(parsed.config.data.split()) > 1:
            raise UserError(
                "--predictions is the file of one test set: give one --data.test at a time"
            )
        if out.suffix and out.suffix.lower() not in _SUFFIXES:
            raise UserError(
                f"--predictions writes JSON lines, so that the suffix must be "
                f"{' or '.join(_SUFFIXES)}, got {out}; "
                "`regard predict` with --out writes the answers as text"
            )
        if out.exists() and not parsed.own.force:
            raise UserError(f"{out} exists; it is replaced only with --force")
    trained = load_trained(folder, parsed.own, record)
    if (step := find_unfinished_step(folder)) is not None:
        print_notice(
            f"training of {folder} has not finished: its last checkpoint is of step {step:,}; "
            f"`regard train --run {folder}` continues it"
        )
    others = {
        item.name: getattr(parsed.config, item.name)
        for item in fields(parsed.config)
        if item.name != "data"
    }
    for number, data in enumerate(parsed.config.data.split() or [None]):
        options = (
            {} if data is None else {item.name: getattr(data, item.name) for item in fields(data)}
        )
        (path,) = options.pop("test", (None,))
        what = "the test data" if data is None else data.test[0]
        writing = nullcontext() if out is None else open_text_atomically(out)
        with writing as file, say_if_slow(f"evaluating on {what}"), show_progress():
            scores = trained.evaluate(path, predictions=file, **options, **others)
        if parsed.own.json:
            print(json.dumps(scores, ensure_ascii=False))
        else:
            print("\n" * bool(number) + score_table(scores))
    return DONE
