"""`regard evaluate RUN`: the metrics of a trained run on its test data, or on other data."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from regard.cli.notices import print_notice
from regard.cli.runs import (
    DecodingOptions,
    help_ending,
    load_trained,
    read_run_argument,
    say_if_slow,
    with_config,
)
from regard.errors import DONE, UserError
from regard.recipes.base.entry import keep_test, select_groups, without_test
from regard.recipes.metrics.report import score_table
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import check_data_files, find_unfinished_step
from regard.settings.declare import settings
from regard.settings.help import page
from regard.settings.options import NoSettings, parse, wants_help
from regard.settings.tree import collect_groups, settings_by_path
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
    config: Any = NoSettings()
    allowed: list[str] = []
    if record is not None:
        entry, config = get_entry(record.recipe), without_test(record.config)
        for path in settings_by_path(config):
            if entry.may_change(path, for_test=True):
                allowed.append(path)
    if wants_help(argv):
        groups = select_groups(collect_groups(config), allowed)
        options = collect_groups(EvaluateOptions())
        print(page(USAGE, ABOUT, [*options, *groups]) + help_ending("evaluate", record))
        return DONE
    parsed = parse(argv, EvaluateOptions(), config, allowed=allowed, max_positionals=1)
    if record is not None:
        config = parsed.config
        if not config.data.test:
            config = keep_test(config, record.config)
        check_data_files(record.recipe, config.data)
    out = parsed.own.predictions
    if out is not None:
        if out.suffix and out.suffix.lower() not in _SUFFIXES:
            raise UserError(
                f"--predictions writes JSON lines, so that the suffix must be "
                f"{' or '.join(_SUFFIXES)}, got {out}; "
                "`regard predict` with --out writes the answers as text"
            )
        if out.exists() and not parsed.own.force:
            raise UserError(f"{out} exists; it is replaced only with --force")
    trained = load_trained(folder, parsed.own, with_config(record, config))
    if (step := find_unfinished_step(folder)) is not None:
        print_notice(
            f"training of {folder} has not finished: its last checkpoint is of step {step:,}; "
            f"`regard train --run {folder}` continues it"
        )
    writing = nullcontext() if out is None else open_text_atomically(out)
    with writing as file, say_if_slow("evaluating on the test data"), show_progress():
        scores = trained.evaluate(predictions=file)
    print(json.dumps(scores, ensure_ascii=False) if parsed.own.json else score_table(scores))
    return DONE
