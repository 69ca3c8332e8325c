"""Who may open the dashboard: link, token and password in a real browser; and wrong addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import DashboardProcess, Watch, until, visit

Serve = Callable[..., DashboardProcess]
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def guarded(
    recorded_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DashboardProcess]:
    """A dashboard whose printed link has a token, as it is without options."""
    output = tmp_path_factory.mktemp("guarded") / "log"
    process = DashboardProcess(recorded_root, output, has_token=True)
    yield process
    process.close()


def sessions(page: Any) -> list[Any]:
    """The cookies that let a browser in."""
    return [cookie for cookie in page.context.cookies() if cookie["name"].startswith("echoscope")]


def test_the_printed_link_opens_the_page_and_its_address_has_no_token(
    guarded: DashboardProcess, page: Any, watch: Watch
) -> None:
    assert "token=" in guarded.link
    visit(page, guarded.link)
    assert "token" not in page.url
    page.goto(f"{guarded.url}/live?run=tiny")
    assert page.wait_for_selector("h1").inner_text() == "Live"
    sent = [url for url in watch.requests if "token=" in url]
    assert sent == [guarded.link]


def test_without_the_link_there_is_a_form_for_the_token(
    guarded: DashboardProcess, page: Any, watch: Watch
) -> None:
    assert page.goto(f"{guarded.url}/live?run=tiny").status == 401
    until(lambda: watch.errors, "Chromium's word on the 401", page=page)
    watch.errors.clear()
    page.get_by_label("Token").fill(guarded.link.partition("token=")[2])
    page.get_by_role("button", name="Open").click()
    assert page.wait_for_selector("h1").inner_text() == "Live"
    assert page.url.endswith("/live?run=tiny")


def test_another_account_of_this_machine_can_neither_read_nor_steer(
    guarded: DashboardProcess, page: Any
) -> None:
    """It has the address and no token; the browser that opened the link has a cookie instead."""
    runs, pages = f"{guarded.url}/api/runs", f"{guarded.url}/_stcore/stream"
    assert page.request.get(runs).status == 401
    assert page.request.post(pages).status == 401  # what a press of a button goes through
    visit(page, guarded.link)
    assert page.request.get(runs).status == 200
    (cookie,) = sessions(page)
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_no_token_opens_the_page_to_everybody_on_this_machine(
    dashboard: DashboardProcess, page: Any
) -> None:
    assert "token" not in dashboard.link
    visit(page, f"{dashboard.url}/live?run=tiny")
    assert page.locator("h1").first.inner_text() == "Live"
    assert page.request.get(f"{dashboard.url}/api/runs").status == 200
    assert sessions(page) == []


def test_the_password_page_admits_nobody_after_five_wrong_guesses(
    recorded_root: Path, serve: Serve, page: Any, watch: Watch
) -> None:
    url = serve(recorded_root, ECHOSCOPE_PASSWORD=PASSWORD).url
    page.goto(f"{url}/live?run=tiny")
    for guess in (*("battery staple" for _ in range(5)), PASSWORD):
        page.get_by_label("Password").fill(guess)
        page.get_by_role("button", name="Open").click()
        alert = page.get_by_role("alert").inner_text()
        if guess != PASSWORD:
            assert alert == "That is not the password."
    assert re.fullmatch(r"Too many attempts\. Try again in \d+ seconds\.", alert)
    assert sessions(page) == []
    until(lambda: len(watch.errors) >= 7, "Chromium's words on 401 and 429", page=page)
    watch.errors.clear()


def test_the_password_opens_the_page_that_was_asked_for(
    recorded_root: Path, serve: Serve, page: Any, watch: Watch
) -> None:
    url = serve(recorded_root, ECHOSCOPE_PASSWORD=PASSWORD).url
    page.goto(f"{url}/live?run=tiny")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Open").click()
    assert page.wait_for_selector("h1").inner_text() == "Live"
    assert page.url == f"{url}/live?run=tiny"
    watch.errors.clear()


def test_an_unknown_path_of_the_api_is_404_in_json(dashboard: DashboardProcess, page: Any) -> None:
    answer = page.request.get(f"{dashboard.url}/api/nowhere")
    assert answer.status == 404
    assert answer.json()["error"]["text"] == "there is no address '/api/nowhere' for GET"
