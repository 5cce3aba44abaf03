"""Configurations as trees of settings: documentation, changes, JSON and back."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.settings.tree import apply_changes, collect_groups, find_differences, to_plain


@dataclass(frozen=True, kw_only=True)
class Round:
    """Round shape."""

    name: ClassVar[str] = "round"

    radius: int = 3
    """Radius of the shape,
    in steps."""


@dataclass(frozen=True, kw_only=True)
class Square:
    """Square shape."""

    name: ClassVar[str] = "square"

    side: float = 2.0
    """Length of a side."""
    radius: int = 0
    """Radius of the corners."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Tile of one shape."""

    shape: Round | Square = field(default_factory=lambda: Round(radius=7))
    """Shape of the tile."""
    label: str | None = None
    """Text on the tile."""

    def __post_init__(self) -> None:
        if self.label == "bad":
            raise ValueError("label must not be bad")
        if self.label == "worse":
            raise ValueError("a label and `shape.radius`")


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Floor of tiles."""

    tile: Tile = field(default_factory=Tile)
    """Tile of the floor."""
    rooms: tuple[str, ...] = ("hall",)
    """Rooms with this floor."""


def format_path(path: str) -> str:
    return f"<{path}>"


def change(changes: dict[str, Any], *, complete: bool = False) -> Floor:
    return apply_changes(Floor(), changes, called=format_path, complete=complete)


def test_groups_hold_every_setting_with_its_documentation() -> None:
    first, tile, shape = collect_groups(Floor())
    assert [(group.path, group.doc) for group in (first, tile, shape)] == [
        ("", "Floor of tiles."),
        ("tile", "Tile of the floor."),
        ("tile.shape", "Round shape."),
    ]
    assert [setting.path for setting in tile.settings] == ["tile.shape", "tile.label"]
    assert tile.settings[0].value == "round"
    assert tile.settings[0].kind.choices == ("round", "square")
    (radius,) = shape.settings
    assert (radius.value, radius.doc) == (7, "Radius of the shape, in steps.")


def test_apply_changes_keeps_other_settings() -> None:
    floor = change({"tile": {"shape": {"radius": "4"}}})
    assert floor == Floor(tile=Tile(shape=Round(radius=4)))


@pytest.mark.parametrize("choice", ["square", {"name": "square"}])
def test_apply_changes_starts_another_variant_at_its_defaults(choice: Any) -> None:
    assert change({"tile": {"shape": choice}}).tile.shape == Square()


def test_apply_changes_keeps_the_present_variant_when_it_is_named() -> None:
    assert change({"tile": {"shape": {"name": "round"}}}).tile.shape == Round(radius=7)


BAD = [
    ({"tiles": {}}, "<tiles> is not a setting"),
    ({"tile": {"shape": {"name": "round", "side": 1}}}, "<tile.shape.side> is not a setting"),
    ({"tile": {"shape": "squar"}}, "<tile.shape> must be round or square, got 'squar'"),
    ({"tile": {"shape": 3}}, "<tile.shape> must be round or square, got 3"),
    (
        {"tile": {"shape": {"name": {"__class__": "os.system"}}}},
        "<tile.shape> must be round or square",
    ),
    (
        {"tile": {"shape": {"radius": "wide"}}},
        "<tile.shape.radius> must be a whole number, got 'wide'",
    ),
    ({"tile": "x"}, "<tile> must hold settings by name, got 'x'"),
    ({"tile": {"label": "bad"}}, "<tile.label> must not be bad"),
    ({"tile": {"label": "worse"}}, "^a label and <tile.shape.radius>$"),
    ({"rooms": [1]}, "<rooms> must be text, got 1"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_apply_changes_refuses_naming_the_setting(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        change(changes)


def test_apply_changes_refuses_a_missing_setting_when_complete() -> None:
    everything = to_plain(Floor())
    del everything["tile"]["shape"]["radius"]
    with pytest.raises(UserError, match=r"<tile\.shape\.radius> is missing"):
        change(everything, complete=True)


shapes = st.builds(Round, radius=st.integers()) | st.builds(
    Square, side=st.floats(allow_nan=False), radius=st.integers()
)
tiles = st.builds(
    Tile, shape=shapes, label=st.none() | st.text().filter(lambda text: text != "bad")
)


@given(st.builds(Floor, tile=tiles, rooms=st.lists(st.text()).map(tuple)))
def test_plain_and_back_is_the_same(floor: Floor) -> None:
    label = floor.tile.label
    if label is not None and label.lower() in ("none", "null"):
        return  # the one text that an optional setting cannot hold
    assert change(to_plain(floor), complete=True) == floor


def test_differences_names_each_by_its_path() -> None:
    other = change({"tile": {"shape": "square", "label": "kitchen"}})
    assert find_differences(to_plain(Floor()), to_plain(other)) == {
        "tile.shape.name": ("round", "square"),
        "tile.shape.radius": (7, 0),
        "tile.shape.side": (None, 2.0),
        "tile.label": (None, "kitchen"),
    }
