"""`lake_page`: the facts of a lake as one HTML file that loads nothing.

The text is made by a Jinja template that escapes every value. The graph is drawn in the browser, by uPlot and the
script beside it, from values that the page holds as JSON. A policy in the page allows these scripts alone, by their
digests, and no request: whatever a table is called, nothing of its name can run or be sent.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TypedDict, Unpack
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from lance_dagster.credentials import shown_uri
from lance_dagster.errors import counted
from lance_dagster.format.validation import check_options, web_address, whole_number
from lance_dagster.format.verdict_text import without_examples
from lance_dagster.history.versions import Version
from lance_dagster.page.drawn_values import drawn_values
from lance_dagster.page.lake_facts import LakeFacts, lake_facts
from lance_dagster.repository import LanceRepository

_COMMITS = 1000
_SHORT_ID, _SHORT_RUN = 12, 8
_RUN_BRANCH = re.compile(r"run/(?P<run>[0-9a-f-]{8,})")
# The size of the line of growth in a row of the list of tables.
_LINE_WIDTH, _LINE_HEIGHT, _LINE_POINTS = 120, 24, 60


class PageOptions(TypedDict, total=False):
    """The options of a page.

    `commits` is how many commits of `main`, and how many moves of each channel, the page has; 1,000 if left out.
    `dagster_url` is the address of Dagster's web UI, such as `https://dagster.example.com`; runs are links to it.
    `preview_rows` is how many rows the page shows of each table that the last move of a channel changed; with 0, the
    default, it shows no value of a row, also not among the examples of failed checks.
    """

    commits: int
    dagster_url: str
    preview_rows: int


def lake_page(repository: LanceRepository, **options: Unpack[PageOptions]) -> str:
    """Return a page that shows a lake: channels, candidates, the graph of commits, tables. It needs no network.

    Nothing is written. The words of checks are on the page; values of rows are left out unless `preview_rows` is given.
    A check of your own names values of rows, if it must, behind `; such as `, where the page cuts its sentence.

    Args:
        repository: The lake.
        **options: See `PageOptions`.

    Raises:
        InvalidInputError: A number is negative, or the address is not one of `http://` or `https://`.

    Examples:
        >>> page = lake_page(LanceRepository.create("lake"))
        >>> size = Path("lake.html").write_text(page, encoding="utf-8")
    """
    return page_and_facts(repository, **options)[0]


def page_and_facts(repository: LanceRepository, **options: Unpack[PageOptions]) -> tuple[str, LakeFacts]:
    """Return the page of a lake as `lake_page` does, and the facts that it shows."""
    check_options(lake_page, options, PageOptions)
    commits = whole_number("commits", options.get("commits", _COMMITS), 1)
    rows = whole_number("preview_rows", options.get("preview_rows", 0), 0)
    address = web_address("dagster_url", options.get("dagster_url", ""))
    facts = lake_facts(repository, commits=commits, preview_rows=rows)
    style = _text("drawing/uPlot.min.css", "templates/lake.css")
    scripts = _text("drawing/uPlot.iife.min.js"), _text("templates/lake.js")
    page = _template().render(
        facts=facts,
        values=drawn_values(facts, address),
        dagster_url=address,
        shows_values=rows > 0,
        style=Markup(style),  # noqa: S704  # files of this package
        scripts=[Markup(script) for script in scripts],  # noqa: S704  # the same
        policy=_policy(style, scripts),
    )
    # Names on disk may hold bytes that are not UTF-8; a file cannot be written with them.
    return page.encode("utf-8", "backslashreplace").decode("utf-8"), facts


def _policy(style: str, scripts: Sequence[str]) -> str:
    """Return the policy by which a browser applies this style and runs these scripts, and requests nothing."""
    digests = " ".join(map(_digest, scripts))
    return f"default-src 'none'; style-src {_digest(style)}; script-src {digests}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _text(*names: str) -> str:
    return "\n".join(files("lance_dagster.page").joinpath(name).read_text(encoding="utf-8") for name in names)


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "counted": counted,
        "commit": lambda commit_id: commit_id[:_SHORT_ID],
        "run": lambda run_id: run_id[:_SHORT_RUN],
        "branch": _short_branch,
        "finding": without_examples,
        "first_line": lambda text: (text or "").strip().partition("\n")[0],
        "line": _line,
        "path": lambda text: quote(text, safe=""),
        "root": shown_uri,
        "time": lambda time: f"{time.in_timezone('UTC'):%Y-%m-%d %H:%M} UTC",
        "iso": lambda time: time.in_timezone("UTC").isoformat(),
        "ago": lambda time, now: f"{now.diff_for_humans(time, absolute=True)} ago",
    }
    environment.globals["run_of"] = _run_of
    return environment.from_string(_text("templates/lake.html.jinja"))


def _short_branch(branch: str) -> str:
    match = _RUN_BRANCH.fullmatch(branch)
    return f"run/{match['run'][:_SHORT_RUN]}" if match else branch


def _run_of(branch: str) -> str:
    match = _RUN_BRANCH.fullmatch(branch)
    return match["run"] if match else ""


def _line(versions: Sequence[Version]) -> str:
    """Return the points of the line of rows over time, in the box of a list row; empty for fewer than two versions.

    Example: three versions of 0, 5 and 10 rows, one hour apart, give `0,24 60,12 120,0`.
    """
    if len(versions) < 2:  # noqa: PLR2004  # a line has two ends
        return ""
    # The first and the last version are always among the points.
    step = max(1, -(-(len(versions) - 1) // _LINE_POINTS))
    points = [*versions[:-1:step], versions[-1]]
    begin, end = points[0].committed_at.timestamp(), points[-1].committed_at.timestamp()
    most = max(version.rows for version in points) or 1
    return " ".join(
        f"{(version.committed_at.timestamp() - begin) / ((end - begin) or 1) * _LINE_WIDTH:.4g},"
        f"{_LINE_HEIGHT - version.rows / most * _LINE_HEIGHT:.4g}"
        for version in points
    )
