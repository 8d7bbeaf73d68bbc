"""Add to the site of `make docs` the pages and files that lie outside of docs/, and correct the links to them.

A page is written for the checkout: a link is relative to the place of its file there. README.md is the first page of
the site, the other pages of the root are beside it, and a file that a page links to, such as a test, is copied.
"""

import os.path
import re
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def site_path(target: Path) -> str:
    """Return the place of a file of the checkout on the site."""
    return str(target.relative_to(DOCS if target.is_relative_to(DOCS) else ROOT))


def linked(source: Path) -> set[Path]:
    """List the files of the checkout that a page links to."""
    paths = (match["path"] for match in LINK.finditer(source.read_text()))
    targets = (Path(os.path.normpath(source.parent / path)) for path in paths if not urlsplit(path).scheme)
    return {target for target in targets if target.is_file()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the files outside of docs/ that pages link to."""
    pages = {ROOT / name for name in ROOT_PAGES}
    outside = {target for source in pages | {*DOCS.rglob("*.md")} for target in linked(source)}
    for path in sorted(pages | {target for target in outside if not target.is_relative_to(DOCS)}):
        files.append(File.generated(config, site_path(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs names them
    """Make the links of a page relative to its place on the site."""
    name = page.file.src_uri
    source = DOCS / name if (DOCS / name).is_file() else ROOT / name

    def corrected(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match["path"]))
        if urlsplit(match["path"]).scheme or not target.is_file():
            return match[0]
        return os.path.relpath(site_path(target), Path(name).parent) + (match["anchor"] or "")

    return LINK.sub(corrected, markdown)
