"""The requirements of the tests without upper bounds: those of `make test` are in constraints.txt.

python -m tests.requirements > requirements.txt
"""

import re
import tomllib
from pathlib import Path


def without_upper_bounds(requirement: str) -> str:
    """Remove the upper bounds of a requirement: torch>=2.11,<2.14 becomes torch>=2.11."""
    name, _, marker = requirement.partition(";")
    return re.sub(r",\s*<[^,;]+", "", name).strip() + (f"; {marker.strip()}" if marker else "")


def main() -> None:
    path = Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for requirements in (project["dependencies"], extras["train"], extras["data"], extras["test"]):
        for requirement in requirements:
            print(without_upper_bounds(requirement))


if __name__ == "__main__":
    main()
