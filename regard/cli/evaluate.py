"""`regard evaluate RUN`: the metrics of a trained run on its test data, or on other data."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.cli.runs import DecodingOptions, check_new, load_trained, read_command, say_if_slow
from regard.errors import DONE
from regard.recipes.base.entry import keep_test, without_test
from regard.recipes.base.run import Run
from regard.recipes.metrics.report import score_table
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import find_unfinished_step, read_run
from regard.settings.declare import settings
from regard.settings.tree import settings_by_path
from regard.system.progress import show_progress
from regard.system.verbosity import print_notice
from regard.system.writing import open_text_atomically, valid_text

USAGE = "regard evaluate RUN [options]"
ABOUT = "Evaluate a trained model on the test data of its run, or on other data of the same kind."


@settings
class EvaluateOptions(DecodingOptions):
    """Options of `regard evaluate`."""

    json: bool = False
    """Print one JSON object instead of tables."""
    predictions: Path | None = None
    """File for the answer to each example, with its reference: one line of JSON each."""
    force: bool = False
    """Replace the file of --predictions if it exists."""


def run(argv: list[str]) -> int:
    """Parse the options, evaluate and print the scores."""
    command = read_command(
        argv, EvaluateOptions(), usage=USAGE, about=ABOUT, settings_of=test_settings
    )
    folder, record, options, _ = command
    if not record.config.data.test:
        record = replace(record, config=keep_test(record.config, read_run(folder).config))
    out = options.predictions
    check_new(out, force=options.force)
    trained = load_trained(folder, options, record)
    step = find_unfinished_step(folder)
    if step is not None:
        print_notice(
            f"training of {folder} has not finished: its last checkpoint is of step {step:,}; "
            f"`regard train --run {folder}` continues it"
        )
    writing = nullcontext() if out is None else open_text_atomically(out)
    with writing as file, say_if_slow("evaluating on the test data"), show_progress():
        scores = trained.evaluate(predictions=file)
    text = json.dumps(scores, ensure_ascii=False) if options.json else score_table(scores)
    print(valid_text(text))
    return DONE


def test_settings(run: Run) -> tuple[Any, list[str]]:
    """Return the settings of a run without its test data, and the paths that may change."""
    entry, config = get_entry(run.recipe), without_test(run.config)
    paths = settings_by_path(config)
    return config, [path for path in paths if entry.may_change(path, for_test=True)]
