"""`regard completion SHELL`: a script that completes commands, recipes, presets and options.

The script calls `regard completion SHELL WORD ...` with the words of the command line so far, the
last of which is completed. Options, and the choices of an option, are those of the help page of the
command; no torch is imported.
"""

import importlib
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

from regard.errors import DONE, UserError
from regard.recipes.presets import load_presets
from regard.recipes.registry import RECIPES

USAGE = "regard completion bash | zsh | fish"
_SCRIPTS = {
    "bash": r"""_regard() {
  local IFS=$'\n' word="${COMP_WORDS[COMP_CWORD]}"
  [ "$word" = "=" ] && word=""
  COMPREPLY=( $(compgen -W "$(regard completion bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" \
    -- "$word") )
}
complete -o default -o bashdefault -F _regard regard""",
    "zsh": r"""_regard() {
  local -a found
  found=(${(f)"$(regard completion zsh "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _regard regard""",
    "fish": r"""function _regard
  regard completion fish (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c regard -a '(_regard)'""",
}
_INSTALL = {
    "bash": 'eval "$(regard completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(regard completion zsh)"  # in ~/.zshrc, after compinit',
    "fish": "regard completion fish | source  # in ~/.config/fish/config.fish",
}


def run(argv: list[str]) -> int:
    """Print the script of a shell, or the completions of words."""
    if not argv or argv[0] in ("-h", "--help"):
        lines = "\n".join(f"    {line}" for line in _INSTALL.values())
        about = "Print the script that completes commands, recipes and options:"
        print(f"usage: {USAGE}\n\n{about}\n\n{lines}")
        return DONE
    if argv[0] not in _SCRIPTS:
        raise UserError(f"the shell must be one of {', '.join(_SCRIPTS)}, got {argv[0]!r}")
    print("\n".join(complete(argv[1:])) if argv[1:] else _SCRIPTS[argv[0]])
    return DONE


def complete(words: Sequence[str]) -> list[str]:
    """Return what the last word may be completed to; empty where a file is expected."""
    main = importlib.import_module("regard.cli.main")
    *before, last = words
    option, equals, value = last.partition("=")
    if option.startswith("--") and equals:  # one word in zsh and fish
        return [f"{option}={found}" for found in complete([*before, option, value])]
    if before[1:] and (last == "=" or before[-1] == "="):  # a word of its own in bash
        before, last = (before, "") if last == "=" else (before[:-1], last)
    if not before:
        found: Sequence[str] = [*main.COMMANDS, "help", "--help", "--version"]
    elif before[0] == "help":
        return complete([*before[1:], last])
    elif before[-1] == "--preset":
        recipes = {*before} & {*RECIPES} or {*RECIPES}
        found = [name for name, preset in load_presets().items() if recipes & {*preset.recipes}]
    elif last.startswith("-"):
        found = ["--help", *sorted(_options(before))]
    elif before[-1].startswith("--"):
        found = _options(before[:-1]).get(before[-1], [])
    elif before in (["train"], ["sweep"]):
        found = list(RECIPES)
    elif before == ["completion"]:
        found = list(_SCRIPTS)
    else:
        found = []
    return [word for word in found if word.startswith(last)]


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the options of the help page of a command line, each with its choices."""
    main, text = importlib.import_module("regard.cli.main"), io.StringIO()
    with redirect_stdout(text), redirect_stderr(io.StringIO()):
        if main.main([*words, "--help"]) != DONE:
            main.main([words[0], "--help"])
    found = re.findall(r"^ *(--[a-z][\w.-]*)(?:\s+\{([^}]*)\})?", text.getvalue(), re.MULTILINE)
    return {name: re.findall(r"[^\s,]+", choices) for name, choices in found}
