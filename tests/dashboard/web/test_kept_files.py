"""Files that never change are answered out of memory; everything else goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from echoscope.dashboard.web.kept_files import KeptFiles


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    (tmp_path / "static" / "js").mkdir(parents=True)
    (tmp_path / "static" / "js" / "a.1234.js").write_bytes(b"let a = 1;")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    route = Route("/{path:path}", lambda _: PlainTextResponse("next"), methods=["GET", "POST"])
    middleware = [Middleware(KeptFiles, folder=tmp_path, prefix="static")]
    return TestClient(Starlette(routes=[route], middleware=middleware))


def test_a_file_is_answered_whole_and_kept_by_the_browser_for_ever(client: TestClient) -> None:
    answer = client.get("/static/js/a.1234.js")
    assert answer.content == b"let a = 1;"
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    "path", ["/static/js/b.js", "/secret.txt", "/static/../secret.txt", "/static/js", "/static/"]
)
def test_what_is_no_such_file_goes_on(client: TestClient, path: str) -> None:
    assert client.get(path).text == "next"


def test_only_a_plain_get_is_answered(client: TestClient) -> None:
    assert client.post("/static/js/a.1234.js").text == "next"
    assert client.get("/static/js/a.1234.js", headers={"range": "bytes=0-3"}).text == "next"
