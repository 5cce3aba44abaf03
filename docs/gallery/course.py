"""Run the code of docs/course.md, and write its pictures into docs/images.

python -m docs.gallery.course [FOLDER]
"""

import argparse
import contextlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "main", "pictures_of", "run_page"]

PAGE = Path(__file__).parents[1] / "course.md"


def main(argv: list[str] | None = None) -> None:
    """Write the pictures, and print their paths; existing files are replaced."""
    parser = argparse.ArgumentParser(
        description="Run the code of docs/course.md, and write its pictures."
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=PAGE.parent / "images", metavar="FOLDER"
    )
    folder = parser.parse_args(argv).folder
    with tempfile.TemporaryDirectory() as work:
        run_page(Path(work))
        for name in pictures_of():
            print(shutil.copyfile(Path(work) / name, folder / name))


def run_page(folder: Path) -> dict[str, Any]:
    """Run the code of the page in a folder, and return the names that it defines."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    names: dict[str, Any] = {"__name__": "course"}
    with contextlib.chdir(folder):
        exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    return names


def pictures_of() -> list[str]:
    """Return the names of the pictures of the page that its code draws."""
    return re.findall(r"\]\(images/(course-[^)]+)\)", PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
