"""Hugging Face data sets: from the Hub, or from a folder written by `datasets`.

    hf:NAME[:CONFIG][#SPLIT]        hf:bentrevett/multi30k#validation      hf:wmt16:de-en
    FOLDER                          written by save_to_disk

The package `datasets` is optional and imported only when such a data set is read. No code from the
Hub is run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.bad_rows import BadRows
from regard.data.tables import Table, select_fields
from regard.errors import UserError
from regard.system.extras import import_extra

PREFIX = "hf:"


def is_data_set(path: str | Path) -> bool:
    """Return True for hf:NAME and for a folder that `datasets` wrote."""
    folder = Path(_split_name(str(path))[0])
    is_saved = (folder / "state.json").exists() or (folder / "dataset_dict.json").exists()
    return str(path).startswith(PREFIX) or is_saved


def read_data_set(spec: str, fields: Sequence[str], *, split: str, bad_rows: BadRows) -> Table:
    """Read fields of a data set, with dots for nested fields, of a split if `spec` names none."""
    name, chosen = _split_name(spec)
    rows = _load(spec, name.removeprefix(PREFIX), chosen or split.replace("val", "validation"))
    columns = []
    for field in fields:
        column = field if field in rows.column_names else field.partition(".")[0]
        if column not in rows.column_names:
            known = ", ".join(map(repr, rows.column_names))
            raise UserError(f"{spec}: no field {field!r}; the fields are {known}.")
        columns.append(column)
    numbered = enumerate(rows.select_columns(list(dict.fromkeys(columns))), start=1)
    return Table(spec, fields, select_fields(spec, numbered, fields, (), bad_rows))


def _split_name(spec: str) -> tuple[str, str]:
    """Return the name of a data set, and its split or an empty text."""
    name, _, split = spec.rpartition("#")
    return (spec, "") if not name or Path(spec).exists() else (name, split)


def _load(spec: str, name: str, split: str) -> Any:
    datasets = import_extra("datasets", spec)
    try:
        if not spec.startswith(PREFIX):
            table = datasets.load_from_disk(name)
            return table[split] if isinstance(table, dict) else table
        head, _, rest = name.partition(":")
        return datasets.load_dataset(head, rest or None, split=split)
    except (OSError, ValueError, LookupError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{spec}: `datasets` cannot load it ({split}): {error}") from error
