"""The page "Course": its code runs, and draws the pictures that the page shows."""

import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import regard
from docs.gallery import course
from docs.gallery.course import PAGE, pictures_of, run_page
from regard.lab.registry import CLAIMS
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


def test_each_section_has_question_formula_code_picture_and_claim() -> None:
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(sections) == 16
    claimed = set()
    for section in sections:
        heading, question = section.split("\n\n")[:2]
        assert "?" in question, heading
        assert re.search(r"^    \S", section.split("```")[0], re.MULTILINE), heading
        assert "assert_close(" in section, heading
        claims = re.findall(r"`regard lab ([\w-]+)`", section)
        claimed |= set(claims)
        if section not in sections[14:]:  # those beyond the lectures
            assert len(re.findall(r"\]\(images/", section)) == 1, heading
            assert claims, heading
            assert "**Does it hold?**" in section, heading
    assert claimed == set(CLAIMS)


def test_links_of_claims_lead_to_their_pages() -> None:
    text = PAGE.read_text(encoding="utf-8")
    links = re.findall(r"\[`regard lab ([\w-]+)`\]\(lab/([\w-]+)\.md\)", text)
    assert links
    assert [name for name, page in links if name != page] == []


def test_the_course_has_every_key_of_the_lectures() -> None:
    lectures = (PAGE.parent / "lectures.md").read_text(encoding="utf-8")
    keys = re.findall(r'<a id="(\w\.\d+)">', lectures)
    cited = re.findall(r"\b[A-E]\.\d+\b", PAGE.read_text(encoding="utf-8"))
    assert len(keys) == 64
    assert set(cited) == set(keys)


def test_code_of_the_course_has_public_names_only() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^(?:from|import) regard.*$", text, re.MULTILINE) == ["import regard"]
    used = set(
        re.findall(r"\bregard\.(\w+)", "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    )
    assert used - set(regard.__all__) == set()


def test_models_of_the_page_have_learned(page) -> None:
    names, _ = page
    assert names["error"] < 0.5
    assert names["error_without"] > names["error"] + 0.5
    assert names["remaining"] < 0.2
    assert float(names["energy"].mean()) < 0.02


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
