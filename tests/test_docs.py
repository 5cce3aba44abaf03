"""Documentation: links resolve, code runs, and cited papers and lectures exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def code_of_readme() -> list[str]:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", text_of(ROOT / "README.md"), re.MULTILINE | re.DOTALL
    )
    return [block for block in blocks if "runs/" not in block]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", text_of(page))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_readme_code_runs() -> None:
    names: dict[str, object] = {}
    for block in code_of_readme():
        exec(block, names)
    assert {"out", "weights", "probabilities"} <= set(names)


def test_example_of_a_model_is_one_import_and_at_most_ten_lines() -> None:
    (block,) = [block for block in code_of_readme() if "Model(" in block]
    assert len(block.splitlines()) <= 10
    assert len(re.findall(r"^(?:from|import) regard", block, re.MULTILINE)) == 1


def test_cited_papers_are_in_the_bibliography() -> None:
    known = set(
        re.findall(r"^@\w+\{(\w+),", text_of(ROOT / "docs" / "bibliography.bib"), re.MULTILINE)
    )
    pages = [*PAGES, *(ROOT / "regard").rglob("*.py")]
    cited = {
        key for page in pages for key in re.findall(r"\b[a-z]{2,}(?:19|20)\d\d\b", text_of(page))
    }
    assert cited - known == set()
    assert cited


def test_cited_lectures_exist() -> None:
    text = text_of(ROOT / "docs" / "lectures.md")
    keys = re.findall(r'^- <a id="([A-Z]\.\d+)"></a>\*\*\1\*\* ', text, re.MULTILINE)
    sections = re.findall(r"^## ([A-Z])\. ", text, re.MULTILINE)
    numbers = [
        f"{section}.{n}"
        for section in sections
        for n in range(1, 1 + sum(key[0] == section for key in keys))
    ]
    assert keys == numbers  # unique, and in order
    pages = [*(ROOT / "regard").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *PAGES]
    key = r"[A-Z](?:\.\d+)?\b"
    cited = {
        name
        for page in pages
        for found in re.findall(
            rf"\blectures, ((?:{key}|\")(?:(?:, | to | and ){key})*)", text_of(page)
        )
        for name in re.findall(rf"{key}|\"", found)
    }
    assert cited - {*keys, *sections} == set()
    assert len(cited) > 30
