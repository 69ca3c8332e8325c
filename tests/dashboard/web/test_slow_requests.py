"""A request that does not become whole is given up; a slow answer is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from echoscope.dashboard.web import slow_requests
from echoscope.dashboard.web.server import open_port

PATIENCE_S = 60.0
WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def page(request: Request) -> PlainTextResponse:
    await request.body()
    await asyncio.sleep(1.0)  # ten looks
    return PlainTextResponse("whole")


def answer_to(talk: Talk) -> bytes:
    """What a client hears until the server closes the connection."""

    async def run() -> bytes:
        config = uvicorn.Config(
            Starlette(routes=[Route("/", page, methods=["GET", "POST"])]),
            http=slow_requests.PatientProtocol,
            log_level="critical",
        )
        server = uvicorn.Server(config)
        with open_port("127.0.0.1", 0, is_exact=True) as opened:
            serving = asyncio.create_task(server.serve(sockets=[opened]))
            reader, writer = await asyncio.open_connection(*opened.getsockname())
            heard = await asyncio.wait_for(talk(reader, writer), PATIENCE_S)
            writer.close()
            server.should_exit = True
            await serving
            return heard

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_requests, "REQUEST_S", 0.1)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-A: b\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nfive ",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfive ",
    ],
)
def test_half_a_request_is_given_up(sent: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(sent)
        return await reader.read()

    assert b"whole" not in answer_to(talk)


def test_half_a_request_after_a_whole_one_is_given_up() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(WHOLE)
        first = await reader.readuntil(b"whole")
        writer.write(b"GET / HTTP/1.1\r\nHo")
        return first + await reader.read()

    assert answer_to(talk).count(b"whole") == 1


def test_bytes_that_trickle_in_do_not_keep_a_request_alive() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        while not reader.at_eof():
            writer.write(b"x")
            await asyncio.sleep(0.02)
            if reader.at_eof() or reader.exception():
                break
        return b""

    assert answer_to(talk) == b""


def test_a_slow_answer_is_waited_for() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(WHOLE)
        return await reader.readuntil(b"whole")

    assert answer_to(talk).endswith(b"whole")
