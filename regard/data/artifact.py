"""Artifacts of a run in JSON: what a recipe computes from the training data. (no torch)"""

from pathlib import Path
from typing import Self

import msgspec

from regard.system.files import read_json


class Artifact(msgspec.Struct, omit_defaults=True):
    """Base class: a subclass declares the fields of its file."""

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises UserError naming the file."""
        return read_json(path, cls)
