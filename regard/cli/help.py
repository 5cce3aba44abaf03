"""The text that --help prints: the usage, then every option with its meaning and its value when not given."""

import shutil
import textwrap
from collections.abc import Sequence

from regard.cli.options import option_name
from regard.recipes.settings import Group, Setting

LEFT = 34
"""Width of the column of names."""


def page(usage: str, about: str, groups: Sequence[Group], *, ending: str = "") -> str:
    """A whole help page; the first group may have no path: the command's own options."""
    width = _width()
    parts = [f"usage: {usage}", _wrapped(about, width)]
    for group in groups:
        first = _wrapped(group.doc.partition("\n\n")[0], width - 2)
        title = f"{option_name(group.path)}.*: " if group.path else ""
        rows = [(_left(setting), _right(setting)) for setting in group.settings]
        if rows:
            parts.append(_wrapped(title + first, width) + "\n" + two_columns(rows))
    if ending:
        parts.append(_wrapped(ending, width))
    return "\n\n".join(parts)


def two_columns(rows: Sequence[tuple[str, str]]) -> str:
    """Names at the left, what they mean wrapped at the right (below a name that is too long)."""
    lines = []
    for left, right in rows:
        # A value such as self-attentive stays in one piece, to be copied.
        body = textwrap.wrap(right, max(_width() - LEFT - 2, 24), break_on_hyphens=False) or [""]
        if len(left) + 2 > LEFT:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left:<{LEFT}}{body.pop(0)}".rstrip())
        lines += [f"  {'':<{LEFT}}{line}" for line in body]
    return "\n".join(lines)


def _left(setting: Setting) -> str:
    if setting.kind.bases == (bool,):
        return option_name(setting.path)
    return f"{option_name(setting.path)} {setting.kind.label}"


def _right(setting: Setting) -> str:
    text = setting.doc
    if setting.kind.within is not None:
        text += f" {str(setting.kind.within).capitalize()}."
    if setting.variants:
        others = [name for name in setting.variants if name != setting.value]
        say = " or ".join(f"`{option_name(setting.path)} {name} --help`" for name in others)
        whose = "the other's" if len(others) == 1 else "the others'"
        text += f" Shown here: {setting.value}; see {say} for {whose} options."
    return f"{text} [{_default(setting.value)}]".lstrip()


def _default(value: object) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value) or "none"
    return str(value)


def _wrapped(text: str, width: int) -> str:
    paragraphs = text.split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), width) for paragraph in paragraphs)


def _width() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, 60), 110)
