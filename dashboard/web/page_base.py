"""Tells Streamlit's page where its server is, and what to fetch for charts; 404 for other pages.

Left alone, Streamlit answers any address with its front page and 200, and the page asks for
`_stcore/health` under its own path first: a page that is opened by its address (`/live?run=...`)
would meet two answers 404 before it finds the root.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..escaping import escape
from ..page.ui import FRONT_PAGE, PAGES
from . import assets

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SCRIPT = 'window.__streamlit={BACKEND_BASE_URL:location.origin+"/"}'
"""Fixed text, so that a content security policy can name its hash."""
_MARK, _END = b"<head>", b"</head>"
_MISSING = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Echoscope: no such page</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>body {{ font: 16px/1.6 system-ui, sans-serif; margin: 3rem auto; max-width: 40rem;
padding: 0 1rem; }}</style></head>
<body><h1>There is no page {path}</h1><p>The pages are: {links}</p></body></html>
"""


class PageBase:
    """ASGI middleware: puts SCRIPT, and the scripts of charts, at the head of every HTML page."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope.get("path", "")
        if path.strip("/") == FRONT_PAGE:  # which Streamlit knows by no other name than /
            await _send_front(send, scope.get("query_string", b""))
            return
        start: Message | None = None
        body = b""

        async def pass_on(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                if not _is_html(message):
                    await send(message)
                else:
                    start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if message.get("more_body", False):
                    return
                if _is_page(path):
                    await _send_page(send, start, body, assets.head_tags(path))
                else:
                    await _send_missing(send, path)

        await self._app(_uncompressed(scope), receive, pass_on)


def _uncompressed(scope: Scope) -> Scope:
    """A page is a few kB: it is asked for as it is, so that it can be changed."""
    headers = scope.get("headers", [])
    if not any(name == b"accept" and b"text/html" in value for name, value in headers):
        return scope
    return {**scope, "headers": [h for h in headers if h[0] != b"accept-encoding"]}


def _is_html(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start["headers"]}
    is_plain = b"content-encoding" not in headers
    return is_plain and headers.get(b"content-type", b"").startswith(b"text/html")


def _is_page(path: str) -> bool:
    return path.strip("/") in ("", "index.html", *PAGES)


async def _send_missing(send: Send, path: str) -> None:
    """404 in words, with links to the pages that there are."""
    links = " ".join(f'<a href="/{name}">{title}</a>' for name, (title, _) in PAGES.items())
    page = _MISSING.format(path=escape(path, 200), links=links).encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(page)).encode()),
    ]
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": page})


async def _send_front(send: Send, query: bytes) -> None:
    headers = [(b"location", b"/" + (b"?" + query if query else b"")), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _send_page(send: Send, start: Message, body: bytes, tags: str) -> None:
    script = f"<script>{SCRIPT}</script>".encode()
    page = body.replace(_MARK, _MARK + script, 1).replace(_END, tags.encode() + _END, 1)
    dropped = (b"content-length", b"etag", b"last-modified")
    headers = [(name, value) for name, value in start["headers"] if name.lower() not in dropped]
    headers.append((b"content-length", str(len(page)).encode()))
    await send({**start, "headers": headers})
    await send({"type": "http.response.body", "body": page})
