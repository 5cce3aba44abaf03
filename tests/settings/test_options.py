"""Options made from dataclasses."""

from dataclasses import dataclass, field

import pytest

from regard.errors import UserError
from regard.layers.positions.config import RotaryConfig
from regard.models.config import ModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.recipes.registry import get_entry
from regard.settings.options import NoSettings, Parsed, option_name, parse, peek_option, wants_help


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Options of a command."""

    seed: int = 1
    """First number."""
    loud: bool = False
    """Print more."""
    dry_run: bool = True
    """Do nothing."""
    files: tuple[str, ...] = ()
    """Input files."""
    pair: tuple[float, float] = (0.5, 0.25)
    """Two numbers."""


@dataclass(frozen=True, kw_only=True)
class RecipeSettings:
    """Settings of a recipe."""

    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(core=TransformerConfig(layers=5))
    )
    """Model."""


def read(*argv: str) -> Parsed[CommandOptions, RecipeSettings]:
    return parse(argv, CommandOptions(), RecipeSettings(), max_positionals=1)


def test_parse_gives_defaults_without_options() -> None:
    assert read() == Parsed([], CommandOptions(), RecipeSettings())


@pytest.mark.parametrize("argv", [["--seed", "7"], ["--seed=7"], ["--seed", "3", "--seed", "7"]])
def test_parse_reads_an_option_in_either_form_and_the_last_one_counts(argv: list[str]) -> None:
    assert read(*argv).own == CommandOptions(seed=7)


@pytest.mark.parametrize("name", ["--dry-run", "--dry_run"])
def test_dashes_and_underscores_are_the_same(name: str) -> None:
    assert read(name, "no").own == CommandOptions(dry_run=False)


def test_switch_takes_the_next_word_only_if_it_is_a_boolean() -> None:
    parsed = read("--loud", "word", "--dry-run", "false")
    assert parsed.positionals == ["word"]
    assert parsed.own == CommandOptions(loud=True, dry_run=False)


def test_switch_is_turned_off() -> None:
    assert read("--no-dry-run", "word").own == CommandOptions(dry_run=False)
    assert read("--no-dry-run", "--dry-run").own == CommandOptions()
    dates = get_entry("dates").config()
    parsed = parse(["--train.no-tensorboard"], NoSettings(), dates)
    assert not parsed.config.train.tensorboard


def test_several_values_end_at_the_next_option() -> None:
    parsed = read("--files", "a", "b c", "-3", "--seed", "-3")
    assert parsed.own == CommandOptions(files=("a", "b c", "-3"), seed=-3)


def test_fixed_number_of_values_leaves_the_rest() -> None:
    parsed = read("--pair", "1", "2", "word")
    assert parsed.own.pair == (1.0, 2.0)
    assert parsed.positionals == ["word"]


def test_values_after_an_equals_sign_are_split_at_commas() -> None:
    assert read("--files=a,b").own.files == ("a", "b")


def test_two_dashes_end_the_options() -> None:
    assert read("--seed", "2", "--", "--help").positionals == ["--help"]
    assert not wants_help(["--", "--help"])
    assert wants_help(["word", "-h"])


def test_nested_option_sets_its_field_alone() -> None:
    core = read("--model.core.width", "24").config.model.core
    assert core == TransformerConfig(layers=5, width=24)


@pytest.mark.parametrize("order", [1, -1])
def test_variant_adds_its_options_at_any_position(order: int) -> None:
    words = ["--model.core=recurrent", "--model.core.cell=lstm", "--model.core.layers=2"][::order]
    assert read(*words).config.model.core == RecurrentConfig(cell="lstm", layers=2)


def test_variant_of_a_variant_is_selected() -> None:
    words = ["--model.core", "transformer", "--model.core.positions=rotary"]
    core = read(*words, "--model.core.positions.dim", "4").config.model.core
    assert core.positions == RotaryConfig(dim=4)


BAD = {
    "--model.core.layrs 3": "did you mean --model.core.layers\\? --help lists all$",
    "--decode.loud": "^unknown option --decode.loud; did you mean --loud\\?",
    "--seed 1 -d": "^unknown option -d; as an argument, put it after --$",
    "--no-seed": "unknown option --no-seed",
    "--no-no-loud": "unknown option --no-no-loud",
    "--model.core.cell lstm": "--model.core.cell needs --model.core recurrent",
    "--model.core.form paper": "--model.core.form needs --model.core self-attentive",
    "--model.core recurrent --model.core.positions rotary": "^--model.core.positions is not",
    "--model.core recurent": "--model.core must be transformer, recurrent or self-attentive, got",
    "--seed": "--seed needs a value: INT",
    "--seed --loud": "--seed needs a value",
    "--files": "--files needs a value: TEXT ...",
    "--pair 1": "--pair must be 2 values",
    "--model.dropout 2": "--model.dropout must be .* below 1",
    "--model.core.layers 0": "--model.core.layers must be from 1 to 1,000, got 0",
    "one two": "^'two' is an unexpected argument$",
}


@pytest.mark.parametrize("line", BAD)
def test_parse_refuses_in_one_short_line(line: str) -> None:
    with pytest.raises(UserError, match=BAD[line]) as caught:
        read(*line.split())
    assert "\n" not in str(caught.value)


def test_peek_option_finds_a_value_before_the_options_are_known() -> None:
    assert peek_option(["--a-b", "1", "--a_b=2"], "a_b") == "2"
    assert peek_option(["--other", "1"], "a_b") is None


def test_option_name_is_written_with_dashes() -> None:
    assert option_name("train.label_smoothing") == "--train.label-smoothing"
