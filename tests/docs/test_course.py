"""The page "Course": its code runs, and draws the pictures that the page shows."""

import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from docs.gallery import course
from docs.gallery.course import PAGE, pictures_of, run_page
from tests.shapes import without_checks

LIMIT = 60_000
PICTURES = pictures_of()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Return the names that the code of the page defines, and the folder of its pictures."""
    folder = tmp_path_factory.mktemp("course")
    with without_checks():
        return run_page(folder), folder


def texts_of(path: Path) -> tuple[list[str], list[float]]:
    """Return the labels and the numbers of an SVG file."""
    texts = [
        text.strip().replace("\u2212", "-") for text in ElementTree.parse(path).getroot().itertext()
    ]
    numbers = [text for text in texts if re.fullmatch(r"-?\d+(\.\d+)?", text)]
    return [text for text in texts if text and text not in numbers], [
        float(text) for text in numbers
    ]


def test_the_code_draws_the_pictures_of_the_page_and_no_others(page) -> None:
    _, folder = page
    assert sorted(path.name for path in folder.iterdir()) == sorted(PICTURES)
    committed = {path.name for path in (PAGE.parent / "images").glob("course-*")}
    assert committed == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_committed_pictures_are_small_and_those_of_the_code(page, name: str) -> None:
    _, folder = page
    committed = PAGE.parent / "images" / name
    assert 1000 < committed.stat().st_size <= LIMIT
    assert 1000 < (folder / name).stat().st_size <= 1.2 * LIMIT  # fonts differ between machines
    if name.endswith(
        ".svg"
    ):  # exact bytes depend on fonts, and the last digits of numbers on the machine
        (labels, numbers), (other_labels, other_numbers) = (
            texts_of(committed),
            texts_of(folder / name),
        )
        assert other_labels == labels
        assert other_numbers == pytest.approx(numbers, abs=0.011)


def test_each_section_has_formula_code_and_one_picture() -> None:
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert 8 <= len(sections) <= 12
    for section in sections:
        assert re.search(r"^    \S", section.split("```")[0], re.MULTILINE), section[:40]
        assert "assert_close(" in section
        assert len(re.findall(r"\]\(images/", section)) == 1, section[:40]


def test_models_of_the_page_have_learned(page) -> None:
    names, _ = page
    assert names["error"] < 0.5
    assert float(names["energy"].mean()) < 0.05


def test_the_command_replaces_the_pictures_of_a_folder(
    page, tmp_path: Path, monkeypatch, capsys
) -> None:
    _, folder = page
    monkeypatch.setattr(
        course, "run_page", lambda work: shutil.copytree(folder, work, dirs_exist_ok=True)
    )
    for _ in range(2):
        course.main([str(tmp_path)])
    assert all((tmp_path / name).read_bytes() == (folder / name).read_bytes() for name in PICTURES)
    assert len(capsys.readouterr().out.splitlines()) == 2 * len(PICTURES)
