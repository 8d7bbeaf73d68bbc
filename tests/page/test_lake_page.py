"""The page of a lake: what it says, what it leaves out, and that nothing of a lake is read as HTML."""

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lance_dagster import InvalidInputError, LanceRepository, lake_page
from tests.page.lakes import OLDER_RUN, RUN, add_candidate, busy_lake, lake_with, rows

DAGSTER = "https://dagster.example.com"
DRAWING = Path(__file__).parents[2] / "lance_dagster" / "page" / "drawing"
# Those of uPlot 1.6.32 as npm delivers it.
DIGESTS = {
    "LICENSE.uPlot": "8f989229699b4fe2f1a0432d0e9edc33",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f71615",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b1",
}
HOSTILE = "<img src=x onerror=alert(1)>'\"&</script><script>alert(2)</script>"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text between them, scripts left out."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._texts: list[str] = []
        self._silent = False
        self.feed(page)

    @property
    def text(self) -> str:
        """The text, with single blanks."""
        return " ".join(" ".join(self._texts).split())

    def attributes(self, tag: str, name: str) -> list[str | None]:
        """The values of an attribute of all elements of a kind."""
        return [attributes[name] for element, attributes in self.elements if element == tag and name in attributes]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, dict(attrs)))
        self._silent = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        """Texts count again behind a script or style."""
        self._silent = self._silent and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        """Note a text."""
        if not self._silent:
            self._texts.append(data)


def values_of(page: str) -> dict[str, object]:
    """The values that the script draws."""
    found = re.search(r'<script type="application/json" id="values">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    values: dict[str, object] = json.loads(found[1])
    return values


def test_the_legend_explains_every_mark(tmp_path: Path) -> None:
    """Each shape that the script draws has its text, rollbacks and earlier places of channels too."""
    page = Elements(lake_page(busy_lake(tmp_path / "lake")))
    for mark in (
        "a commit; on the line of a table: it changed the table",
        "waits on a branch",
        "a check failed",
        "its branch is gone",
        "from the commit that the branch was forked from",
        "a channel is here",
        "a channel came here",
        "a channel was rolled back to here",
    ):
        assert mark in page.text


def test_branches_without_commits_are_one_line(tmp_path: Path) -> None:
    """A refused output leaves such a branch, and many of them would hide what waits."""
    lake = lake_with(tmp_path / "lake", ["a"], 1)
    for number in range(3):
        lake.table("a").branches.create(f"run/{number}")
    page = Elements(lake_page(lake)).text
    assert "3 branches without commits, of runs that are under way" in page
    assert page.index("3 branches") > page.index("Candidates that wait")


def test_the_page_says_what_a_person_on_call_asks(tmp_path: Path) -> None:
    """Who holds the channel and why, which candidate failed which check, and what the tables have."""
    page = Elements(lake_page(busy_lake(tmp_path / "lake")))
    for expected in (
        "production is held",
        "1 candidate with failed checks",
        "held by marie",
        "because the refunds are counted twice",
        "unique_id rows that repeat the id of another: 1; allowed: none in",
        "1 check passed",
        "4 rows on the branch",
        "shop/customers main@3 main@2",
        "3 tables",
    ):
        assert expected in page.text, page.text


def test_values_of_rows_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    """The examples of a failed check, and rows that differ, are on the page only with `preview_rows`."""
    lake = busy_lake(tmp_path / "lake")
    assert "such as 7" not in lake_page(lake)
    page = Elements(lake_page(lake, preview_rows=2)).text
    assert "allowed: none; such as 7" in page
    assert "shop/customers 0 rows added, 1 removed, 0 changed change id delete 4" in page


def test_runs_are_links_where_dagster_has_an_address(tmp_path: Path) -> None:
    """Without an address the page has no link."""
    lake = busy_lake(tmp_path / "lake")
    assert [] == Elements(lake_page(lake)).attributes("a", "href")
    links = Elements(lake_page(lake, dagster_url=f"{DAGSTER}/")).attributes("a", "href")
    assert {f"{DAGSTER}/runs/{RUN}", f"{DAGSTER}/runs/{OLDER_RUN}"} == set(links)


@pytest.mark.parametrize("address", ["javascript:alert(1)", "dagster.example.com", "data:text/html,x"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    """Only http and https make a link."""
    with pytest.raises(InvalidInputError):
        lake_page(LanceRepository.create(tmp_path), dagster_url=address)


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    """A misspelt option has no silent effect."""
    with pytest.raises(InvalidInputError):
        lake_page(LanceRepository.create(tmp_path), preview_row=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidInputError):
        lake_page(LanceRepository.create(tmp_path), commits=0)


def test_an_empty_lake_has_a_page(tmp_path: Path) -> None:
    """It says that there is nothing yet."""
    page = Elements(lake_page(LanceRepository.create(tmp_path / "lake"))).text
    for expected in ("There is no channel yet", "Nothing waits to be published", "The lake has no tables yet"):
        assert expected in page


def test_nothing_of_a_lake_is_read_as_html(tmp_path: Path) -> None:
    """Texts of people and programs make no element and no attribute, wherever the page shows them."""
    lake = lake_with(tmp_path / "lake", ["a<b>"], 1)
    lake.table("a<b>").append(rows(5))
    lake.commit(HOSTILE, properties={"dagster/run_id": HOSTILE})
    lake.channels.promote("production", reason=HOSTILE, properties={"dagster/run_id": HOSTILE})
    add_candidate(lake, "a<b>", [1], {HOSTILE: (False, HOSTILE)})
    lake.channels.hold("production", reason=HOSTILE, who=HOSTILE)
    text = lake_page(lake, dagster_url=f'{DAGSTER}/"><script>', preview_rows=1)
    page, plain = Elements(text), Elements(lake_page(lake_with(tmp_path / "plain", ["t"], 1)))
    assert plain.attributes("script", "id") == page.attributes("script", "id")
    assert 3 == sum(tag == "script" for tag, _ in page.elements)
    assert not [tag for tag, _ in page.elements if tag in ("img", "b")]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) > 3
    assert "a<b>" in page.text


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """No element names a file or an address, and the policy of the page allows its own scripts alone."""
    page = Elements(lake_page(busy_lake(tmp_path / "lake")))
    assert [] == [value for tag in ("script", "link", "img", "iframe") for value in page.attributes(tag, "src")]
    assert "link" not in [tag for tag, _ in page.elements]
    policy = page.attributes("meta", "content")[0] or ""
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert 3 == policy.count("sha256-")
    assert "unsafe" not in policy


def test_older_commits_are_left_out(tmp_path: Path) -> None:
    """The page has as many commits as asked for, and says that there are more."""
    lake = lake_with(tmp_path / "lake", ["t"], 4)
    page = lake_page(lake, commits=2)
    assert ["load 2", "load 3"] == [commit[3] for commit in values_of(page)["commits"]]  # type: ignore[attr-defined]
    assert "It has the last 2 commits" in Elements(page).text
    whole = lake_page(lake, commits=5)
    assert 5 == len(values_of(whole)["commits"])  # type: ignore[arg-type]
    assert "--commits" not in Elements(whole).text


def test_the_library_is_as_its_authors_released_it() -> None:
    """Nobody edits the files that come from npm."""
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:32] for file in DRAWING.iterdir()}
    assert digests == DIGESTS
