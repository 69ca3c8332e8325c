"""The server behind `echoscope envs serve`: sessions of worlds, behind one gate, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from echoscope.text.network import is_loopback

from ... import registry
from ...base import EnvParamsError, EnvUnavailableError, shorten
from .openenv import SCHEMAS, OpenEnv
from .protocol import MAX_BODY_BYTES, TOKEN_VARIABLE, VERSION, ProtocolError, decoded, encoded
from .sessions import VERBS, Limits, RefusedError, Served, Sessions

_LOG = logging.getLogger(__name__)
DEFAULT_PORT = 8700
MIN_TOKEN = 8
BODY_S = 30.0
"""Seconds in which a request must have arrived."""
_KEEP_ALIVE_S = 75
_BACKLOG = 512
_OPEN_PATHS = ("/health",)
"""Addresses that need no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Who may ask: `token` is empty where everybody of this machine may."""

    address: str
    token: str

    def refusal(self, scope: Scope) -> RefusedError | None:
        """Why a request is not let in; None if it is."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        # A web page may point a name of its own at this machine, but not take one of these.
        if is_loopback(self.address) and not is_loopback(name.strip("[]")):
            return RefusedError(403, "host", f"this server answers to localhost, not to {name!r}")
        if headers.get("origin") is not None:
            return RefusedError(403, "origin", "web pages may not use this server")
        if self.token and scope["path"] not in _OPEN_PATHS and not self.is_known(headers):
            return RefusedError(
                401, "token", f"send the header `Authorization: Bearer` with ${TOKEN_VARIABLE}"
            )
        return None

    def is_known(self, headers: Headers) -> bool:
        """Whether the request has the token, or none is needed."""
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        return not self.token or hmac.compare_digest(given.encode(), self.token.encode())


class _Guarded:
    """The application behind its gate; whatever fails becomes an error in JSON."""

    def __init__(self, app: ASGIApp, gate: Gate, sessions: Sessions) -> None:
        self._app, self._gate, self._sessions = app, gate, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._gate.refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        self._sessions.count_refused()
        if scope["type"] == "websocket":
            await receive()
            closing: Message = {"type": "websocket.close", "code": 1008}
            await send(closing)
            return
        await _refused(refusal)(scope, receive, send)


def make_app(
    served: Sequence[Served], limits: Limits, gate: Gate, *, body_s: float = BODY_S
) -> ASGIApp:
    """The ASGI application.

    Args:
        body_s: seconds in which a request must have arrived.
    """
    sessions = Sessions(served, limits)
    openenv = OpenEnv(sessions)

    def get(path: str, told: Callable[[Request], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            return _answered(told(request))

        return Route(path, endpoint, methods=["GET"])

    def post(path: str, carry_out: Callable[[Request, Any], Awaitable[Any]]) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return _answered(await carry_out(request, await _content(request, body_s)))
            except asyncio.CancelledError:  # uvicorn has waited long enough for this answer
                return _refused(RefusedError(503, "stopping", "the server is being stopped"))

        return Route(path, endpoint, methods=["POST"])

    def health(request: Request) -> dict[str, Any]:
        told: dict[str, Any] = {"status": "healthy", "protocol": VERSION}
        if gate.is_known(request.headers):
            told["environments"] = [each.id for each in served]
            told["metrics"] = sessions.metrics()
        return told

    async def close(request: Request) -> Response:
        await sessions.close(request.path_params["session"])
        return _answered({})

    def verb(name: str) -> Route:
        async def carry_out(request: Request, content: Any) -> Any:
            return await sessions.call(request.path_params["session"], name, content)

        return post("/v1/sessions/{session}/" + name, carry_out)

    async def refuse(request: Request, error: Exception) -> Response:
        sessions.count_refused()
        if isinstance(error, RefusedError):
            return _refused(error)
        if isinstance(error, ClientDisconnect):
            path = shorten(request.url.path)
            _LOG.warning("a client left before its request to %s had arrived", path)
            return _refused(RefusedError(400, "bad_request", "the request did not arrive"))
        return _refused(RefusedError(400, "bad_request", str(error)))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        expiring = asyncio.create_task(_expire(sessions, limits.idle_s))
        try:
            yield
        finally:
            expiring.cancel()
            await sessions.close_all()

    environments = {"protocol": VERSION, "environments": sessions.environments()}
    routes = [
        get("/health", health),
        get("/v1/environments", lambda _: environments),
        post("/v1/sessions", lambda _, content: sessions.open(content)),
        Route("/v1/sessions/{session}", close, methods=["DELETE"]),
        *map(verb, VERBS),
        post("/v1/batch", lambda _, content: sessions.batch(content)),
        post("/reset", lambda _, content: openenv.reset(content)),
        post("/step", lambda _, content: openenv.step(content)),
        get("/state", lambda request: openenv.state(dict(request.query_params))),
        get("/schema", lambda _: SCHEMAS),
        get("/metadata", lambda _: openenv.metadata()),
        WebSocketRoute("/ws", openenv.talk),
    ]
    handlers: Any = {
        **dict.fromkeys((RefusedError, ProtocolError, ClientDisconnect), refuse),
        HTTPException: _no_such_address,
        Exception: _fault,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return _Guarded(app, gate, sessions)


def serve(
    served: Sequence[Served],
    limits: Limits,
    *,
    address: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until interrupted.

    Args:
        port: 0 for one that is free.
        on_ready: called with the url once requests are answered.

    Raises:
        EnvError: a world that cannot be built as it would be served; an address that others reach,
            and no token.
        OSError: the port cannot be opened.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    _check_token(address, token)
    _check_served(served)
    app = make_app(served, limits, Gate(address=address, token=token))
    with open_port(address, port) as listening:
        url = f"http://{_reachable(address)}:{listening.getsockname()[1]}"

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                on_ready(url)

        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="websockets-sansio",
            ws_max_size=MAX_BODY_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=2,
        )
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(Server(config).serve(sockets=[listening]))


def _reachable(address: str) -> str:
    """A host that clients can write for the address that a server listens on."""
    if address in ("0.0.0.0", "::"):  # all addresses of this machine, which is none to connect to
        return socket.gethostname()
    return f"[{address}]" if ":" in address else address


def _check_token(address: str, token: str) -> None:
    if token and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable()):
        raise EnvParamsError(
            f"the token in {TOKEN_VARIABLE} has {len(token)} characters, but must be printable "
            f"ASCII, {MIN_TOKEN} characters or more"
        )
    if not token and not is_loopback(address):
        raise EnvUnavailableError(
            f"refusing to listen on {address}, where others could use the worlds of this machine: "
            f"set a token in {TOKEN_VARIABLE}, on both sides"
        )


def _check_served(served: Sequence[Served]) -> None:
    """Every world can be built, and none is of another server."""
    ids = [each.id for each in served]
    if not ids or len({*ids}) < len(ids):
        raise EnvParamsError(f"the environments are {ids}, but must be different ids, at least one")
    for each in served:
        try:
            json.dumps(dict(each.params), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise EnvParamsError(f"the parameters of {each.id} are no JSON: {error}") from None
        registry.make(each.id, **each.params).close()


def open_port(address: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: the port is taken, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Named, or asyncio does not know it for TCP and leaves Nagle's delay on: 40 ms an answer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(
            f"cannot listen on {address} port {port}: {error.strerror or error}"
        ) from None
    listening.setblocking(False)
    return listening


async def _content(request: Request, body_s: float) -> dict[str, Any]:
    """The object of a request.

    Raises:
        ProtocolError, RefusedError: it is too long, comes too slowly, or is none.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(
            415, "content_type", f"Content-Type is {kind!r}, but must be application/json"
        )
    too_large = RefusedError(
        413, "too_large", f"a request has at most {MAX_BODY_BYTES >> 20} MiB: shorten the action"
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > MAX_BODY_BYTES:
        raise too_large
    held = bytearray()
    try:
        async with asyncio.timeout(body_s):
            async for chunk in request.stream():
                held += chunk
                if len(held) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, "slow", f"the request did not arrive within {body_s:g} s") from None
    return decoded(bytes(held)) if held.strip() else {}


async def _expire(sessions: Sessions, idle_s: float) -> None:
    while True:
        await asyncio.sleep(min(30.0, idle_s / 4))
        await sessions.expire()


def _answered(content: Any) -> Response:
    return Response(encoded(content), media_type="application/json")


def _refused(error: RefusedError) -> Response:
    return Response(
        encoded(error.content()), status_code=error.status, media_type="application/json"
    )


async def _no_such_address(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    if status == 404:
        told = f"there is no address {shorten(request.url.path)}: see docs/remote.md"
        return _refused(RefusedError(404, "not_found", told))
    told = f"{request.method} is not for {shorten(request.url.path)}: see docs/remote.md"
    return _refused(RefusedError(status, "method", told))


async def _fault(request: Request, error: Exception) -> Response:
    return _refused(RefusedError(500, "internal", "the server failed; its own output says where"))
