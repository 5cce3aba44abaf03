"""Process started by torchrun in a test: `torchrun ... -m tests.recipes.precision_together RECIPE ...`.

The measurement returns bfloat16 on the main process and float32 on the other. Each prints the precision of its steps.
"""

import os
import sys
from typing import Any

from regard.cli.main import main as regard
from regard.recipes import training
from regard.train import loop
from regard.train.precision import Precision

RANK = int(os.environ["RANK"])


def main() -> None:
    seen, real = set(), loop.add_gradients

    def add_gradients(*given: Any, precision: str, **more: Any) -> Any:
        seen.add(precision)
        return real(*given, precision=precision, **more)

    found = Precision(("bfloat16", "float32")[RANK], "measured")
    training.resolve_precision = lambda setting, device: found
    loop.add_gradients = add_gradients
    assert regard(["train", *(word for word in sys.argv[1:] if word != "--")]) == 0
    print("\n" + "".join(f"rank-{RANK}:{one}\n" for one in seen), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
