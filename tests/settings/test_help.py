"""Help pages: every setting with its meaning, quickly."""

import re
from typing import get_args

import pytest

from regard.cli.main import COMMANDS, main
from regard.models.cores.config import CoreConfig
from regard.recipes.registry import RECIPES
from regard.settings.options import NoSettings, parse
from regard.settings.tree import apply_changes, collect_groups, settings_by_path


def help_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([*argv, "--help"]) == 0
    return capsys.readouterr().out


def test_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    page = help_of(capsys)
    assert [command for command in COMMANDS if f"  {command} " not in page] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_page(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert help_of(capsys, command).startswith(f"usage: regard {command}")


NAMES = [core.name for core in get_args(CoreConfig)]
WITH_A_CORE = [name for name, recipe in RECIPES.items() if hasattr(recipe.config().model, "core")]
PAGES = [(name, core) for name in WITH_A_CORE for core in NAMES]
PAGES += [(name, None) for name in RECIPES if name not in WITH_A_CORE]


@pytest.mark.parametrize(("recipe", "core"), PAGES)
def test_page_of_a_recipe_explains_every_setting(
    capsys: pytest.CaptureFixture[str], recipe: str, core: str | None
) -> None:
    page = help_of(capsys, "train", recipe, *(["--model.core", core] if core else []))
    config = RECIPES[recipe].config()
    if core:
        config = apply_changes(config, {"model": {"core": core}}, called=str)
        assert f"Shown here: {core};" in " ".join(page.split())
    unused = RECIPES[recipe].unused
    settings = [
        setting
        for group in collect_groups(config)
        for setting in group.settings
        if setting.path not in unused
    ]
    names = re.findall(r"^  --([\w.-]+)", page, re.MULTILINE)
    assert sorted(name.replace("-", "_") for name in names) == sorted(
        [
            *(setting.path for setting in settings),
            "run",
            "seed",
            "threads",
            "init",
            "preset",
            "config",
            "print_config",
        ]
    )
    assert [setting.path for setting in settings if not setting.doc] == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_page_names_the_option_that_turns_a_switch_off(
    capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    page = " ".join(help_of(capsys, "train", recipe).split())
    config = RECIPES[recipe].config()
    own = {path for path, setting in settings_by_path(config).items() if setting.value is True}
    named = re.findall(r"\[on; (--[\w.-]+): off\]", page)
    assert len(named) == len(own - set(RECIPES[recipe].unused))
    words = [*named, *(["--model.tie", "none"] if "--tokenizer.no-joint" in named else [])]
    if "--model.core.no-shared-positions" in named:
        # Learned positions are no rotary ones.
        words = [word for word in words if word != "--model.core.positions.no-truncate"]
        words += ["--model.core.positions", "learned"]
    changed = settings_by_path(parse(words, NoSettings(), config).config)
    assert {path for path, setting in changed.items() if setting.value is True} <= {
        *RECIPES[recipe].unused
    }
    assert "[not given]" not in page


def test_page_is_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert max(map(len, help_of(capsys, "train", "dates").splitlines())) <= 72


def test_page_shows_the_values_of_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text("model: {core: {name: recurrent, hidden: 38}}\n", encoding="utf-8")
    page = help_of(capsys, "train", "translate", "--config", str(path))
    assert re.search(r"--model.core.hidden INT .*?\[38\]", page, re.DOTALL)
