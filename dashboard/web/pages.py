"""Addresses of pages: 404 for a page that does not exist, and one name for the front page."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..escaping import escape
from ..page.links import FRONT_PAGE, PAGES

_MISSING = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Echoscope: no such page</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<style>body {{ font: 16px/1.6 system-ui, sans-serif; margin: 3rem auto; max-width: 40rem;
padding: 0 1rem; }}</style></head>
<body><h1>There is no page {path}</h1><p>The pages are: {links}</p></body></html>
"""


class NoSuchPage:
    """ASGI middleware: Streamlit answers every unknown address with its front page and 200."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").strip("/")
        if scope["type"] != "http" or path in ("", "index.html", *PAGES):
            await self._app(scope, receive, send)
            return
        is_missing = False

        async def sending(message: Message) -> None:
            nonlocal is_missing
            if message["type"] == "http.response.start":
                kind = Headers(raw=message["headers"]).get("content-type", "")
                is_missing = message["status"] == 200 and kind.startswith("text/html")
            if not is_missing:
                await send(message)

        await self._app(scope, receive, sending)
        if is_missing:
            await missing_page(scope["path"])(scope, receive, send)


def missing_page(path: str) -> HTMLResponse:
    """404 in words, with links to the pages that exist."""
    links = " ".join(f'<a href="/{name}">{title}</a>' for name, (title, _) in PAGES.items())
    return HTMLResponse(_MISSING.format(path=escape(path, 200), links=links), status_code=404)


def routes() -> list[Route]:
    return [Route(f"/{FRONT_PAGE}", _front, methods=["GET"])]


async def _front(request: Request) -> RedirectResponse:
    """Streamlit knows the front page by no other name than /."""
    query = request.url.query
    return RedirectResponse(f"/?{query}" if query else "/", status_code=307)
