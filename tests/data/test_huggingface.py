"""Hugging Face data sets, with a mock of the optional package: its calls, error messages."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from regard.data.config import PairsConfig
from regard.data.text.pairs import read_pairs
from regard.errors import UserError


class Table:
    """Mock of datasets.Dataset: rows with named columns."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows = rows
        self.column_names = list(rows[0])

    def select_columns(self, names: list[str]) -> "Table":
        return Table([{name: row[name] for name in names} for row in self.rows])

    def __iter__(self):
        return iter(self.rows)


ROWS = [
    {"source": " one ", "target": "eins", "id": 1},
    {"source": "two", "target": "zwei", "id": 2},
]
NESTED = [{"translation": {"en": "one", "de": "eins"}}]


@pytest.fixture
def package(monkeypatch) -> SimpleNamespace:
    """State of the mock: the table to return, the error to raise, and the recorded calls."""
    state = SimpleNamespace(table=Table(ROWS), calls=[], error=None)

    def load_dataset(*args, **kwargs):
        state.calls.append((args, kwargs))
        if state.error:
            raise state.error
        return state.table

    state.failure = type("DatasetsError", (Exception,), {})
    module = ModuleType("datasets")
    names = {"load_dataset": load_dataset, "load_from_disk": load_dataset}
    vars(module).update(names, exceptions=SimpleNamespace(DatasetsError=state.failure))
    monkeypatch.setitem(sys.modules, "datasets", module)
    return state


@pytest.mark.parametrize(
    ("spec", "split", "call"),
    [
        ("hf:some/name", "train", (("some/name", None), {"split": "train"})),
        ("hf:some/name", "val", (("some/name", None), {"split": "validation"})),
        ("hf:some/name:de-en#test[:5]", "val", (("some/name", "de-en"), {"split": "test[:5]"})),
    ],
)
def test_spec_has_name_config_and_split(package, spec, split, call):
    pairs = read_pairs(spec, split=split)
    assert list(pairs) == [("one", "eins"), ("two", "zwei")]
    assert (package.calls, pairs.where(1)) == ([call], f"{spec}, line 2")


def test_folder_is_read_with_its_split(package, tmp_path):
    (tmp_path / "dataset_dict.json").touch()
    package.table = {"train": Table(ROWS), "validation": Table(ROWS[1:])}
    assert list(read_pairs(tmp_path, split="val")) == [("two", "zwei")]
    assert next(iter(read_pairs(f"{tmp_path}#train", split="val"))) == ("one", "eins")
    with pytest.raises(UserError, match=r"cannot load it \(test\): 'test'"):
        read_pairs(tmp_path, split="test")
    package.table = Table(ROWS)
    assert len(read_pairs(tmp_path, split="test")) == 2


def test_nested_fields_are_named_with_dots(package):
    package.table = Table(NESTED)
    columns = {"source_column": "translation.en", "target_column": "translation.de"}
    assert list(read_pairs("hf:x", PairsConfig(**columns))) == [("one", "eins")]
    with pytest.raises(UserError, match=r"hf:x, line 1: no field 'translation\.fr'"):
        read_pairs("hf:x", PairsConfig(**columns | {"source_column": "translation.fr"}))


def test_bad_rows_are_named_or_left_out(package):
    with pytest.raises(UserError, match="hf:x: no field 'x'; the fields are 'source', 'target'"):
        read_pairs("hf:x", PairsConfig(source_column="x"))
    package.table = Table([*ROWS, {"source": None, "target": "drei", "id": 3}])
    with pytest.raises(UserError, match="hf:x, line 3: the source is empty"):
        read_pairs("hf:x")
    assert "skipped 1 of the pairs" in read_pairs("hf:x", PairsConfig(on_bad="skip")).notices[0]


@pytest.mark.parametrize(
    "error", [FileNotFoundError, ValueError, ConnectionError, KeyError, "DatasetsError"]
)
def test_errors_of_the_package_are_reported(package, error):
    kind = package.failure if isinstance(error, str) else error
    package.error = kind("it is not there")
    message = r"hf:some/name: `datasets` cannot load it \(train\): .*it is not there"
    with pytest.raises(UserError, match=message):
        read_pairs("hf:some/name")


def test_missing_package_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r'hf:x needs datasets: pip install -e "\.\[data\]"'):
        read_pairs("hf:x")


def test_a_file_with_a_number_sign_beside_a_data_set_is_that_file(tmp_path):
    for folder in ("C", "C#"):
        (tmp_path / folder).mkdir()
    (tmp_path / "C" / "state.json").write_text("{}")
    (tmp_path / "C#" / "train.tsv").write_text("one\teins\n")
    assert read_pairs(tmp_path / "C#" / "train.tsv").sources == ["one"]


@pytest.mark.parametrize(("name", "split"), [("C", ""), ("C#", ""), ("C#", "#test")])
def test_a_folder_with_a_number_sign_is_that_data_set(package, tmp_path, name, split):
    (tmp_path / name).mkdir()
    (tmp_path / name / "state.json").write_text("{}")
    assert read_pairs(f"{tmp_path / name}{split}").sources == ["one", "two"]
    assert package.calls[0][0] == (str(tmp_path / name),)
