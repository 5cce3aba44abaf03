"""`python -m regard ...`, as used by torchrun: torchrun --nproc-per-node 2 -m regard -- train ...

Without the two dashes torchrun takes --run as an abbreviation of its own --run-path.
"""

import sys

from regard.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
