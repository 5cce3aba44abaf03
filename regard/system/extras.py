"""Packages that an extra of pyproject.toml installs: not all commands need them. (no torch)"""

import importlib
import importlib.util
from typing import Any

from regard.errors import UserError

_TRAIN = "babel faster_coco_eval matplotlib rich sacrebleu scipy tensorboard"
_SERVE = "httptools jinja2 prometheus_client starlette uvicorn"
EXTRAS = {
    **dict.fromkeys(_TRAIN.split(), "train"),
    **dict.fromkeys(("datasets", "pyarrow"), "data"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
    **dict.fromkeys(("pypcd4", "trimesh"), "points"),
    "sentencepiece": "sentencepiece",
    **dict.fromkeys(_SERVE.split(), "serve"),
}
"""Extra of each package, by the name under which it is imported."""


def missing(package: str, user: str) -> UserError:
    """Return the error that names a missing package, what needs it, and how it is installed."""
    return UserError(f'{user} needs {package}: pip install -e ".[{EXTRAS[package]}]"')


def import_extra(module: str, user: str) -> Any:
    """Import a module of an extra. Raises: UserError naming the user if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(module.partition(".")[0], user) from error


def check_extra(extra: str, user: str) -> None:
    """Raise UserError if a package of an extra is not installed, naming the user."""
    for package, own in EXTRAS.items():
        if own == extra and importlib.util.find_spec(package) is None:
            raise missing(package, user)
