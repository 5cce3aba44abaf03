"""Text of --help: the usage, then every option with its description and default."""

import shutil
import textwrap
from collections.abc import Collection, Sequence
from typing import Any

from regard.errors import DONE
from regard.settings.options import option_name, wants_help
from regard.settings.tree import Group, Setting

LEFT = 34
"""Width of the column of option names."""


class HelpShown(SystemExit):
    """End of a command whose help page was printed."""


def show_help(
    argv: Sequence[str], usage: str, about: str, groups: Sequence[Group] = (), **options: Any
) -> None:
    """Print the help page of a command and end it, if its command line has --help."""
    if wants_help(argv):
        print(page(usage, about, groups, **options))
        raise HelpShown(DONE)


def page(
    usage: str,
    about: str,
    groups: Sequence[Group] = (),
    *,
    hidden: Collection[str] = (),
    ending: str = "",
) -> str:
    """Return a help page; the group of the command's own options has no path.

    hidden: paths of settings that are left out.
    """
    width = _width()
    parts = [f"usage: {usage}", textwrap.fill(about, width)]
    for group in groups:
        rows = []
        for setting in group.settings:
            if setting.path not in hidden:
                name, kind = option_name(setting.path), setting.kind
                option = name if kind.bases == (bool,) else f"{name} {kind.label}"
                rows.append((option, _format_description(setting)))
        if rows:
            title = f"{option_name(group.path)}.*: " if group.path else ""
            about_group = " ".join(group.doc.partition("\n\n")[0].split())
            parts.append(textwrap.fill(title + about_group, width) + "\n" + two_columns(rows))
    common = "-h, --help; -q, --quiet: only warnings and errors; -v, --verbose: what is done."
    parts += [textwrap.fill(text, width) for text in (common, ending) if text]
    return "\n\n".join(parts)


def two_columns(rows: Sequence[tuple[str, str]]) -> str:
    """Format names on the left and wrapped descriptions on the right, or below a long name."""
    lines = []
    for left, right in rows:
        # No line break inside a value such as self-attentive, so that it can be copied.
        body = textwrap.wrap(right, _width() - LEFT - 2, break_on_hyphens=False) or [""]
        if len(left) + 2 > _width():
            option, _, choices = left.partition(" ")
            lines.append(f"  {option}")
            choices = textwrap.wrap(choices.replace(",", ", "), _width() - 6)
            lines += [f"      {line}" for line in choices]
        elif len(left) + 2 > LEFT:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left:<{LEFT}}{body.pop(0)}".rstrip())
        lines += [f"  {'':<{LEFT}}{line}" for line in body]
    return "\n".join(lines)


def _format_description(setting: Setting) -> str:
    text, value = setting.doc, setting.value
    if setting.kind.within is not None:
        text += f" {str(setting.kind.within).capitalize()}."
    if setting.variants:
        text += f" Shown here: {value}; give another with --help to see its options."
    if value is None:
        return f"{text} (optional)".lstrip()
    if isinstance(value, tuple):
        value = " ".join(map(str, value)) or "none"
    elif value is False:
        value = "off"
    elif value is True:
        above, dot, name = setting.path.rpartition(".")
        value = f"on; {option_name(f'{above}{dot}no_{name}')}: off"
    return f"{text} [{value}]".lstrip()


def _width() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 110)
