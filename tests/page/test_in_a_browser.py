"""The page of a lake in a real browser: the graph, two moments, the list of tables; dark, narrow, hostile, empty."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from lance_dagster import LanceRepository, lake_page
from tests.page.lakes import add_candidate, busy_lake, lake_with, rows
from tests.plugin.browser import Browser, browser_on

pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror='window.hit=1'>\"'"
TABLES = 60
# How many pixels of the graph have a colour, the blank ones left out.
PAINTED = """
const canvas = document.querySelector('#graph canvas');
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
let painted = 0;
for (let at = 3; at < pixels.length; at += 4) painted += pixels[at] > 0;
return painted;
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pages: of a busy lake, an empty one, one of many tables, and one of hostile texts."""
    top = tmp_path_factory.mktemp("pages")
    hostile = lake_with(top / "hostile", ["a<img src=x onerror=window.hit=1>"], 1)
    hostile.table(hostile.tables()[0]).append(rows(9))
    hostile.commit(HOSTILE, properties={"dagster/run_id": HOSTILE})
    hostile.channels.promote("production", reason=HOSTILE)
    add_candidate(hostile, hostile.tables()[0], [1], {HOSTILE: (False, HOSTILE)})
    lakes = {
        "busy": busy_lake(top / "busy-lake"),
        "empty": LanceRepository.create(top / "empty-lake"),
        "many": lake_with(top / "many-lake", [f"shop/table_{number:03d}" for number in range(TABLES)], TABLES),
        "hostile": hostile,
    }
    for name, lake in lakes.items():
        text = lake_page(lake, dagster_url="https://dagster.example.com")
        (top / f"{name}.html").write_text(text, encoding="utf-8")
    return top


@pytest.fixture(scope="module")
def browser(pages: Path) -> Iterator[Browser]:
    """A browser on the folder of pages."""
    with browser_on(f"file://{pages}") as opened:
        yield opened


@pytest.mark.parametrize("name", ["busy", "empty", "many", "hostile"])
def test_the_browser_finds_no_mistake(browser: Browser, name: str) -> None:
    """No script fails, nothing is requested, and the policy refuses nothing of the page itself."""
    _mistakes(browser)
    browser.open(f"{name}.html", "Channels")
    browser.wait_for(lambda: browser.driver.execute_script("return document.readyState"), "complete".__eq__, "page")
    assert [] == _mistakes(browser)
    loaded = browser.driver.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [] == loaded


def test_a_commit_of_the_graph_shows_its_tables(browser: Browser) -> None:
    """The graph is painted, and the arrow keys choose commits; a click chooses the commit under it."""
    browser.open("busy.html", "6 of 6 commits")
    # The picture on the page of the docs shows a place that a reader may have.
    browser.driver.execute_script("document.querySelector('p.muted code').textContent = 's3://shop/lake'")
    browser.picture("lake-page", height=1130, left=0)
    assert 2_000 < browser.driver.execute_script(PAINTED)
    graph = browser.driver.find_element(By.ID, "graph")
    # The newest column is the candidate that a check refused; the newest commit is left of it.
    graph.send_keys(Keys.ARROW_LEFT)
    browser.wait_for_text("refused")
    graph.send_keys(Keys.ARROW_LEFT)
    chosen = browser.driver.find_element(By.ID, "chosen")
    browser.wait_for(lambda: chosen.text, lambda text: "load 4" in text and "shop/customers" in text, "chosen commit")
    over = browser.driver.find_element(By.CSS_SELECTOR, "#graph .u-over")
    over.click()
    browser.wait_for(lambda: chosen.text, lambda text: "load 2" in text or "load 3" in text, "commit in the middle")


def test_two_moments_of_a_channel_are_compared(browser: Browser) -> None:
    """The newest move is shown first; any other pair of moments shows the tables that differ."""
    browser.open("busy.html", "What differs between two moments")
    difference = browser.driver.find_element(By.ID, "difference")
    assert "shop/customers main@3 main@2" in " ".join(difference.text.split())
    browser.driver.execute_script(
        "const before = document.getElementById('before'); before.value = 0; before.dispatchEvent(new Event('change'))"
    )
    text = " ".join(difference.text.split())
    # Values may have changed in more rows.
    assert "rows after rows, net" in text
    assert "shop/orders main@2 main@3 2 +1" in text
    assert "ml/features - main@2 1 +1" in text


def test_the_list_of_tables_is_filtered_and_sorted(browser: Browser) -> None:
    """A text leaves the tables with it in their name; a click on a heading sorts."""
    browser.open("many.html", "shop/table_003")
    browser.driver.find_element(By.ID, "named").send_keys("table_01")
    browser.wait_for_text("10 tables")
    assert 10 == len([row for row in _rows(browser) if row.is_displayed()])
    heading = browser.driver.find_element(By.XPATH, "//table[@id='list']//th[1]/button")
    heading.click()
    assert "shop/table_000" in str(_rows(browser)[0].get_attribute("textContent")).split()
    row = next(row for row in _rows(browser) if row.is_displayed())
    row.click()
    assert browser.driver.find_element(By.CSS_SELECTOR, "tr.growth canvas").is_displayed()


def test_more_tables_are_drawn_on_request(browser: Browser) -> None:
    """The graph begins with the tables that changed last."""
    browser.open("many.html", f"{TABLES - 25} more tables")
    before = browser.driver.find_element(By.CSS_SELECTOR, "#graph canvas").size["height"]
    browser.click("Show more tables")
    after = browser.driver.find_element(By.CSS_SELECTOR, "#graph canvas").size["height"]
    assert before < after
    assert f"{TABLES - 25} more tables" not in browser.text


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_on_every_screen(browser: Browser, width: int, scheme: str) -> None:
    """Nothing is wider than the screen, and the ground is light or dark."""
    driver = browser.driver
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", _screen(width))
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.open("busy.html", "Channels")
    assert width >= driver.execute_script("return document.documentElement.scrollWidth")
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(ground) > 380) is (scheme == "light")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_no_text_of_a_lake_runs(browser: Browser) -> None:
    """Texts that look like scripts are shown as they are, also where the script of the page puts them."""
    browser.open("hostile.html", HOSTILE)
    graph = browser.driver.find_element(By.ID, "graph")
    for _ in range(3):
        graph.send_keys(Keys.ARROW_LEFT)
    browser.wait_for_text("a<img src=x onerror=window.hit=1>")
    assert browser.driver.execute_script("return window.hit === undefined && !document.querySelector('img')")


def _mistakes(browser: Browser) -> list[str]:
    """What the browser has reported since the last call."""
    entries = browser.driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in entries]


def _rows(browser: Browser) -> list[WebElement]:
    return browser.driver.find_elements(By.CSS_SELECTOR, "#list tbody tr")


def _screen(width: int) -> dict[str, object]:
    return {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
