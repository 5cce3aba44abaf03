"""Schemas of answers and options: a value that conforms is accepted, and no other."""

from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest

from regard.recipes.base.entry import Entry
from regard.recipes.registry import RECIPES
from regard.serve.replies import RequestError
from regard.serve.schemas import convert_option, option_schemas, option_settings
from regard.settings.declare import settings
from regard.settings.ranges import Range
from regard.settings.schemas import kind_schema, type_schemas
from regard.settings.tree import Setting
from regard.settings.values import kind_of

LIMITS = {"beam": 16, "n_best": 16, "max_length": 1024, "length": 1024}
KINDS: dict[str, Any] = {
    "integer": int,
    "range": Annotated[int, Range(1, 16)],
    "open": Annotated[float, Range(0, 1, is_open_below=True, is_open_above=True)],
    "text": str,
    "truth": bool,
    "choice": Literal["post", "pre"],
    "optional": Annotated[int, Range(1, 3)] | None,
    "two kinds": int | str,
    "list": tuple[int, ...],
    "pair": tuple[Annotated[float, Range(0, 2)], Annotated[float, Range(0, 2)]],
}
VALUES = [
    *(0, 1, 16, 17, -3, 0.5, 1.5, 4.0, True, False, None, "", "4", "true", "post", "pro", "none"),
    *([], [1], [1, 2], [0.5, 2], [0.5, 3], ["1"], ["1", "2"], [1, None], {}, {"a": 1}, [[1]]),
]


@pytest.mark.parametrize("name", KINDS)
def test_option_is_accepted_if_and_only_if_it_conforms_to_its_schema(name: str) -> None:
    setting = Setting("decode.one", kind_of(KINDS[name]), None, "")
    validator = jsonschema_rs.validator_for(kind_schema(setting.kind))
    accepted = []
    for value in VALUES:
        if validator.is_valid(value):
            accepted.append(convert_option(setting, "one", value))
            if name == "two kinds":  # a text of digits is a number
                continue
            assert accepted[-1] == (tuple(value) if isinstance(value, list) else value)
            continue
        with pytest.raises(RequestError, match=r"^one must be "):
            convert_option(setting, "one", value)
    assert 0 < len(accepted) < len(VALUES)


def test_numbers_of_a_query_are_texts() -> None:
    setting = Setting("decode.beam", kind_of(KINDS["range"]), 5, "")
    assert convert_option(setting, "beam", "4", is_text=True) == 4
    with pytest.raises(RequestError, match="beam must be from 1 to 16, got 17"):
        convert_option(setting, "beam", "17", is_text=True)
    with pytest.raises(RequestError, match="beam must be a number, got '4'"):
        convert_option(setting, "beam", "4")


def test_options_are_the_settings_of_answers_but_not_those_of_reading() -> None:
    found = {}
    for name, entry in RECIPES.items():
        found[name] = set(option_settings(entry, entry.config(), LIMITS))
    search = {"beam", "length_penalty", "n_best", "max_ratio", "max_extra", "max_length"}
    repetition = {"no_repeat_ngram_size", "repetition_penalty"}
    search |= repetition | {"min_length", "target_prefix", "bad_words"}
    sampling = repetition | {"temperature", "top_k", "top_p", "min_p", "seed"}
    assert found["dates"] == found["caption"] == search
    assert found["translate"] == search | {"method", "num_samples"}  # a glossary is a file
    assert found["language"] == sampling | {"length", "context", "bad_words"}
    assert found["draw"] == sampling | {"guidance", "n_best"}
    assert found["reviews"] == found["images"] == {"n_best", "threshold"}
    assert found["boxes"] == found["points"] == found["events"] == {"threshold"}
    assert found["rebuild"] == {"energy"}
    assert found["tags"] == found["tracks"] == set()


def test_limits_hold_except_for_a_larger_value_of_the_run() -> None:
    entry = RECIPES["translate"]
    config = entry.change(entry.config(), {"beam": 40, "n_best": 2})
    options = option_settings(entry, config, LIMITS)
    schemas = option_schemas(options)
    assert schemas["beam"]["maximum"] == 40
    assert schemas["n_best"] | {"description": ""} == {
        "type": "integer",
        "minimum": 1,
        "maximum": 16,
        "default": 2,
        "description": "",
    }
    assert schemas["max_length"]["description"].startswith("Maximum output length in tokens")
    assert schemas["length_penalty"]["maximum"] == 5


def test_no_option_of_an_own_recipe_is_a_path() -> None:
    @settings
    class Own:
        words: Path = Path("words.txt")
        """A file."""
        size: int = 3
        """A number."""

    entry = Entry(name="own", summary="", config=Own, answers=("words", "size"), recipe=object)
    assert set(option_settings(entry, Own(), {})) == {"size"}
    assert type_schemas(entry.answer_of(Own())) == {
        "AnyObject": {"type": "object", "properties": {}, "required": []}
    }


@pytest.mark.parametrize("recipe", RECIPES)
def test_schemas_are_valid_and_closed(recipe: str) -> None:
    entry = RECIPES[recipe]
    for schema in type_schemas(entry.answer_of(entry.config())).values():
        jsonschema_rs.meta.validate(schema)
        assert schema["additionalProperties"] is False
        assert schema["required"]
        for part in schema["properties"].values():
            assert part.keys() & {"type", "$ref"}
    for schema in option_schemas(option_settings(entry, entry.config(), LIMITS)).values():
        jsonschema_rs.meta.validate(schema)
        assert schema["description"]
