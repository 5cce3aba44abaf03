"""`regard look RUN INPUT`: the attention weights of a model, as an interactive page or a figure.

    name of an existing file   its first lines, at most --limit; for a run that reads images or
    sounds, the file itself
    anything else              the text itself
    --test 3 7                 inputs of the run's test data, by index

`regard look FILE.safetensors` shows a saved capture, without the model, and `regard look RUN
--model` the model itself.
"""

import importlib
import os
import re
import shlex
import sys
import webbrowser
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from regard.cli.inputs import check_words, read_inputs
from regard.cli.notices import print_notice
from regard.cli.runs import (
    UseOptions,
    help_ending,
    input_settings,
    load_trained,
    read_run_argument,
    say_if_slow,
    with_config,
)
from regard.errors import DONE, UserError
from regard.look.figures.output import SUFFIXES, check_path
from regard.recipes.base.entry import select_groups
from regard.recipes.base.inputs import Input
from regard.recipes.registry import get_entry
from regard.settings.declare import settings
from regard.settings.help import page
from regard.settings.options import parse, wants_help
from regard.settings.ranges import Range
from regard.settings.tree import collect_groups

USAGE = "regard look RUN [INPUT ...] [--test NUMBER ...] [options]"
ABOUT = (
    "Show the attention weights of a trained model for INPUT: a text, a file with one text per "
    "line, an image, a sound "
    "or a recording of tracks, as the run reads them. Writes one HTML page that needs no network "
    "and opens it if there "
    "is a browser: alignments, heads, links, chains, heat over images, events over sounds, tracks, "
    "and decoding step "
    "by step. With --out FILE.png, .svg or .pdf a figure instead; with FILE.safetensors the "
    "weights themselves, which "
    "`regard look FILE.safetensors` shows without the model."
)
_CAPTURE = ".safetensors"
_WALKS = ("walk", "multihead")
"""Views of the vectors of a read."""
_MOST = 100
_LONGEST = 40


@settings
class LookOptions(UseOptions):
    """Options of the command."""

    out: Path | None = None
    """File to write: .html, .png, .svg, .pdf or .safetensors; a page in the run's folder looks/ if
    not given. A name without a suffix is a folder, which gets one .png per input."""
    test: tuple[Annotated[int, Range(0, 1_000_000_000)], ...] = ()
    """Inputs of the run's test data, by index from 0, instead of INPUT or after it."""
    limit: Annotated[int, Range(1, 10_000)] = 20
    """Maximum number of inputs of a file or folder: its first ones."""
    compare: Path | None = None
    """Another run, shown side by side with this one for the same inputs; or a saved capture,
    FILE.safetensors."""
    model: bool = False
    """Show the model instead, without INPUT: its encoder, predictor and decoder with sizes and
    shapes, as text, or as a figure with --out FILE.png, .svg or .pdf."""
    gradients: bool = False
    """Add the attribution of each weight to the output: weight times gradient."""
    open: bool = True
    """Open the page in a browser, if there is a screen."""
    walk: bool = False
    """Record the numbers of each read too, from its items to its output, for the view walk of the
    page. Figures of walk and multihead record them without it."""
    view: (
        Literal[
            "alignment",
            "chain",
            "heat",
            "boxes",
            "events",
            "tracks",
            "links",
            "walk",
            "multihead",
            "contributions",
            "positions",
            "manifold",
        ]
        | None
    ) = None
    """For a figure: the view to draw; a suitable one if not given. Two need no INPUT: positions,
    the matrices of positional encodings, and manifold, an autoencoder of two numbers with its data
    and energy."""
    kind: (
        Literal["encoder self", "decoder self", "cross", "recurrent", "chain", "pooling"] | None
    ) = None
    """For a figure: the kind of attention to draw; the one nearest to the output if not given."""
    layer: Annotated[int, Range(1, 1_000_000)] | None = None
    """For a figure: the layer whose heads are drawn, from 1; the last if not given."""
    head: Annotated[int, Range(1, 1_000_000)] | None = None
    """For the figures alignment, links and walk: the head, from 1; all (alignment), the mean
    (links) or the first (walk) if not given. For contributions: the score, from 1, best first."""
    query: Annotated[int, Range(1, 1_000_000_000)] | None = None
    """For the figure walk: the query whose steps are drawn, from 1; all if not given."""
    width: Annotated[float, Range(1, 200)] | None = None
    """For the figure alignment: its largest width in centimeters, to which cells shrink and in
    which panels are in rows; 18 if not given, and more if one matrix needs it."""
    sample: Annotated[int, Range(0, 1_000_000_000)] | None = None
    """For a figure: the index of the input, from 0; the first if not given."""
    force: bool = False
    """Replace the file if it exists."""


def run(argv: list[str]) -> int:
    """Parse the options, record the attention weights and write the page or the figure."""
    is_capture = bool(argv) and argv[0].endswith(_CAPTURE)
    folder, record = (Path(argv[0]), None) if is_capture else read_run_argument(argv, USAGE)
    config, allowed = input_settings(record)
    if wants_help(argv):
        groups = [*collect_groups(LookOptions()), *select_groups(collect_groups(config), allowed)]
        print(page(USAGE, ABOUT, groups) + help_ending("look", record))
        return DONE
    most = 1 if is_capture else 1 + _MOST
    parsed = parse(argv, LookOptions(), config, allowed=allowed, max_positionals=most)
    record = with_config(record, parsed.config)
    options, words = parsed.own, parsed.positionals[1:]
    if options.model or options.view in ("positions", "manifold"):
        _check_of_model(options, words, is_capture=is_capture)
        _show_model(load_trained(folder, options, record), options)
        return DONE
    if not words and not options.test and not is_capture:
        raise UserError(f"INPUT is missing: expected a text or a file. {USAGE}")
    _check(options, _pages_folder(folder), is_capture=is_capture)
    if record is not None:
        check_words(words, get_entry(record.recipe).input_of(record.config))
    others = () if options.compare is None else (options.compare,)
    runs = [(folder, record), *((path, None) for path in others)]
    models = [
        None if path.suffix == _CAPTURE else load_trained(path, options, run) for path, run in runs
    ]
    inputs, names = [], []
    if models[0] is not None:
        given = _inputs(words, models[0], options.limit)
        inputs, names = [one.value for one in given], [_title(one) for one in given]
        names += [f"test {models[0].input} {number}" for number in options.test]
        inputs += [models[0].test_input(number) for number in options.test]
        if _is_picture(options.out) and models[0].recipe.plots_answers:
            titles = [name or "input" for name in names]
            for number, path in _figure_paths(options, titles):
                models[0].plot_answer(inputs[number], path, overwrite=options.force)
                print(path)
            return DONE
    with say_if_slow("recording the attention"):
        captures = [
            _capture(*pair, options, inputs, names)
            for pair in zip(models, (folder, *others), strict=True)
        ]
    for sample_maps in captures[0]:
        print(sample_maps.sample.title)
    out = options.out or _new_page_path(
        folder, str(words[0]) if words else f"test {options.test[0]}" if options.test else ""
    )
    try:
        _write(captures, out, options)
    except UserError:
        raise
    except ValueError as error:  # weights that cannot be drawn, such as NaN
        raise UserError(f"{folder}: {error}") from error
    if out.suffix.lower() == ".html" and options.open and _has_screen():
        webbrowser.open(out.resolve().as_uri())
    return DONE


def _figure_paths(options: LookOptions, titles: Sequence[str]) -> list[tuple[int, Path]]:
    """Return the inputs to draw, by index, with the files of their figures; a new folder of figures
    is made.

    Raises: UserError if an input does not exist, or a file in the folder exists and is not to be
            replaced.
    """
    out, count = options.out, len(titles)
    assert out is not None
    if out.suffix:
        sample = options.sample or 0
        if sample >= count:
            raise UserError(f"--sample must be between 0 and {count - 1}, got {sample}")
        if count > 1:
            print_notice(
                f"{out} shows input {sample} of {count:,}: --sample N draws another, from 0 to "
                f"{count - 1}, and --out "
                "FOLDER all of them"
            )
        return [(sample, out)]
    digits = len(str(count - 1))
    paths = [
        out / f"{number:0{digits}}-{_stem(Path(title).stem)}.png"
        for number, title in enumerate(titles)
    ]
    out.mkdir(exist_ok=True)
    for path in paths:
        check_path(path, options.force)
    return [*enumerate(paths)]


def _check(options: LookOptions, pages: Path, *, is_capture: bool) -> None:
    """Raise UserError for an output that cannot be written, or options that need the model, before
    loading it."""
    out = options.out
    if is_capture and (options.test or options.gradients or options.walk):
        raise UserError("a saved capture has no model: --test, --gradients and --walk need the run")
    if options.walk and _is_picture(out) and options.view not in _WALKS:
        raise UserError(
            f"--walk has no effect on this figure: choose --view {' or '.join(_WALKS)}, or another "
            f"--out"
        )
    if options.gradients and _is_picture(out):
        raise UserError(
            "--gradients has no effect on a figure, which draws weights: choose --out FILE.html or "
            "FILE.safetensors"
        )
    if out is None:
        folder = pages if pages.exists() else pages.parent
        if not os.access(folder, os.W_OK):
            raise UserError(
                f"{pages}: the folder {folder} is not writable: choose another file with --out "
                f"FILE.html"
            )
        return
    if not out.suffix:
        _check_folder(out, options)
        return
    if out.exists() and not options.force:
        raise UserError(f"{out} exists; it is replaced only with --force")
    if options.compare is not None and out.suffix.lower() != ".html":
        raise UserError(f"--compare needs a page, FILE.html, but --out is {out}")
    check_path(out, options.force, (".html", _CAPTURE))


def _check_folder(out: Path, options: LookOptions) -> None:
    """Raise UserError if this cannot be a folder of figures."""
    if options.sample is not None or options.compare is not None:
        raise UserError(
            f"--out {out} has no suffix, so that it is a folder with a figure of each input: leave "
            f"out --sample and "
            "--compare, or name a file"
        )
    if out.exists() and not out.is_dir():
        raise UserError(
            f"{out} exists and is not a folder: give the file a suffix, such as {out}.html"
        )
    if not out.parent.is_dir():
        raise UserError(f"{out} cannot be created: the folder {out.parent} does not exist")


def _check_of_model(options: LookOptions, words: Sequence[str], *, is_capture: bool) -> None:
    """Raise UserError unless the options are those of a look at the model itself, without INPUT."""
    what = "--model" if options.model else f"--view {options.view}"
    if is_capture:
        raise UserError(f"a saved capture has no model: {what} needs the run")
    if words or options.test:
        raise UserError(f"{what} takes no INPUT: it shows the model")
    if options.gradients or options.walk or options.compare is not None:
        raise UserError(f"{what} shows the model: --gradients, --walk and --compare need an INPUT")
    if options.model and (options.view, options.kind, options.layer) != (None, None, None):
        raise UserError("--model has one view: leave out --view, --kind and --layer")
    if options.out is None and options.model:
        return
    if options.out is None or options.out.suffix.lower() not in SUFFIXES:
        raise UserError(f"{what} needs --out FILE with {', '.join(SUFFIXES)}, got {options.out}")
    check_path(options.out, options.force)


def _show_model(trained: Any, options: LookOptions) -> None:
    """Print or plot the model itself, or one of its parts."""
    if options.out is None:
        print("\n".join(trained.outline().lines()))
        return
    plots = {
        None: trained.plot_model,
        "positions": trained.plot_positions,
        "manifold": trained.plot_manifold,
    }
    plot = plots[options.view]
    plot(options.out, overwrite=options.force)
    print(options.out)


def _is_picture(out: Path | None) -> bool:
    """Return True for a figure, or a folder of figures."""
    return out is not None and out.suffix.lower() in ("", *SUFFIXES)


def _capture(
    trained: Any, path: Path, options: LookOptions, inputs: Sequence[Any], names: Sequence[str]
) -> Any:
    """Return the capture of a model on the inputs, or load a saved one."""
    if trained is None:
        return importlib.import_module("regard.look.capture").Capture.open(path)
    vectors = options.walk or (_is_picture(options.out) and options.view in _WALKS)
    return trained.look(inputs, gradients=options.gradients, vectors=vectors, names=names)


def _write(captures: Sequence[Any], out: Path, options: LookOptions) -> None:
    """Write the page, the capture, or the figures, and print the names of the files."""
    if not _is_picture(out):
        captures[0].save(
            out, compare=captures[1] if len(captures) > 1 else None, overwrite=options.force
        )
        print(out)
        return
    chosen = {"view": options.view, "kind": options.kind, "layer": options.layer}
    chosen |= {"head": options.head, "query": options.query, "width": options.width}
    for sample, path in _figure_paths(
        options, [maps.sample.title.partition(" -> ")[0] for maps in captures[0]]
    ):
        captures[0].plot(path, sample=sample, overwrite=options.force, **chosen)
        print(path)


def _inputs(words: Sequence[str], trained: Any, limit: int) -> list[Input]:
    """Return the inputs that the words name, of each file or folder at most `limit`."""
    inputs: list[Input] = []
    for word in words:
        found = (one for block in read_inputs([word], trained) for one in block)
        filled = (one for one in found if not isinstance(one.value, str) or one.value.strip())
        own = [*islice(filled, limit + 1)]
        if len(own) > limit:
            print_notice(f"{word}: only the first {limit:,} inputs are shown; --limit N shows more")
        inputs += own[:limit]
    for given in inputs:
        if given.problem:
            raise UserError(given.problem)
    if words and not inputs:
        raise UserError(f"{shlex.join(words)}: is empty, expected one input per line")
    return inputs


def _title(given: Input) -> str:
    """Return the name of an input that is not a text, for its title."""
    is_file = given.source is None and given.file is not None
    return Path(given.file or "").name if is_file else ""


def _new_page_path(origin: Path, name: str) -> Path:
    """Return the path of a new page named after the input: in the run's folder looks/, or beside
    the capture."""
    folder, stem = (
        _pages_folder(origin),
        origin.stem if origin.suffix == _CAPTURE else Path(name).name,
    )
    folder.mkdir(exist_ok=True)
    stem = _stem(stem)
    number, path = 1, folder / f"{stem}.html"
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.html"
    return path


def _stem(name: str) -> str:
    """Return a name of letters, digits and hyphens for a file about an input."""
    return re.sub(r"[^\w]+", "-", name).strip("-")[:_LONGEST] or "look"


def _pages_folder(origin: Path) -> Path:
    """Return the default folder of pages."""
    return origin.parent if origin.suffix == _CAPTURE else origin / "looks"


def _has_screen() -> bool:
    """Return True if the terminal is interactive and a browser can be shown."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
