"""A Chromium that says when something was drawn, in seconds from the start of a navigation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from browsing import DashboardProcess, find_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PATIENCE_MS = 120_000
SIZE = {"width": 1440, "height": 900}
TITLE = "h1"
CHART = ".js-plotly-plot .scatterlayer .trace path.js-line"
LIST = "[data-testid=stDataFrame] canvas"
TRAJECTORY = "h3"
RANKING = "[class*=st-key-success_] .js-plotly-plot .points path"
VERDICT = ".es-headline, .es-state"
WANTED = {
    "title": TITLE,
    "verdict": VERDICT,
    "chart": CHART,
    "list": LIST,
    "trajectory": TRAJECTORY,
    "ranking": RANKING,
}

_LOOK = """
(() => {
  const wanted = %s, seen = window.__seen = {};
  const look = () => {
    for (const [name, selector] of Object.entries(wanted))
      if (!(name in seen) && document.querySelector(selector)) seen[name] = performance.now();
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})();
"""
_AWAIT = """
([event, wanted]) => {
  const met = () => wanted.every(([selector, text, least]) =>
    [...document.querySelectorAll(selector)].filter(
      found => found.textContent.includes(text)).length >= least);
  window.__took = null;
  const begin = () => {
    const from = performance.now();
    const look = () => {
      if (met()) window.__took = performance.now() - from;
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  };
  if (event) document.addEventListener(event, begin, {once: true, capture: true});
  else begin();
}
"""
Condition = Sequence[tuple[str, str, int]]
"""(selector, text, how many): so many elements with that text, of each."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser; needs Playwright and a Chromium on this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Playwright listens for exceptions, for which V8 reads all of plotly three times more where
        # it did not keep positions at first. Nobody listens to the browser of a person.
        flags = ["--no-sandbox", "--js-flags=--no-enable-lazy-source-positions"]
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=flags)
        yield browser
        browser.close()


@contextmanager
def visitor(browser: Browser) -> Iterator[BrowserContext]:
    """Somebody with an empty cache."""
    context = browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_LOOK % json.dumps(WANTED))
    yield context
    context.close()


def address(server: DashboardProcess, page: str, **params: object) -> str:
    return f"{server.url}/{page}?{urlencode(params)}"


def drawn(page: Page, url: str, name: str) -> float:
    """Seconds from the start of the navigation until one of `WANTED` was on the page."""
    page.goto(url, wait_until="commit")
    page.wait_for_function("name => window.__seen && name in window.__seen", arg=name)
    return seen(page, name)


def seen(page: Page, name: str) -> float:
    """When one of `WANTED` was on the page that is open, in seconds."""
    seconds: float = page.evaluate("name => window.__seen[name] / 1000", name)
    return seconds


def whole(page: Page, unfinished: str) -> float:
    """Seconds from the start of the navigation until the page no longer says `unfinished`."""
    page.wait_for_function("words => !document.body.innerText.includes(words)", arg=unfinished)
    now: float = page.evaluate("() => performance.now() / 1000")
    return now


def settle(page: Page) -> None:
    """Until the server has nothing more to say."""
    page.wait_for_selector("[data-test-script-state=notRunning]")


def resources(page: Page) -> Mapping[str, float]:
    """What the page fetched: files, and bytes over the wire."""
    return dict(
        page.evaluate(
            "() => { const all = performance.getEntriesByType('resource'); return {"
            "files: all.length, bytes: all.reduce((sum, one) => sum + one.transferSize, 0)} }"
        )
    )


def shows(head: str, text: str) -> Condition:
    """A trajectory's head and a text of it."""
    return [("h3", head, 1), ("[data-testid=stHtml]", text, 1)]


class Action:
    """What something took that a person did: from `event`, or from now, until a condition holds."""

    def __init__(self, page: Page, condition: Condition, *, event: str = "") -> None:
        self._page = page
        page.evaluate(_AWAIT, [event, condition])

    def seconds(self) -> float:
        self._page.wait_for_function("() => window.__took !== null")
        took: float = self._page.evaluate("() => window.__took / 1000")
        return took


def count_steps(page: Page) -> None:
    """Note on the page when each step number first stood in the badge of the run's status."""
    page.evaluate(
        """() => {
          const seen = window.__steps = {};
          const look = () => {
            const badge = document.querySelector(".es-line-badge");
            const found = badge && /step (\\d+) of/.exec(badge.textContent);
            if (found && !(found[1] in seen)) seen[found[1]] = Date.now() / 1000;
            requestAnimationFrame(look);
          };
          look();
        }"""
    )


def steps_seen(page: Page) -> dict[int, float]:
    """Step -> seconds since the epoch."""
    times: dict[str, Any] = page.evaluate("() => window.__steps")
    return {int(step): float(time_s) for step, time_s in times.items()}
