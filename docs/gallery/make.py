"""Build the gallery: an interactive page and a screenshot of the attention of each run, and an
index.

    python -m docs.gallery.make runs/dates runs/images ...

    docs/gallery/NAME.html, NAME.png     NAME: the recipe, with the name of the core unless it is
    the recipe's default docs/gallery/README.md               index, with the commands that trained
    the runs docs/images/look-NAME.png            screenshots for docs/look.md

The files are committed, so runs must be trained on data of the package, embedded or synthetic.
Existing files of these names are replaced. Screenshots need Chromium: the system's, $CHROMIUM, or
Playwright's.
"""

import argparse
import io
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from docs.gallery.browser import launch_browser
from docs.gallery.plan import LOOKS, PAGES, GalleryPage, Look
from regard.errors import UserError
from regard.layers.read import KINDS, Kind
from regard.look.capture import Capture
from regard.look.maps import SampleMaps
from regard.look.record import record
from regard.recipes.base.run import Run
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import load
from regard.recipes.registry import RECIPES
from regard.recipes.run_folder import read_run
from regard.settings.tree import apply_changes, find_differences, to_plain

__all__ = ["main"]

WIDTH, HEIGHT = 1280, 800
_MOST_BYTES = 120_000
"""Largest size of a screenshot; the number of colors is reduced until it fits."""

_HEAD = """# Gallery

Attention of trained models, one page per recipe. The pages are interactive: in a clone, open the
.html in a browser, hover, click, select another head or layer, press `?` for the shortcuts. They
need no network. All data is embedded or synthetic; the models are small and were trained for
minutes, on one core. Attention weights do not explain predictions.

`make gallery RUNS="..."` builds the gallery from the runs of the commands below.
"""
_TAIL = """## translate, and your own

The recipe [translate](../recipes/translate.md) has no data of its own, so it is not here. On your
pairs:

    regard train translate --run runs/mine --data.train train.tsv --data.test test.tsv
    regard look runs/mine --test 0 1 2 --out look.html

Autoencoders ([rebuild](../recipes/rebuild.md)) have no attention, so they have no page.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Run of the gallery."""

    name: str
    run: Run
    capture: Capture
    fragment: str
    """Fragment of the address of the page in the screenshot."""
    score: str
    shown: GalleryPage


def main(argv: list[str] | None = None) -> None:
    """Build the gallery of these runs. Raises SystemExit for invalid runs before any file is
    written."""
    parser = argparse.ArgumentParser(
        description="Build pages and screenshots of the attention of trained runs, for the docs."
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run on embedded data"
    )
    parser.add_argument(
        "--docs",
        type=Path,
        default=Path(__file__).parents[1],
        help="folder of gallery/ and images/",
    )
    options = parser.parse_args(argv)
    try:
        entries = _entries(options.runs)
    except UserError as error:
        raise SystemExit(f"gallery: {error}") from error
    gallery, images = options.docs / "gallery", options.docs / "images"
    for folder in (gallery, images):
        folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        browser = launch_browser(playwright)
        for entry in entries.values():
            page = entry.capture.save(gallery / f"{entry.name}.html", overwrite=True)
            _picture(browser, page, entry.fragment, gallery / f"{entry.name}.png")
        for name, look in LOOKS.items():
            if look.page in entries and (look.compare is None or look.compare in entries):
                _look(
                    browser, look, entries, images / f"look-{name}.png", Path(folder) / "page.html"
                )
        browser.close()
    (gallery / "README.md").write_text(_index(entries), encoding="utf-8")


def _entries(folders: list[Path]) -> dict[str, Entry]:
    """Return the entries by the names of their pages, in the order of the plan."""
    runs: dict[str, Path] = {}
    for folder in folders:
        run = read_run(folder)
        name = _name(run)
        if name not in PAGES:
            raise UserError(
                f"{folder}: the gallery has no page for {name}, only for {', '.join(PAGES)}"
            )
        own = [part for part in ("train", "val", "test") if getattr(run.config.data, part, None)]
        if own:
            raise UserError(
                f"{folder}: runs of the gallery must use data of the package, but this one has its "
                f"own ({own[0]})"
            )
        if name in runs:
            raise UserError(f"{folder} and {runs[name]} are both {name}")
        runs[name] = folder
    return {name: _entry(name, runs[name], PAGES[name]) for name in PAGES if name in runs}


def _name(run: Run) -> str:
    models = (
        getattr(config, "model", None) for config in (run.config, RECIPES[run.recipe].config())
    )
    own, default = (model.core.name if hasattr(model, "core") else "" for model in models)
    return run.recipe if own == default else f"{run.recipe}-{own}"


def _entry(name: str, folder: Path, shown: GalleryPage) -> Entry:
    trained: TrainedRun = load(folder)
    inputs = [trained.test_input(number) for number in shown.inputs]
    if shown.beam is None:
        capture = trained.look(
            inputs, names=[f"test {trained.input} {number}" for number in shown.inputs]
        )
    else:
        with record(trained) as capture:
            trained.predict(inputs, beam=shown.beam)
    if shown.kinds != KINDS:
        capture = _select_kinds(capture, shown.kinds)
    # Only the name of the folder: committed pages must not reveal paths of this machine.
    capture.title = folder.resolve().name if folder.name in ("", "..") else folder.name
    score = _score(folder, trained.recipe.metric)
    print(
        name, *(sample_maps.sample.title.replace("\n", " ") for sample_maps in capture), sep="\n  "
    )
    fragment = shown.view.fragment(capture.samples)
    return Entry(
        name=name, run=trained.run, capture=capture, fragment=fragment, score=score, shown=shown
    )


def _select_kinds(capture: Capture, kinds: Collection[Kind]) -> Capture:
    """Return the capture with only the reads of these kinds."""
    samples = [
        SampleMaps(
            sample=sample_maps.sample,
            maps=tuple(read for read in sample_maps.maps if read.kind in kinds),
        )
        for sample_maps in capture
    ]
    return Capture(lambda: samples, title=capture.title, model=capture.model)


def _score(folder: Path, metric: str) -> str:
    report = folder / "report.json"
    if not report.exists():
        return ""
    content = json.loads(report.read_text(encoding="utf-8"))
    test, training = content.get("test") or {}, content["training"]
    score = f"{metric} {test[metric]:.4g} on {test['data']}; " if metric in test else ""
    return f"{score}{training['steps']:,} steps, {training['minutes']:.1f} minutes."


def _look(
    browser: Browser, look: Look, entries: Mapping[str, Entry], path: Path, page: Path
) -> None:
    capture = entries[look.page].capture
    other = entries[look.compare].capture if look.compare else None
    capture.save(page, compare=other, overwrite=True)
    fragment = look.view.fragment(capture.samples)
    if other is not None and look.other is not None:
        fragment += "&b.capture=1&" + look.other.fragment(other.samples, "b.")
    _picture(browser, page, fragment, path, is_dark=look.view.is_dark)


def _picture(
    browser: Browser, page: Path, fragment: str, path: Path, *, is_dark: bool = False
) -> None:
    """Write a screenshot of the page opened with this fragment, with a reduced palette to save
    space."""
    size: Any = {"width": WIDTH, "height": HEIGHT}
    tab = browser.new_page(viewport=size, color_scheme="dark" if is_dark else "light")
    tab.goto(f"{page.resolve().as_uri()}#{fragment}")
    tab.wait_for_function("window.regard || document.querySelector('[role=alert]')")
    if tab.locator("[role=alert]").count():
        raise RuntimeError(f"{page}: {tab.locator('[role=alert]').first.inner_text()}")
    tab.evaluate("window.regard.ready")
    shot = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    tab.close()
    for colors in (256, 128, 64):
        reduced = shot.quantize(
            colors, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
        )
        reduced.save(path, optimize=True)
        if path.stat().st_size <= _MOST_BYTES:
            break


def _index(entries: Mapping[str, Entry]) -> str:
    parts = [_HEAD]
    for name, entry in entries.items():
        parts.append(
            f"## {name}\n\n{entry.shown.about}\n\n[![{name}: "
            f"{entry.shown.view.name}]({name}.png)]({name}.html)\n\n"
            f"[{name}.html]({name}.html): test inputs {', '.join(map(str, entry.shown.inputs))}. "
            f"{entry.score}\n\n"
            f"    {_command(entry)}\n"
        )
    return "\n".join([*parts, _TAIL])


def _command(entry: Entry) -> str:
    """Return the command that trains such a run: the settings that differ from the recipe's
    defaults."""
    config, recipe = entry.run.config, entry.run.recipe
    core = {"model": {"core": {"name": config.model.core.name}}}
    default = apply_changes(RECIPES[recipe].config(), core, called=str)
    words = ["regard", "train", recipe, "--run", f"runs/{entry.capture.title}"]
    words += [] if entry.name == recipe else ["--model.core", config.model.core.name]
    words += ["--seed", str(entry.run.seed)] if entry.run.seed != 1 else []
    for name, (_, value) in find_differences(to_plain(default), to_plain(config)).items():
        words += [f"--{name.replace('_', '-')}", *_to_arguments(value)]
    return shlex.join(words)


def _to_arguments(value: Any) -> list[str]:
    """Return the command-line arguments of a setting."""
    match value:
        case None:
            return ["none"]
        case bool():
            return [str(value).lower()]
        case list():
            return [str(entry) for entry in value]
        case _:
            return [str(value)]


if __name__ == "__main__":
    main()
