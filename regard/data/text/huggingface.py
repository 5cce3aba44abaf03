"""Hugging Face data sets: from the Hub, from a local file, or from a folder written by `datasets`.

    hf:NAME[:CONFIG][#SPLIT]        hf:bentrevett/multi30k#validation      hf:wmt16:de-en
    hf:KIND:FILE[#SPLIT]            KIND is csv, json, parquet, text or arrow
    FOLDER                          written by save_to_disk

The package `datasets` is optional and imported only when such a data set is read. No code from the
Hub is run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.data.text.rows import Records, get_field
from regard.errors import UserError, did_you_mean
from regard.system.fingerprints import add_digest

PREFIX = "hf:"
_FILE_KINDS = ("csv", "json", "parquet", "text", "arrow")
_OPTION = "--data.*-column"
_SPLIT_NAMES = {"val": "validation"}


def read_hugging_face_records(
    spec: str, fields: Sequence[str], *, split: str, also: tuple[type, ...] = ()
) -> Records:
    """Read the rows of a data set that have a source field and target fields (with dots for nested
    fields).

    Args:
        spec: hf:NAME[:CONFIG][#SPLIT], hf:KIND:FILE[#SPLIT], or a folder.
        fields: names of the field with the source text, and of one or several with the target.
        split: split to read if `spec` has none: train, val (read as validation) or test.
        also: types of the targets that are allowed besides str, see `get_field`.

    Raises:  UserError if the package, the data set, the split or a field is missing.
    """
    name, _, chosen = spec.partition("#")
    rows = _load(
        _datasets(spec), spec, name.removeprefix(PREFIX), chosen or _SPLIT_NAMES.get(split, split)
    )
    add_digest(
        spec, str(getattr(rows, "_fingerprint", "")).encode()
    )  # digest of the data and its transforms
    tops = [_top_field(field, rows.column_names, spec) for field in fields]
    numbered = enumerate(rows.select_columns(list(dict.fromkeys(tops))), start=1)
    source, *targets = fields

    def parse(row: dict[str, Any]) -> tuple[str, ...]:
        found = (get_field(row, field, also=also, option=_OPTION) for field in targets)
        return get_field(row, source, option=_OPTION), *found

    return Records(numbered, parse, tuple(f"field {field!r}" for field in fields), tuple(fields))


def _datasets(spec: str) -> ModuleType:
    try:
        import datasets  # optional package # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            f"{spec}: a Hugging Face data set needs the package `datasets` ({error}). "
            "Install it: pip install 'regard[data]'"
        ) from error
    return datasets


def _load(datasets: ModuleType, spec: str, name: str, split: str) -> Any:
    """Load a datasets.Dataset."""
    try:
        if not spec.startswith(PREFIX):
            return _split_of(datasets.load_from_disk(name), spec, split)
        head, _, rest = name.partition(":")
        if head in _FILE_KINDS:
            _require_file(spec, rest)
            # A single file is one split, which `datasets` always calls train.
            return datasets.load_dataset(
                head, data_files=rest, split=split if "#" in spec else "train"
            )
        return datasets.load_dataset(head, rest or None, split=split)
    except UserError:
        raise
    except (OSError, ValueError, LookupError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{spec}: `datasets` cannot load it ({split}): {error}") from error


def _require_file(spec: str, path: str) -> None:
    if not path:
        raise UserError(f"{spec}: expected hf:KIND:FILE, but no file is named.")
    if "*" not in path and "://" not in path and not Path(path).is_file():
        raise UserError(f"{spec}: no such file: {path}.")


def _split_of(table: Any, spec: str, split: str) -> Any:
    if not isinstance(table, Mapping):
        return table
    if split not in table:
        raise UserError(
            f"{spec}: no split {split!r}; the splits are {', '.join(map(repr, table))}."
        )
    return table[split]


def _top_field(field: str, names: list[str], spec: str) -> str:
    """Return the column that contains a field, which may be nested."""
    for top in (field, field.partition(".")[0]):
        if top in names:
            return top
    known = ", ".join(map(repr, names))
    raise UserError(
        f"{spec}: no field {field!r} ({_OPTION} chooses another); the fields are "
        f"{known}.{did_you_mean(field, names)}"
    )
