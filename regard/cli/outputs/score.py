"""`regard score RUN FILE [TARGETS]`: log-probabilities of given texts, and of all of them."""

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from regard.cli.inputs import MAX_BLOCK, BadInputs, add_input_columns, read_inputs, read_lines
from regard.cli.runs import UseOptions, check_new, load_trained, read_command, reading_settings
from regard.data.tables import TABLES, Input
from regard.errors import DONE, UserError
from regard.recipes.base.answers import text_score
from regard.settings.declare import settings
from regard.system.files import check_file, suffix_of
from regard.system.progress import show_progress, track
from regard.system.table_writer import SUFFIXES, TableWriter, open_table_atomically, shorten_numbers

USAGE = "regard score RUN FILE|- [TARGETS] [options]"
ABOUT = (
    "Compute the log-probability of given texts: by a run of language, of each line of FILE that "
    "is not blank, or of the text in each row of a table, and if the run was trained on a table, "
    "with the token EOS before each text, which is only read, and after it; by a run of translate "
    "or dates, of the target of each pair given its source, in a table or in two text files. "
    "Prints a row per text, separated by tabs: `log_prob`, the natural logarithm, a sum over the "
    "tokens; `tokens`; `perplexity`, exp(-log_prob / tokens), a mean per token; `unknown`, number "
    "of tokens that are not in the vocabulary and count as <unk>, so that the text does not "
    "compare with others. "
    "The row `total` has the sums of all rows, and the perplexity per token; the row `corpus`, for "
    "a text file of language, those of the file as one text, line ends included, as `regard "
    "evaluate` reads it."
)
_TYPES = {"log_prob": float, "tokens": int, "perplexity": float, "unknown": int}


@settings
class ScoreOptions(UseOptions):
    """Options of `regard score`."""

    json: bool = False
    """Print one JSON object per row."""
    on_bad: Literal["error", "skip"] = "error"
    """Handling of texts that cannot be used (too long, not UTF-8, an empty side of a pair): error
    stops; skip counts them, and gives a row without numbers or leaves out a pair without a side."""
    out: Path | None = None
    """Table for the rows, which appears when it is complete: FILE.csv, .tsv, .jsonl or .parquet.
    Only `total` and `corpus` are printed then."""
    force: bool = False
    """Replace the file of --out if it exists."""


def run(argv: list[str]) -> int:
    """Parse the options, score the texts and print the scores."""
    folder, record, options, words = read_command(
        argv, ScoreOptions(), usage=USAGE, about=ABOUT, max_words=2, settings_of=reading_settings
    )
    if not words:
        raise UserError(f"FILE is missing: {USAGE}")
    out: Path | None = options.out
    if out is not None and out.suffix.lower() not in SUFFIXES:
        raise UserError(f"{out}: expected a table: {', '.join(SUFFIXES)}")
    check_new(out, force=options.force)
    trained = load_trained(folder, options, record)
    has_pairs = hasattr(trained.recipe, "encode_pairs")
    read = _read_pairs(words, trained, options) if has_pairs else _read_texts(words, trained)
    bad, log_probs = BadInputs(trained, options.on_bad), list[float]()
    tokens = unknown = 0
    has_lines = not has_pairs and suffix_of(words[0]) not in TABLES
    form = Path("output.jsonl" if options.json else "output.tsv")
    printed = TableWriter(form, sys.stdout.buffer, _TYPES)
    with ExitStack() as stack:
        stack.enter_context(show_progress(is_enabled=out is not None or not sys.stdout.isatty()))
        table = printed
        if out is not None:
            table = stack.enter_context(open_table_atomically(out, _TYPES))
        for block in track(read, "texts"):
            texts = [one for one in block if not has_lines or one.problem or one.value.strip()]
            for _, given, score in bad.answer(texts, trained.compute_scores):
                found: Any = dict.fromkeys(_TYPES)
                if not isinstance(score, UserError):
                    found = shorten_numbers(score)
                    log_probs.append(score["log_prob"])
                    tokens, unknown = tokens + score["tokens"], unknown + score["unknown"]
                inputs: Any = given.columns or {"text": given.value}
                if has_pairs:
                    inputs = dict(zip(("source", "target"), given.value, strict=True))
                cells = {"line": given.line} | found
                table.write(cells | add_input_columns(cells, inputs))
        if not bad.count:
            origin = "standard input" if words[0] == "-" else words[0]
            raise UserError(f"{origin}: has no text that is not blank.")
        total = text_score(math.fsum(log_probs), tokens, unknown)
        printed.write({"line": "total", **shorten_numbers(total)})
        if tokens and has_lines and words[0] != "-" and not bad.skipped:
            corpus = trained.evaluate(words[0])
            count = corpus["tokens"]
            whole = shorten_numbers(text_score(-count * corpus["nll"], count, unknown))
            printed.write({"line": "corpus", **whole})
    sys.stdout.buffer.flush()
    bad.report()
    return DONE


def _read_texts(words: list[str], trained: Any) -> Iterator[list[Input]]:
    """Return blocks of the lines of a file, or of the texts in a table."""
    if words[1:]:
        raise UserError(f"{words[1]!r} is an unexpected argument: this run scores single texts")
    if suffix_of(words[0]) not in TABLES:
        return read_lines(words[0], trained)
    check_file(Path(words[0]))
    return read_inputs(words, trained)


def _read_pairs(words: list[str], trained: Any, options: ScoreOptions) -> Iterator[list[Input]]:
    """Yield blocks of pairs, read as test data is."""
    tables = [word for word in words if suffix_of(word) in TABLES]
    if tables and words[1:]:
        raise UserError(f"{tables[0]}: is a table, expected a text file with a text in each line")
    changes: dict[str, Any] = {"test": words[0]}
    if hasattr(trained.config.data, "on_bad"):
        changes["on_bad"] = options.on_bad
    if words[1:] and not hasattr(trained.config.data, "test_target"):
        raise UserError(f"{words[1]!r} is an unexpected argument: give a table of pairs")
    if words[1:]:
        changes["test_target"] = words[1]
    pairs = trained.recipe.change(changes, for_test=True).read("test").data
    for begin in range(0, len(pairs), MAX_BLOCK):
        block = []
        for i in range(begin, min(begin + MAX_BLOCK, len(pairs))):
            pair = pairs.sources[i], pairs.targets[i]
            block.append(Input(pair, words[0], pairs.lines[i]))
        yield block
