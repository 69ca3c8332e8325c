"""Files that never change are answered out of memory; everything else goes on."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import streamlit
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from echoscope.dashboard.web.kept_files import OF_ALL_PAGES, OF_PAGE, KeptFiles


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


def test_a_page_names_the_scripts_that_its_first_elements_need(tmp_path: Path) -> None:
    folder = tmp_path / "static" / "js"
    folder.mkdir(parents=True)
    (tmp_path / "index.html").write_text('<script src="./static/js/react.1.js">', encoding="utf-8")
    (folder / "Html.2.js").write_text('import{a}from"./clean.3.js";import"./react.1.js"')
    for name in ("clean.3.js", "react.1.js", "Chart.4.js"):
        (folder / name).write_text("")

    def page(request: Request) -> Response:
        kind = "application/json" if request.url.path == "/data" else "text/html"
        return Response("{}", media_type=kind)

    hints = {"/live": ["</own.js>; rel=modulepreload"]}
    middleware = [Middleware(KeptFiles, folder=tmp_path, prefix="static", hints=hints)]
    client = TestClient(Starlette(routes=[Route("/{name}", page)], middleware=middleware))
    first = "</static/js/Html.2.js>; rel=modulepreload, </static/js/clean.3.js>; rel=modulepreload"
    assert client.get("/sql").headers["link"] == first
    assert client.get("/live").headers["link"] == f"{first}, </own.js>; rel=modulepreload"
    assert "link" not in client.get("/data").headers


def test_the_installed_streamlit_has_a_script_for_each_kind_that_is_named() -> None:
    scripts = Path(streamlit.__file__).parent / "static" / "static" / "js"
    for kind in chain(OF_ALL_PAGES, *OF_PAGE.values()):
        assert list(scripts.glob(f"{kind}.*.js")), kind
