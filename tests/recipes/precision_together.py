"""Program of a test: `torchrun ... -m tests.recipes.precision_together RECIPE ...`.

The measurement returns bfloat16 on the main process and float32 on the other. Each prints the
precision of its steps.
"""

import os
import sys
from typing import Any

from regard.cli.main import main as regard
from regard.recipes import training
from regard.training import loop

RANK = int(os.environ["RANK"])


def main() -> None:
    precisions, original = set(), loop.add_gradients

    def add_gradients(*args: Any, precision: str, **kwargs: Any) -> Any:
        precisions.add(precision)
        return original(*args, precision=precision, **kwargs)

    precision_setting = ("bfloat16", "float32")[RANK]
    training.resolve_precision = lambda setting, device: precision_setting
    loop.add_gradients = add_gradients
    assert regard(["train", *(word for word in sys.argv[1:] if word != "--")]) == 0
    for precision in precisions:
        print(f"\nrank-{RANK}:{precision}", file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
