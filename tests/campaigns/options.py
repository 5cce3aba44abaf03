"""Random options: every setting of every recipe and command, YAML files of settings, and inputs of
trained runs.

A case is a command line. It must give a result without NaN, or one line and exit code 2, within 20
s on an otherwise idle machine and 2 GB, once its loops are compiled. Settings are collected from
the configurations, so new ones are covered automatically.

Some valid settings take long (a thousand layers, ten million scenes): if a valid value is not
quick, the case prints the configuration instead of training with it, so that it is still parsed and
checked.
"""

import importlib
import json
import os
import random
import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from regard.cli.bench import BenchOptions
from regard.cli.evaluate import EvaluateOptions
from regard.cli.look import LookOptions
from regard.cli.predict import PredictOptions
from regard.cli.train import TrainOptions
from regard.recipes.base.config import defaults_of_run
from regard.recipes.registry import RECIPES, get_entry
from regard.recipes.run_folder import read_run
from regard.settings.tree import Setting, collect_groups, to_plain
from regard.settings.values import Kind
from tests.campaigns.campaign import Campaign, Outcome
from tests.campaigns.child import ChildResult, command, judge
from tests.campaigns.options_damage import mutate, mutate_tree
from tests.campaigns.options_data import BASE, SMALL_MEMORY, finished_run, folder, inputs_of

__all__ = ["CAMPAIGN"]

NAMES = (
    "dates",
    "translate",
    "reviews",
    "tags",
    "images",
    "language",
    "tracks",
    "rebuild",
    "boxes",
    "points",
    "events",
    "draw",
    "caption",
)
QUICK = 8
ANY_IS_QUICK = {
    "lr",
    "autoencoder_lr",
    "eps",
    "weight_decay",
    "clip",
    "patience",
    "warmup",
    "vocab_size",
    "min_count",
} | {
    *(
        "batch_tokens",
        "max_length",
        "max_ratio",
        "seed",
        "keep",
        "log_every",
        "checkpoint_every",
        "checkpoint_minutes",
    ),
    *(
        "average",
        "validate_every",
        "width",
        "feedforward",
        "hidden",
        "attention_hidden",
        "self_attention_hidden",
        "code",
    ),
    *(
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "guidance",
        "soft_cap",
        "max_positions",
        "max_length",
        "window",
        "length_penalty",
    ),
    *(
        "noise",
        "weight",
        "target",
        "commitment",
        "minutes",
        "val_sample",
        "least",
        "neighbors",
        "source_column",
        "hop",
    ),
    *(
        "target_column",
        "text_column",
        "label_column",
        "first_year",
        "last_year",
        "context",
        "n_best",
        "threshold",
    ),
}
"""Settings for which no valid value takes long; values too large for memory are refused."""
WEIRD = (
    "",
    " ",
    "\x1b[31mred",
    "a\tb",
    "\u202egnp",
    "\ud800",
    "x" * 5000,
    "\u96ea",
    "'\"",
    "$(ls)",
    "%s%n",
    "[red]",
    "$\\frac$",
)
NUMBERS = (
    "0",
    "-1",
    "1e308",
    "1e-308",
    "-0.0",
    "nan",
    "inf",
    "-inf",
    "9" * 400,
    "-" + "9" * 5000,
    "1e400",
    "0x10",
    "1_0",
)
ENDINGS = ("", ".tsv", ".jsonl", ".csv", ".txt", ".png", ".json", ".npz")
HUGE = ("1000000000", "1" + "0" * 30, str(2**31), str(2**63 - 1), str(2**63), "100000", "65536")


def run(seed: int, number: int) -> Outcome:
    """Run the case of a seed and a number."""
    draw = random.Random(f"options/{seed}/{number}")
    kinds: list[tuple[Callable[[random.Random, Path], tuple[list[str], bytes]], int]] = [
        *((_training, 10), (_settings_file, 4), (_inference, 7), (_small_commands, 1)),
    ]
    make = draw.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    directory = Path(tempfile.mkdtemp(prefix="case-", dir=folder()))
    try:
        words, stdin = make(draw, directory)
        result = command(words, seconds=_patience(), stdin=stdin, env=SMALL_MEMORY)
        if (
            result.is_late
        ):  # the first case that needs a loop waits for its compilation, which is then cached
            command(words, seconds=300.0, stdin=stdin, env=SMALL_MEMORY)
            shutil.rmtree(directory / "run", ignore_errors=True)
            result = command(words, seconds=_patience(), stdin=stdin, env=SMALL_MEMORY)
        case = (
            shlex.join(words)
            .replace(str(directory), "CASE")
            .replace(str(folder()), "DATA")
            .encode("utf-8", "backslashreplace")
            .decode()[:600]
        )
        return _check_numbers(result, judge(result, case), words, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _patience() -> float:
    """Return the time limit: 20 s on an idle machine, longer under load."""
    return 20.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _check_numbers(
    result: ChildResult, outcome: Outcome, words: list[str], directory: Path
) -> Outcome:
    """Return the outcome, or `NaN accepted` if the result holds NaN."""
    report = directory / "run" / "report.json"
    if result.code == 0 and words[0] == "train" and report.is_file():
        text = json.dumps(
            [
                json.loads(report.read_text(encoding="utf-8")).get(name)
                for name in ("validation", "test")
            ]
        )
        if "NaN" in text or "Infinity" in text:
            return Outcome("NaN accepted", outcome.case, text[:200])
    if (
        result.code == 0
        and words[0] == "evaluate"
        and ("NaN" in result.out or " nan" in result.out)
    ):
        return Outcome("NaN accepted", outcome.case, result.out[:200])
    return outcome


def _training(draw: random.Random, directory: Path) -> tuple[list[str], bytes]:
    recipe = draw.choice(NAMES)
    config, options, is_quick = get_entry(recipe).config(), [], True
    for setting in _sample_settings(
        draw, [*collect_groups(config), *collect_groups(TrainOptions())]
    ):
        if setting.path in ("run", "print_config"):
            continue
        words, quick = _value(draw, setting, directory)
        options += [_name(setting.path), *words]
        is_quick &= quick
        for variant in (
            setting.variants.values()
            if setting.variants and words and words[0] in setting.variants
            else ()
        ):
            nested = [
                below
                for group in collect_groups(variant(), setting.path)
                for below in group.settings
            ]
            if variant.name == words[0] and nested:
                below = draw.choice(nested)
                words, quick = _value(draw, below, directory)
                options += [_name(below.path), *words]
                is_quick &= quick
    base = BASE[recipe]
    if any(
        word == "--model.core" for word in options
    ):  # another core does not have the options of the usual one
        base = [
            word for pair in _pairs(base) if not pair[0].startswith("--model.core") for word in pair
        ]
    return [
        "train",
        recipe,
        *base,
        *options,
        "--run",
        str(directory / "run"),
        *([] if is_quick else ["--print-config"]),
    ], b""


def _settings_file(draw: random.Random, directory: Path) -> tuple[list[str], bytes]:
    recipe = draw.choice(NAMES)
    content = to_plain(get_entry(recipe).config())
    path = directory / "run.yaml"
    for _ in range(draw.randint(0, 3)):
        mutate_tree(draw, content)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode(
        "utf-8", "surrogatepass"
    )
    path.write_bytes(mutate(draw, text) if draw.random() < 0.7 else text)
    if draw.random() < 0.05:
        path.unlink()
        _odd_path(draw, path)
    return [
        "train",
        recipe,
        "--config",
        str(path),
        "--run",
        str(directory / "run"),
        "--print-config",
    ], b""


def _inference(draw: random.Random, directory: Path) -> tuple[list[str], bytes]:
    recipe = draw.choice(NAMES)
    command_name = draw.choices(("predict", "look", "evaluate", "bench"), (6, 4, 3, 1))[0]
    path = finished_run(recipe)
    record = read_run(path)
    options = {
        "predict": PredictOptions,
        "look": LookOptions,
        "evaluate": EvaluateOptions,
        "bench": BenchOptions,
    }
    entry = get_entry(record.recipe)
    own = {"predict": entry.options, "evaluate": entry.evaluation}
    settings = collect_groups(options[command_name]())
    settings += (
        collect_groups(defaults_of_run(own[command_name], record.config))
        if command_name in own
        else []
    )
    words, stdin = [command_name, str(path)], b""
    if command_name in ("predict", "look") and draw.random() < 0.95:
        inputs, stdin = _input(draw, recipe, directory)
        words += inputs
    elif command_name == "bench":
        words += ["--seconds", "0.01", "--batches", "1"]
    if command_name == "look":
        words += [
            "--out",
            str(
                directory / f"look{draw.choice(('.html', '.html', '.png', '.svg', '.safetensors'))}"
            ),
        ]
    for setting in _sample_settings(draw, settings, most=3):
        if setting.path == "open":
            continue
        values, is_quick = _value(draw, setting, directory)
        if is_quick:
            words += [_name(setting.path), *values]
    return words, stdin


def _small_commands(draw: random.Random, directory: Path) -> tuple[list[str], bytes]:
    command_name = draw.choice(
        ("recipes", "new", "", "train", draw.choice(WEIRD), "--version", "predict", "bench", "look")
    )
    words = [
        draw.choice((*WEIRD, *NUMBERS, "--help", "dates", "/", "a/b", "class", "a" * 300, "--x"))
        for _ in range(2)
    ]
    # `new` writes to the working directory, so only names that it refuses.
    words = [
        word
        for word in words[: draw.randint(0, 2)]
        if command_name != "new" or not word.isidentifier() or word == "class"
    ]
    return [command_name, *words] if "\0" not in command_name else [command_name], b""


def _input(draw: random.Random, recipe: str, directory: Path) -> tuple[list[str], bytes]:
    """Return texts, files and lines of standard input, valid and invalid."""
    lines = [
        b"May 1",
        b"a b",
        b"",
        b"\xff\xfe",
        b"a\0b",
        b"\x1b[2J",
        "\u96ea \U0001f600".encode(),
        b"x" * 3000,
        b"\r",
        b" ",
    ]
    content = b"\n".join(draw.choices(lines, k=draw.randint(0, 4))) + draw.choice(
        (b"", b"\n", b"\r\n")
    )
    if draw.random() < 0.03:
        content = draw.choice((b"\0", b"z")) * (100 << 20)
    path = directory / draw.choice(("in.txt", "in.png", "in.wav", "in", "in.lst"))
    kind = draw.choices(("right", "stdin", "text", "file", "odd", "cut"), (4, 2, 3, 3, 2, 2))[0]
    if kind == "right":
        return [draw.choice(inputs_of(recipe))], b""
    if kind == "stdin":
        return ["-"], content
    if kind == "text":
        return [
            draw.choice(
                (*WEIRD, *NUMBERS, "May 1", "a b c", "-", "--", "a" * 4000, str(directory), "/")
            )
        ], b""
    if kind == "file":
        path.write_bytes(content)
    elif kind == "odd":
        _odd_path(draw, path)
    else:
        valid = Path(inputs_of(recipe)[0])
        path.write_bytes(mutate(draw, valid.read_bytes() if valid.is_file() else b"a b"))
    return [str(path)], b""


def _sample_settings(draw: random.Random, groups: list[Any], most: int = 6) -> list[Setting]:
    settings = [setting for group in groups for setting in group.settings]
    return draw.sample(settings, min(len(settings), draw.randint(0, most)))


def _value(draw: random.Random, setting: Setting, directory: Path) -> tuple[list[str], bool]:
    """Return the words of an option, and whether it is quick if they are accepted."""
    kind, name = setting.kind, setting.path.rpartition(".")[2]
    if kind.bases == (bool,):
        word = draw.choice(("true", "false", "yes", "off", "maybe", ""))
        return ([word] if word else []), not (name == "compile" and word in ("true", "yes", ""))
    count = draw.choice((0, 1, 2, 3)) if kind.count is None else kind.count + (draw.random() < 0.03)
    pairs = [_draw_value(draw, kind, name, directory) for _ in range(count)]
    return [word for word, _ in pairs], all(quick for _, quick in pairs)


def _draw_value(draw: random.Random, kind: Kind, name: str, directory: Path) -> tuple[str, bool]:
    category = draw.choices(
        ("valid", "boundary", "number", "huge", "weird", "path"), (8, 4, 2, 2, 1, 1)
    )[0]
    if category in ("valid", "boundary") and kind.choices:
        return str(draw.choice(kind.choices)), True
    if category in ("valid", "boundary") and kind.within is not None:
        value = _within(draw, kind, category == "boundary")
        quick = value not in kind.within or name in ANY_IS_QUICK or value <= QUICK
        quick |= float in kind.bases and name != "seconds"  # `bench` takes as long as requested
        return repr(value), quick
    if kind.optional and draw.random() < 0.1:
        return "none", name != "steps"
    if category == "path" or (Path in kind.bases and draw.random() < 0.7):
        path = directory / f"path{draw.randrange(10**6)}{draw.choice(ENDINGS)}"
        if draw.random() < 0.8:
            _odd_path(draw, path)
        return str(path), True
    word = draw.choice(
        {"number": NUMBERS, "huge": HUGE, "weird": WEIRD}.get(category, (*NUMBERS, *HUGE, *WEIRD))
    )
    return word, name in ANY_IS_QUICK or not _is_valid(kind, word) or kind.bases == (str,)


def _is_valid(kind: Kind, word: str) -> bool:
    try:
        kind.convert(word)
    except ValueError:
        return False
    return True


def _within(draw: random.Random, kind: Kind, is_boundary: bool) -> float:
    """Return a number in the range, small ones more often; or one at its ends or just outside."""
    within = kind.within
    assert within is not None
    least, most = within.least, within.most
    if int not in kind.bases:
        value = least + (most - least) * draw.random() ** draw.choice((1, 4, 40))
        return float(
            draw.choice((least, most, least - 1e-9, most * (1 + 1e-9), 5e-324))
            if is_boundary
            else value
        )
    if is_boundary:
        return int(draw.choice((least, least - 1, least + 1, most, most + 1)))
    return int(
        draw.choice(
            (
                least,
                least + 1,
                draw.randint(int(least), int(min(most, least + 7))),
                draw.randint(int(least), int(most)),
            )
        )
    )


def _odd_path(draw: random.Random, path: Path) -> None:
    """Create something unexpected at the path, except a pipe without a writer, which would block by
    design."""
    match draw.randrange(1, 7):
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(
                draw.choice(("/dev/zero", "/dev/null", path.name, "nowhere", "/dev/stdin"))
            )
        case 3:
            path.write_bytes(b"")
        case 4:
            path.write_bytes(draw.randbytes(300))
        case 5:
            path.write_text(draw.choice(WEIRD[:3]) * 3 + "\n", encoding="utf-8")
        case 6:
            path.write_bytes(b"a\tb\n" * 3)
            path.chmod(0)


def _pairs(words: list[str]) -> list[list[str]]:
    """Group words into options with their values."""
    pairs: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            pairs.append([word])
        else:
            pairs[-1].append(word)
    return pairs


def _name(path: str) -> str:
    return "--" + path.replace("_", "-")


# Imported here, so that each case costs only a fork.
for _module in (
    *(
        f"regard.{name}"
        for name in ("recipes.base.run", "look.figures.draw", "look.page.page", "bench.bench")
    ),
    *(f"regard.engines.{name}" for name in ("torch", "compiled.engine")),
    *(str(entry.recipe).partition(":")[0] for entry in RECIPES.values()),
):
    importlib.import_module(_module)
assert set(NAMES) == set(RECIPES), "every recipe has tiny data in options_data"

CAMPAIGN = Campaign(
    name="options",
    about="random options, settings files and inputs of every recipe and command",
    cases=3000,
    run=run,
    fine=frozenset({"accepted", "refused"}),
    seconds=600.0,
)
