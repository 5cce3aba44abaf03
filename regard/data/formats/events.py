r"""Sounds with events in the formats of tools: rows of each sound file, as `read_rows_of_files`.

Audacity   the labels of 1.wav in 1.txt: start, end and label, separated by tabs
Raven      the selections of 1.wav in 1.Table.1.selections.txt, or of several sounds, in a table
           with the columns Selection, Begin Time (s), End Time (s) and one of labels

A file of labels is given alone, or a folder of them with their sounds.

Sources: manual.audacityteam.org (importing and exporting labels), Raven Pro User's Manual
(selection tables).
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.data.bad_rows import BadRows, LeftOutError
from regard.data.config import EventsConfig
from regard.data.sound.files import ENDINGS
from regard.data.tables import as_number, locate, read_lines, read_table, read_texts
from regard.errors import UserError
from regard.system.files import list_files, suffix_of

_NUMBERS = re.compile(rb"[0-9.]+\t[0-9.]+\t")
"""Start of a line of Audacity."""
_TIMES = ("Selection", "Begin Time (s)", "End Time (s)")
_FILES = ("Begin File", "File Offset (s)")
"""Columns of Raven for selections of several sounds; the offset is the beginning in the file."""
_RAVEN_ENDING = re.compile(r"(\.table\.[0-9]+)?(\.selections)?\.txt$", re.IGNORECASE)

_Row = tuple[str, dict[str, Any]]
"""Location of an event, and its onset, offset and label."""


def read_event_format(
    path: Path, config: EventsConfig, bad_rows: BadRows
) -> tuple[dict[str, list[_Row]], Path] | None:
    """Return the rows of each sound, and the folder of the sounds; None for a table of files.

    The format auto is found by the first line of a text file.
    """
    found = _find_format(path) if config.format == "auto" else config.format
    if found == "table":
        return None
    if not path.is_dir():
        return _READERS[found](path, path.parent, config, bad_rows), path.parent
    rows: dict[str, list[_Row]] = {}
    for file in list_files(path, (".txt",))[0]:
        with bad_rows.catch(str(file)):
            for sound, events in _READERS[found](file, path, config, bad_rows).items():
                rows.setdefault(sound, []).extend(events)
    for sound in list_files(path, ENDINGS)[0]:
        with bad_rows.catch():
            if os.path.relpath(sound, path) not in rows:
                raise LeftOutError(f"{sound}: has no file of labels")
    return rows, path


def _find_format(path: Path) -> str:
    if path.is_dir():
        raise UserError(f"{path}: is a folder: give --data.format audacity or raven.")
    if suffix_of(path) != ".txt":
        return "table"
    first = next(read_lines(path), b"")
    if _TIMES[1] in first.decode("utf-8", "replace").split("\t"):
        return "raven"
    if not _NUMBERS.match(first):
        raise UserError(f"{path}: is neither of Audacity nor of Raven: give --data.format.")
    return "audacity"


def _read_audacity(
    file: Path, folder: Path, config: EventsConfig, bad_rows: BadRows
) -> dict[str, list[_Row]]:
    events: list[_Row] = [(str(file), {})]
    for number, line in read_texts(file, bad_rows, encoding=config.encoding):
        where, cells = locate(file, number), line.split("\t")
        if cells[0] == "\\":  # frequencies of the label before it
            continue
        with bad_rows.catch(where):
            if len(cells) != 3:
                raise UserError(f"expected start, end and label, got {len(cells)} cells")
            events.append((where, {"onset": cells[0], "offset": cells[1], "label": cells[2]}))
    return {_find_sound(file, file.stem, folder): events}


def _read_raven(
    file: Path, folder: Path, config: EventsConfig, bad_rows: BadRows
) -> dict[str, list[_Row]]:
    """Return the selections of a table. One that is repeated for each view or channel counts once,
    since channels are mixed."""
    named, name = replace(config, header="yes"), config.label_column or "Annotation"
    optional = (name, *_FILES)
    table = read_table(file, _TIMES, named, optional=optional, format="tsv", bad_rows=bad_rows)
    if name not in table.header:
        known, hint = ", ".join(map(repr, table.header)), "(--data.label-column)"
        raise UserError(f"{file}: no column {name!r} {hint}; the columns are {known}.")
    if (_FILES[0] in table.header) != (_FILES[1] in table.header):
        raise UserError(f"{file}: expected both columns {_FILES[0]!r} and {_FILES[1]!r}, or none.")
    rows: dict[str, list[_Row]] = {}
    sound = ""
    if _FILES[0] not in table.header:
        sound = _find_sound(file, _RAVEN_ENDING.sub("", file.name), folder)
        rows[sound] = [(str(file), {})]
    seen = set()
    for number, cells in table:
        _, begin, end, label, sound_file, offset = cells
        if tuple(cells) in seen:
            continue
        seen.add(tuple(cells))
        where = locate(file, number)
        with bad_rows.catch(where):
            if sound_file is not None:
                sound = os.path.relpath(file.parent / sound_file.strip(), folder)
            onset = as_number(begin if offset is None else offset)
            length = as_number(end) - as_number(begin)
            row = {"onset": onset, "duration": length, "label": label}
            rows.setdefault(sound, []).append((where, row))
    return rows


def _find_sound(file: Path, stem: str, folder: Path) -> str:
    """Return the sound of this name beside a file of labels, relative to a folder."""
    beside = sorted(file.parent.iterdir())
    found = [path for path in beside if path.stem == stem and path.suffix.lower() in ENDINGS]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{file}: expected one sound {stem!r} beside it (.wav ...), got {names}.")
    return os.path.relpath(found[0], folder)


_READERS: dict[str, Callable[[Path, Path, EventsConfig, BadRows], dict[str, list[_Row]]]] = {
    "audacity": _read_audacity,
    "raven": _read_raven,
}
