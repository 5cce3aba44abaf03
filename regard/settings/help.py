"""Text of --help: the usage, then every option with its description and default."""

import shutil
import textwrap
from collections.abc import Sequence

from regard.settings.options import option_name
from regard.settings.tree import Group, Setting

LEFT = 34
"""Width of the column of option names."""


def page(usage: str, about: str, groups: Sequence[Group], *, ending: str = "") -> str:
    """Return a help page; the group of the command's own options has no path."""
    width = _width()
    parts = [f"usage: {usage}", _wrap(about, width)]
    for group in groups:
        first = _wrap(group.doc.partition("\n\n")[0], width - 2)
        title = f"{option_name(group.path)}.*: " if group.path else ""
        rows = [
            (_format_option(setting), _format_description(setting)) for setting in group.settings
        ]
        if rows:
            parts.append(_wrap(title + first, width) + "\n" + two_columns(rows))
    parts.append(
        _wrap(
            "-h, --help; -q, --quiet: only warnings and errors; -v, --verbose: what is done, with "
            "times.",
            width,
        )
    )
    if ending:
        parts.append(_wrap(ending, width))
    return "\n\n".join(parts)


def two_columns(rows: Sequence[tuple[str, str]]) -> str:
    """Format names on the left and wrapped descriptions on the right (below a name that is too
    long)."""
    lines = []
    for left, right in rows:
        # No line break inside a value such as self-attentive, so that it can be copied.
        body = textwrap.wrap(right, max(_width() - LEFT - 2, 24), break_on_hyphens=False) or [""]
        if len(left) + 2 > LEFT:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left:<{LEFT}}{body.pop(0)}".rstrip())
        lines += [f"  {'':<{LEFT}}{line}" for line in body]
    return "\n".join(lines)


def _format_option(setting: Setting) -> str:
    if setting.kind.bases == (bool,):
        return option_name(setting.path)
    return f"{option_name(setting.path)} {setting.kind.label}"


def _format_description(setting: Setting) -> str:
    text = setting.doc
    if setting.kind.within is not None:
        text += f" {str(setting.kind.within).capitalize()}."
    if setting.variants:
        others = [name for name in setting.variants if name != setting.value]
        commands = " or ".join(f"`{option_name(setting.path)} {name} --help`" for name in others)
        owner = "the other's" if len(others) == 1 else "the others'"
        text += f" Shown here: {setting.value}; see {commands} for {owner} options."
    if setting.value is None:
        return f"{text} (optional)".lstrip()
    if setting.value is True:
        above, _, name = setting.path.rpartition(".")
        return f"{text} [on; {option_name(f'{above}.no_{name}'.lstrip('.'))}: off]".lstrip()
    return f"{text} [{_format_default(setting.value)}]".lstrip()


def _format_default(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value) or "none"
    return str(value)


def _wrap(text: str, width: int) -> str:
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        textwrap.fill(" ".join(paragraph.split()), width) for paragraph in paragraphs
    )


def _width() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 110)
