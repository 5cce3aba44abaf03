"""The gallery of the docs: the command for a tiny run, and the committed files."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from docs.gallery.make import main
from docs.gallery.plan import LOOKS, PAGES
from regard.cli.main import main as regard
from tests.recipes.toy import toy_arguments

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
_TINY = (
    "train images --patch 2 --augment none --batch 16 --seed 3 --model.core.width 16 "
    "--model.core.layers 1 "
    "--model.core.heads 2 --model.core.feedforward 16 --train.steps 2 --train.warmup 1 "
    "--train.precision float32 --train.tensorboard false"
)


def page_data(page: Path) -> dict:
    """Return the JSON of a page."""
    (text,) = re.findall(
        r'<script type="application/json" id="page">(.*?)</script>',
        page.read_text(encoding="utf-8"),
    )
    return json.loads(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert regard([*_TINY.split(), "--run", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def docs(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the command wrote the gallery twice, beside an unrelated file."""
    docs = tmp_path_factory.mktemp("docs")
    (docs / "gallery").mkdir()
    (docs / "gallery" / "other.html").write_text("unrelated", encoding="utf-8")
    # Another thread: Playwright can run only once per thread, and the tests of the viewer use it.
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            pool.submit(main, [str(run), "--docs", str(docs)]).result()
    return docs


def test_the_command_writes_page_picture_and_index(docs, tmp_path):
    other = docs / "gallery" / "other.html"
    names = sorted(path.name for path in (docs / "gallery").iterdir())
    assert names == ["README.md", "images.html", "images.png", "other.html"]
    assert other.read_text(encoding="utf-8") == "unrelated"
    (capture,) = page_data(docs / "gallery" / "images.html")["captures"]
    assert capture["title"] == "digits"
    assert len(capture["samples"]) == len(PAGES["images"].inputs)
    with Image.open(docs / "gallery" / "images.png") as picture:
        assert picture.size == (1280, 800)
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 20, "the picture is blank"
    index = (docs / "gallery" / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!\.\.)([^)#\s]+)", index)
    assert "images.html" in targets
    assert [target for target in targets if not (docs / "gallery" / target).exists()] == []
    # The files must not contain folders of this machine.
    for name in ("images.html", "images.png", "README.md"):
        assert str(tmp_path.parent).encode() not in (docs / "gallery" / name).read_bytes()


def test_the_index_contains_the_command_of_the_run(run, docs):
    """The command continues the run, which another setting would refuse."""
    index = (docs / "gallery" / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    regard (train images .*)$", index, re.MULTILINE)
    words = line.replace("runs/digits", str(run)).split()
    assert {"--patch", "--seed", "--model.core.width"} <= set(words)
    assert regard(words) == 0


def test_other_data_and_duplicates_are_refused_before_anything_is_written(run, tmp_path):
    assert regard(["train", *toy_arguments(tmp_path, core="transformer", steps=2)]) == 0
    docs = tmp_path / "docs"
    with pytest.raises(SystemExit, match="no page for translate"):
        main([str(tmp_path / "run"), "--docs", str(docs)])
    listed = tmp_path / "listed"
    listed.mkdir()
    settings = json.loads((run / "run.json").read_text(encoding="utf-8"))
    settings["config"]["data"]["test"] = "photos"
    (listed / "run.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(
        SystemExit, match=r"must use data of the package, but this one has its own \(test\)"
    ):
        main([str(listed), "--docs", str(docs)])
    with pytest.raises(SystemExit, match="are both images"):
        main([str(run), str(run), "--docs", str(docs)])
    with pytest.raises(SystemExit, match="is not a run folder"):
        main([str(tmp_path / "none"), "--docs", str(docs)])
    assert not docs.exists()


@pytest.mark.parametrize("name", PAGES)
def test_committed_pages_are_complete_and_contain_no_folders(name):
    assert (GALLERY / f"{name}.png").stat().st_size < 150_000
    page = GALLERY / f"{name}.html"
    assert page.stat().st_size < 1_200_000
    (capture,) = page_data(page)["captures"]
    assert len(capture["samples"]) >= len(PAGES[name].inputs)
    assert "/" not in capture["title"]


def test_pictures_of_the_docs_exist():
    small = [ROOT / "docs" / "images" / f"look-{name}.png" for name in LOOKS]
    assert [path.name for path in small if not path.exists() or path.stat().st_size > 150_000] == []
    assert {look.page for look in LOOKS.values()} <= set(PAGES)
