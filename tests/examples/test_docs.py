"""All blocks of Python or of a shell in the pages run, from top to bottom of each page."""

import re
import runpy
from pathlib import Path

import pytest

from lance_dagster import LanceTable
from tests.forked_program import run_program

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tests/examples/sessions").glob("*.md")),
]
BLOCK = re.compile(r"^```(?P<kind>python|console)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
# Pages that start Spark.
STARTS_SPARK = ("real-pipeline.md", "spark.md")
RUN_BLOCK = "__import__('tests.examples.console', fromlist=['run_block']).run_block"


def page_code(page: Path) -> str:
    """All blocks of a page as one program that keeps the line numbers."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for match in BLOCK.finditer(text):
        first = text.count("\n", 0, match.start("text"))
        if match["kind"] == "console":
            lines[first] = f"{RUN_BLOCK}({match['text']!r})"
            continue
        for offset, line in enumerate(match["text"].splitlines()):
            lines[first + offset] = line
    return "\n".join(lines)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in STARTS_SPARK else [])
        for page in PAGES
        if BLOCK.search(page.read_text())
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """A reader who types the blocks of a page gets the results that the page shows."""
    code = page_code(page)
    program = tmp_path / "page.py"
    # Each page is a file, because Dagster reads the source of the functions it is given.
    program.write_text(code)
    done = run_program(str(program), cwd=tmp_path)
    assert 0 == done.returncode, done.stderr


def test_the_example_of_the_readme_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster loads the file that the README shows, and its job moves the tag."""
    (block,) = [match["text"] for match in BLOCK.finditer(PAGES[0].read_text()) if "lance_assets(" in match["text"]]
    (tmp_path / "shop.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    defs = runpy.run_path("shop.py")["defs"]
    assert defs.resolve_job_def("load_and_publish").execute_in_process().success
    assert 3 == LanceTable.open("lake/shop/customers.lance").count_rows("production")


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, by GitHub's rule."""
    outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    """Each link to a file of the project leads to an existing file, and to a heading of it where it names one."""
    broken = [
        f"{page.relative_to(ROOT)}: {path}{anchor}"
        for page in PAGES
        for path, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?\)", page.read_text())
        if "://" not in path
        and (target := page if not path else page.parent / path)
        and not (target.exists() and (not anchor or anchor[1:] in anchors(target)))
    ]
    assert [] == broken


def test_the_readme_fits_a_newcomer() -> None:
    """The README is short and shows code early."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert any("make demo" in line for line in lines[:25])
