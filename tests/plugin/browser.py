"""A real browser on a real web UI, which clicks, types and reads as a person does."""

import base64
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")
PATIENCE_SECONDS = 60
CLICKS = 6
WINDOW, NAVIGATION_WIDTH, BARS_HEIGHT = (1500, 1100), 240, 143
# Graphs and notices are animated for a while after the page has its text.
PICTURE_SECONDS = 3
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# `.ci/run` sets it, after it has installed the browser: there, a missing browser is a failure and not a skip.
_REQUIRED = "LANCE_DAGSTER_BROWSER_REQUIRED"
# A folder for screenshots; without it none are taken. docs/testing.md says how they get into docs/pictures.
_PICTURES = "LANCE_DAGSTER_PICTURES"
# The second half of the *Materialize* button opens the menu.
_MENU = " | ".join(
    f"//button[.='Materialize']/{place}"
    for place in ("../following-sibling::*//button", "following-sibling::*//button", "following-sibling::button")
)
_RUN_PAGE = re.compile(r"/runs/([0-9a-f-]{36})")
_STATUS = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
_NEWEST = "{ runsOrError(limit: 1) { ... on Runs { results { runId } } } }"
_FINAL = ("SUCCESS", "FAILURE", "CANCELED")
_ENDED = ("RUN_SUCCESS", "RUN_FAILURE", "RUN_CANCELED")


@dataclass(frozen=True)
class Browser:
    """A browser window that shows the web UI."""

    driver: webdriver.Chrome
    url: str

    @property
    def text(self) -> str:
        """The text of the page, as the browser lays it out; selenium's own `text` looks at every element by script."""
        shown: str = self.driver.execute_script("return document.body.innerText")
        return shown

    def open(self, path: str, *expected: str) -> str:
        """Open a page, wait until it shows some texts, and return the whole text of the page."""
        self.driver.get(f"{self.url}/{path}")
        return self.wait_for_text(*expected)

    def wait_for_text(self, *expected: str) -> str:
        """Wait until the page shows some texts."""
        return self.wait_for(lambda: self.text, lambda text: all(one in text for one in expected), f"{expected}")

    def picture(self, name: str, *, height: int, left: int = NAVIGATION_WIDTH) -> None:
        """Save a screenshot of the upper part of the page, usually without the navigation, if a folder is given."""
        if folder := os.environ.get(_PICTURES):
            self.driver.set_window_size(WINDOW[0], height + BARS_HEIGHT)
            time.sleep(PICTURE_SECONDS)
            clip = {"x": left, "y": 0, "width": WINDOW[0] - left, "height": height, "scale": 0.75}
            found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
            Path(folder, f"{name}.png").write_bytes(base64.b64decode(found["data"]))
            self.driver.set_window_size(*WINDOW)

    def click(self, label: str, within: str = "button") -> None:
        """Click the last visible element of a kind with this label: dialogs come after the page that they cover."""

        def clicked() -> bool:
            found = [one for one in self.driver.find_elements(By.CSS_SELECTOR, within) if self._reads(one, label)]
            if not found:
                return False
            found[-1].click()
            return True

        self.wait_for(clicked, bool, f"{within} {label!r}")

    def materialize(self, asset: str) -> str:
        """Press *Materialize* on the page of an asset, and return the log of the run after its end."""
        self.open(f"assets/{asset}", "Materialize")
        run = self._materialized()
        self.open("runs", run[:8])
        self._click_first(f"//a[contains(@href, '/runs/{run[:8]}')]", "link to the run")
        self.wait_for(lambda: self.driver.current_url, lambda url: f"/runs/{run}" in url, "page of the run")
        return self._log()

    def launch(self, asset: str, config: str, *, picture: str = "") -> str:
        """Press *Materialize* in the launchpad of an asset, with some configuration; return the log of the run."""
        self.open(f"assets/{asset}", "Materialize")
        self._click_first(_MENU, "the menu of the button")
        self.click("Open launchpad", within="[role=menuitem], .bp5-menu-item, .bp4-menu-item")
        editor = self.wait_for(lambda: self.driver.find_elements(By.CSS_SELECTOR, ".CodeMirror"), bool, "an editor")[0]
        # The text is set through the editor's script object: the editor would complete and indent keys sent to it.
        self.driver.execute_script("arguments[0].CodeMirror.setValue(arguments[1])", editor, config)
        self.wait_for_text("No errors")
        if picture:
            self.picture(picture, height=700, left=0)
        self._materialized()
        self.wait_for(lambda: self.driver.current_url, lambda url: "/runs/" in url, "page of the run")
        return self._log()

    def _materialized(self) -> str:
        """Click *Materialize* until a run is launched; return its id.

        A click does nothing while another code location is still being loaded, or while an earlier configuration is
        still being validated. The server is asked whether there is a new run: the message of the page disappears after
        some seconds, and a second click would launch a second run.
        """
        before = self._newest_run()
        for _ in range(CLICKS):
            self.click("Materialize")
            deadline = time.monotonic() + PATIENCE_SECONDS / CLICKS
            while time.monotonic() < deadline:
                if (run := self._newest_run()) != before:
                    # Leaving the page before the run is submitted would cancel that.
                    self.wait_for(lambda: self._status(run), lambda status: status != "NOT_STARTED", "the submission")
                    return run
                time.sleep(0.2)
        pytest.fail(f"{CLICKS} clicks launched no run; the page shows:\n{self.text}")

    def _click_first(self, xpath: str, what: str) -> None:
        def clicked() -> bool:
            found = self.driver.find_elements(By.XPATH, xpath)
            if found:
                # The click is made by script: a message that slides over the page would receive a real click.
                self.driver.execute_script("arguments[0].click()", found[0])
            return bool(found)

        self.wait_for(clicked, bool, what)

    def _log(self) -> str:
        address = self.driver.current_url
        run = _RUN_PAGE.search(address)
        assert run is not None, address
        # The page follows the log of a run over a socket, which may lag; a page that is opened after the end of the run
        # reads the log from disk. Until then the browser rests, because a page that is drawn takes most of a core.
        self.driver.get("about:blank")
        self.wait_for(lambda: self._status(run[1]), lambda status: status in _FINAL, "the end of the run")
        self.driver.get(address)
        return self.wait_for(lambda: self.text, lambda text: any(one in text for one in _ENDED), "the end of the log")

    def _status(self, run: str) -> str:
        """The status of a run, which the server tells without the browser."""
        return str(self._asked(_STATUS, id=run)["runOrError"]["status"])

    def _newest_run(self) -> str:
        """The id of the newest run; empty where there is none."""
        runs = self._asked(_NEWEST)["runsOrError"]["results"]
        return runs[0]["runId"] if runs else ""

    def _asked(self, query: str, **variables: str) -> Any:  # noqa: ANN401 - what the server answers
        address = self.url.removeprefix("http://")
        with closing(HTTPConnection(address, timeout=PATIENCE_SECONDS)) as connection:
            body = json.dumps({"query": query, "variables": variables})
            connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
            return json.load(connection.getresponse())["data"]

    def _reads(self, element: WebElement, label: str) -> bool:
        try:
            return element.is_displayed() and element.text.strip() == label
        except WebDriverException:  # the page drew it anew meanwhile
            return False

    def wait_for(self, found: Callable[[], T], enough: Callable[[T], object], what: str) -> T:
        """Repeat a look at the page until it returns a true value."""
        deadline, last = time.monotonic() + PATIENCE_SECONDS, None
        while time.monotonic() < deadline:
            try:
                last = found()
                if enough(last):
                    return last
            except WebDriverException:  # the page is being drawn
                pass
            time.sleep(0.2)
        pytest.fail(f"no {what} on {self.driver.current_url} in {PATIENCE_SECONDS} s; it shows:\n{self.text}")


@contextmanager
def browser_on(url: str) -> Iterator[Browser]:
    """A headless browser, closed at the end; the test is skipped when no browser is installed."""
    program = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        reason = "the browser test needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
        (pytest.fail if os.environ.get(_REQUIRED) else pytest.skip)(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # The browser has no sandbox, because containers run tests as root, and uses no shared memory: they have little.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={WINDOW[0]},{WINDOW[1]}")
    # The path of the driver is given, because selenium would otherwise look for a driver on the network.
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(opened, url)
    finally:
        opened.quit()
