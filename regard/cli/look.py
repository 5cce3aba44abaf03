"""`regard look RUN INPUT`: the attention weights of a model, as an interactive page or a figure."""

import importlib
import os
import re
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from regard.cli.inputs import check_words, read_inputs
from regard.cli.runs import UseOptions, input_settings, load_trained, read_command, say_if_slow
from regard.errors import DONE, UserError
from regard.look.output import SUFFIXES, check_path
from regard.recipes.base.entry import keep_test
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import read_run
from regard.settings.declare import settings
from regard.settings.options import NoSettings, parse
from regard.settings.ranges import Range
from regard.system.verbosity import print_notice

USAGE = "regard look RUN [INPUT ...] [--test NUMBER ...] [options]"
ABOUT = (
    "Show the attention weights of a trained model for INPUT: a text, a file with one text per "
    "line, an image, a sound or a recording of tracks, as the run reads them. Writes one HTML page "
    "that needs no network and opens it if there is a browser: alignments, heads, links, chains, "
    "heat over images, events over sounds, tracks, and decoding step by step. With --out FILE.png, "
    ".svg or .pdf a figure instead; with FILE.safetensors the weights themselves, which "
    "`regard look FILE.safetensors` shows without the model."
)
_WeightView = Literal["alignment", "chain", "heat", "boxes", "events", "tracks", "links"]
View = Literal[_WeightView, "walk", "multihead", "contributions", "positions", "manifold"]
Kind = Literal["encoder self", "decoder self", "cross", "recurrent", "chain", "pooling"]
_CAPTURE = ".safetensors"
_FIGURE = ("view", "kind", "layer", "head", "query", "width", "sample")
"""Options of figures."""


@settings
class LookOptions(UseOptions):
    """Options of `regard look`."""

    out: Path | None = None
    """File to write: .html, .png, .svg, .pdf or .safetensors; a page in the run's folder looks/ if
    not given. A name without a suffix is a folder, which gets one .png per input."""
    test: tuple[Annotated[int, Range(0, 1_000_000_000)], ...] = ()
    """Inputs of the run's test data, by index from 0, instead of INPUT or after it."""
    limit: Annotated[int, Range(1, 10_000)] = 20
    """Maximum number of inputs of a file or folder: its first ones."""
    compare: Path | None = None
    """Another run, or a saved capture FILE.safetensors, shown side by side with this one."""
    model: bool = False
    """Show the model instead, without INPUT: its encoder, predictor and decoder with sizes and
    shapes, as text, or as a figure with --out FILE.png, .svg or .pdf."""
    gradients: bool = False
    """Add the attribution of each weight to the output: weight times gradient."""
    open: bool = True
    """Open the page in a browser, if there is a screen."""
    walk: bool = False
    """Record the numbers of each read, too, for the view walk of the page. Figures of walk and
    multihead record them without it."""
    view: View | None = None
    """For a figure: the view to draw; a suitable one if not given. Two need no INPUT: positions,
    the matrices of positional encodings, and manifold, an autoencoder of two numbers with its data
    and energy."""
    kind: Kind | None = None
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
    if argv and argv[0].endswith(_CAPTURE):
        options = parse(argv, LookOptions(), NoSettings(), max_positionals=1).own
        if options.test or options.gradients or options.walk or options.model:
            raise UserError("--test, --gradients, --walk, --model need a RUN, not a saved capture")
        _check_out(options)
        path = Path(argv[0])
        paths = [path] if options.compare is None else [path, options.compare]
        _write([_open_capture(one) for one in paths], options, path.parent, path.stem)
        return DONE
    folder, record, options, words = read_command(
        argv, LookOptions(), usage=USAGE, about=ABOUT, max_words=100, settings_of=input_settings
    )
    if options.test:
        record = replace(record, config=keep_test(record.config, read_run(folder).config))
    check_words(words, get_entry(record.recipe).input_of(record.config))
    _check_out(options)
    if options.model or options.view in ("positions", "manifold"):
        _show_model(load_trained(folder, options, record), options)
        return DONE
    if not words and not options.test:
        raise UserError(f"INPUT is missing: expected a text or a file. {USAGE}")
    trained = load_trained(folder, options, record)
    inputs, names = _inputs(words, trained, options)
    if _is_figure(options.out) and options.view is None and hasattr(trained.recipe, "plot_answer"):
        for number, path in _figure_paths(options, [name or "input" for name in names]):
            trained.plot_answer(inputs[number], path, overwrite=options.force)
            print(path)
        return DONE
    captures = [_record(trained, inputs, names, options)]
    other = options.compare
    if other is not None and other.suffix == _CAPTURE:
        captures.append(_open_capture(other))
    elif other is not None:
        captures.append(_record(load_trained(other, options), inputs, names, options))
    words += [f"test {number}" for number in options.test]
    _write(captures, options, folder / "looks", Path(words[0]).name)
    return DONE


def _check_out(options: LookOptions) -> None:
    out = options.out
    if out is not None and out.suffix:
        check_path(out, options.force, (".html", _CAPTURE))
    if out is not None and options.compare is not None and out.suffix.lower() != ".html":
        raise UserError(f"--compare needs a page, FILE.html, but --out is {out}")
    for name in _FIGURE:
        if getattr(options, name) is not None and not _is_figure(out):
            raise UserError(f"--{name} needs a figure, --out FILE with {', '.join(SUFFIXES)}")


def _write(captures: Sequence[Any], options: LookOptions, folder: Path, name: str) -> None:
    """Write the page, the capture or the figures; a page is named by default after the input."""
    titles = [maps.sample.title for maps in captures[0]]
    print("\n".join(titles))
    if _is_figure(options.out):
        for sample, path in _figure_paths(options, [one.partition(" -> ")[0] for one in titles]):
            chosen = {name: getattr(options, name) for name in _FIGURE} | {"sample": sample}
            captures[0].plot(path, **chosen, overwrite=options.force)
            print(path)
        return
    out = options.out
    if out is None:
        folder.mkdir(exist_ok=True)
        number, out = 1, folder / f"{_stem(name)}.html"
        while out.exists():
            number += 1
            out = folder / f"{_stem(name)}-{number}.html"
    compared = captures[1] if len(captures) > 1 else None
    captures[0].save(out, compare=compared, overwrite=options.force)
    print(out)
    if out.suffix.lower() == ".html" and options.open and sys.stdout.isatty():
        has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if has_display or sys.platform in ("darwin", "win32"):
            webbrowser.open(out.resolve().as_uri())


def _show_model(trained: Any, options: LookOptions) -> None:
    if options.out is None and options.model:
        print("\n".join(trained.outline().lines()))
        return
    if options.out is None or options.out.suffix.lower() not in SUFFIXES:
        raise UserError(f"a figure of the model needs --out FILE with {', '.join(SUFFIXES)}")
    plots = {"positions": trained.plot_positions, "manifold": trained.plot_manifold}
    plot = trained.plot_model if options.model else plots[str(options.view)]
    plot(options.out, overwrite=options.force)
    print(options.out)


def _inputs(
    words: Sequence[str], trained: Any, options: LookOptions
) -> tuple[list[Any], list[str]]:
    """Return the inputs, of each file or folder at most `limit`, and names for their titles."""
    inputs, names = [], []
    for word in words:
        count = 0
        for given in chain.from_iterable(read_inputs([word], trained)):
            if given.problem:
                raise UserError(given.problem)
            if isinstance(given.value, str) and not given.value.strip():
                continue
            if count == options.limit:
                print_notice(f"{word}: only the first {count:,} inputs are shown (--limit)")
                break
            count += 1
            inputs.append(given.value)
            is_file = given.source is None and given.file is not None
            names.append(Path(str(given.file)).name if is_file else "")
        if count == 0:
            raise UserError(f"{word}: is empty, expected one input per line")
    for number in options.test:
        inputs.append(trained.test_input(number))
        names.append(f"test {trained.input} {number}")
    return inputs, names


def _record(trained: Any, inputs: Sequence[Any], names: Sequence[str], options: LookOptions) -> Any:
    vectors = options.walk or (_is_figure(options.out) and options.view in ("walk", "multihead"))
    with say_if_slow("recording the attention"):
        return trained.look(inputs, gradients=options.gradients, vectors=vectors, names=names)


def _open_capture(path: Path) -> Any:
    return importlib.import_module("regard.look.capture").Capture.open(path)


def _figure_paths(options: LookOptions, titles: Sequence[str]) -> list[tuple[int, Path]]:
    """Return the inputs to draw, by index, and the files of their figures; make a new folder."""
    out, count = options.out, len(titles)
    assert out is not None
    if out.suffix:
        sample = options.sample or 0
        if sample >= count:
            raise UserError(f"--sample must be between 0 and {count - 1}, got {sample}")
        if count > 1:
            print_notice(f"{out} shows input {sample} of {count:,}; --out FOLDER shows all")
        return [(sample, out)]
    out.mkdir(exist_ok=True)
    paths = []
    for number, title in enumerate(titles):
        name = f"{number:0{len(str(count - 1))}}-{_stem(Path(title).stem)}.png"
        check_path(out / name, options.force)
        paths.append((number, out / name))
    return paths


def _is_figure(out: Path | None) -> bool:
    return out is not None and out.suffix.lower() in ("", *SUFFIXES)


def _stem(name: str) -> str:
    """Return a name of letters, digits and hyphens for a file about an input."""
    return re.sub(r"[^\w]+", "-", name).strip("-")[:40] or "look"
