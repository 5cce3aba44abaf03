"""Damage to settings files and inputs for the campaign `options`."""

import copy
import random
from typing import Any

__all__ = ["mutate", "mutate_tree"]


def mutate_tree(draw: random.Random, tree: dict[str, Any]) -> None:
    """Replace one value by another of any kind."""
    name = draw.choice(list(tree))
    if isinstance(tree[name], dict) and tree[name] and draw.random() < 0.9:
        mutate_tree(draw, tree[name])
        return
    values = (
        0,
        -1,
        10**30,
        10**400,
        float("nan"),
        float("inf"),
        True,
        None,
        [],
        {},
        [[1]],
        {"name": 1},
        "x",
        "\x07",
        1e308,
    )
    tree[name] = copy.deepcopy(draw.choice(values))


def mutate(draw: random.Random, content: bytes) -> bytes:
    """Change, duplicate, cut or insert a few bytes or lines."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(content) + 1)
        to = min(len(content), at + draw.choice((1, 4, 40)))
        lines = content.split(b"\n")
        line = draw.choice(lines)
        pieces = (
            b"\xff",
            b"\0",
            b"*a",
            b"&a ",
            b"!!binary ",
            b"<<: ",
            b"[" * 5000,
            b"{a: " * 500,
            b"- ",
            b"? ",
            b"9" * 5000,
        )
        match draw.randrange(5):
            case 0:
                content = content[:at]
            case 1:
                content = content[:at] + content[to:]
            case 2:
                content = content[:at] + draw.choice(pieces) + content[at:]
            case 3:
                content = content[:at] + draw.randbytes(to - at) + content[to:]
            case 4:
                content = content + b"\n" + line
    return content
