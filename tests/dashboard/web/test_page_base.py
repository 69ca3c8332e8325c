"""The page is told where its server is; everything else passes as it is."""

from __future__ import annotations

import asyncio
from typing import Any

from echoscope.dashboard.web.assets import PLOTLY, head_tags
from echoscope.dashboard.web.page_base import SCRIPT, PageBase


def answer(
    content_type: str, *parts: bytes, path: str = "/", **headers: str
) -> tuple[dict[str, str], bytes]:
    """What a browser gets for an answer in several parts."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pairs = {"content-type": content_type, "content-length": "7", **headers}
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(k.encode(), v.encode()) for k, v in pairs.items()],
            }
        )
        for place, part in enumerate(parts, start=1):
            more = place < len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": more})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {}

    asyncio.run(PageBase(app)({"type": "http", "path": path}, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return found, b"".join(message["body"] for message in sent[1:])


def test_a_page_gets_the_script_at_its_head_and_the_right_length() -> None:
    headers, body = answer("text/html; charset=utf-8", b"<html><he", b"ad><title>", b"</title>")
    assert body == f"<html><head><script>{SCRIPT}</script><title></title>".encode()
    assert headers["content-length"] == str(len(body))


def test_a_page_with_charts_fetches_what_draws_them() -> None:
    _, body = answer("text/html", b"<head></head>", path="/live")
    assert body.endswith(head_tags("/live").encode() + b"</head>")
    assert PLOTLY.path in body.decode()


def test_other_answers_pass_as_they_are() -> None:
    headers, body = answer("text/plain", b"<head>", b"!")
    assert body == b"<head>!"
    assert headers["content-length"] == "7"
    assert answer("text/html", b"<head>", **{"content-encoding": "gzip"})[1] == b"<head>"


def test_a_page_without_a_head_stays_as_it_is() -> None:
    assert answer("text/html", b"<p>")[1] == b"<p>"
