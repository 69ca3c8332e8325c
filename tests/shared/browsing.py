"""A dashboard process, a real Chromium, and pages that are watched for what they must not do."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from started import started

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Locator, Page, Request

PATIENCE_S = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SEARCH_FOR_SERVER = re.compile(r"//[^/]+/[a-z]+/_stcore/(health|host-config)$")
"""Streamlit's page asks for its server under its own address first, and is told 404 there."""
TELEPHONE = (
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/126.0.0.0 Mobile Safari/537.36"
)
"""How the browser of a telephone calls itself."""
T = TypeVar("T")


def find_chromium() -> str | None:
    """A browser on this machine; `ECHOSCOPE_CHROMIUM` names one elsewhere."""
    named = os.environ.get("ECHOSCOPE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def until(
    ask: Callable[[], T], what: str, *, page: Page | None = None, patience_s: float = PATIENCE_S
) -> T:
    """The first answer that is true; meanwhile the page, if there is one, goes on."""
    deadline = time.monotonic() + patience_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"no {what} in {patience_s:.0f} s"
        if page is None:
            time.sleep(0.05)
        else:
            page.wait_for_timeout(50)


class DashboardProcess:
    """`echoscope dashboard ROOT` on a free port of loopback, open to all unless `has_token`."""

    def __init__(
        self, root: Path, output: Path, *options: str, has_token: bool = False, **environ: str
    ) -> None:
        command = "from echoscope.cli import main; main()"
        if not has_token:
            options = ("--no-token", *options)
        arguments = [sys.executable, "-c", command, "dashboard", str(root), "--port", "0", *options]
        self.root = root
        self._output = output
        self._file = output.open("wb")
        self._process = started(
            subprocess.Popen(
                arguments,
                stdout=self._file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )
        )
        self.link = until(self._printed, "address of the dashboard")
        """As it was printed."""
        self.url = self.link.partition("/?")[0]

    def _printed(self) -> str:
        text = self._output.read_text(encoding="utf-8", errors="replace")
        assert self._process.poll() is None, text
        match = re.search(r"http://\S+", text)
        return match[0].rstrip("/") if match else ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._file.close()


@dataclass
class Watch:
    """What a page did: errors on its console, and requests."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def on(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._request)
        page.on("websocket", lambda socket: self.requests.append(socket.url))

    def _console(self, message: ConsoleMessage) -> None:
        url = str(message.location.get("url", ""))
        if message.type == "error" and not SEARCH_FOR_SERVER.search(url):
            self.errors.append(f"{message.text} ({url})")

    def _request(self, request: Request) -> None:
        self.requests.append(request.url)

    @property
    def foreign(self) -> list[str]:
        """Requests that left loopback."""
        kept = ("data", "blob", "about", "file")
        parts = [(url, urlsplit(url)) for url in self.requests]
        return [u for u, p in parts if p.scheme not in kept and p.hostname != "127.0.0.1"]


def text_of(page: Page) -> str:
    """Everything that the page says, but for the menu."""
    return page.locator("[data-testid=stMain]").inner_text()


def table_rows(page: Page, index: int = 0) -> list[list[str]]:
    """One of the page's tables, head first. It is painted: this is what a screen reader is told."""
    rows: list[list[str]] = page.evaluate(
        """place => {
          const found = document.querySelectorAll("[data-testid=stDataFrame]")[place];
          const rows = found ? [...found.querySelectorAll("canvas table tr")] : [];
          return rows.map((row) => [...row.children].map((cell) => cell.textContent));
        }""",
        index,
    )
    return rows


def draw_chart(page: Page, selector: str) -> str:
    """Bring a chart into sight, which draws it; the selector of its plot. `place`: of its frame."""
    frame, plot = page.locator(selector).first, f"{selector} .js-plotly-plot"

    def is_drawn() -> bool:
        frame.scroll_into_view_if_needed()  # again: what grows above pushes it out of sight
        return page.locator(f"{plot} .main-svg").count() > 0

    until(is_drawn, f"chart {selector}", page=page)
    return plot


def hover(page: Page, plot: str, sign: Locator) -> str:
    """Put the mouse on a sign of a chart; what the box says that opens."""
    layer = page.locator(f"{plot} .hoverlayer")

    def hover_text() -> str:
        box = sign.bounding_box()
        if box is not None:
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        return layer.text_content() or ""

    return until(hover_text, "words beside the mouse", page=page)


def choose(page: Page, label: str, option: str) -> None:
    """Choose the first option of a list whose words contain `option`; the list has a `label`."""
    field = page.get_by_role("combobox", name=label)
    options = page.get_by_role("option", name=option)

    def is_listed() -> bool:
        field.click()
        field.fill(option)  # again: what was typed amid a redraw is lost
        page.wait_for_timeout(500)
        return options.count() > 0

    until(is_listed, f"option {option}", page=page)
    options.first.click()
    page.keyboard.press("Escape")  # the rest of the page is hidden from readers until then


def visit(page: Page, url: str) -> None:
    """Open a page and wait until it has been drawn."""
    page.goto(url)
    settle(page)


def settle(page: Page) -> None:
    """Until the title is there and no script runs any more."""
    page.wait_for_selector("h1", timeout=1000 * PATIENCE_S)
    page.wait_for_selector(
        "[data-testid=stStatusWidget]", state="detached", timeout=1000 * PATIENCE_S
    )
    page.wait_for_load_state("networkidle")
