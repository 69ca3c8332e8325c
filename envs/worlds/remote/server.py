"""The server behind `echoscope envs serve`: worlds behind one gate, over HTTP and web sockets.

Its addresses are OpenEnv's (`/reset`, `/step`, `/state`, `/schema`, `/metadata`, `/health`, `/ws`;
meta-pytorch/OpenEnv, `core/env_server/types.py`), and those that our own client needs besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from echoscope.text.network import host_in_url, is_loopback, listening
from echoscope.text.strict_json import parsed_json

from ... import registry
from ...base import EnvParamsError, EnvUnavailableError, shorten
from .protocol import (
    MAX_BODY_BYTES,
    TOKEN_VARIABLE,
    VERSION,
    PolicyAction,
    ProtocolError,
    Seen,
    State,
    encoded,
    quoted,
)
from .sessions import VERBS, Content, RefusedError, Served, SessionLimits, Sessions

DEFAULT_PORT = 8700
MIN_TOKEN = 8
BODY_S = 30.0
"""Seconds in which a request must have arrived."""
_SCHEMAS = {
    "action": PolicyAction.model_json_schema(),
    "observation": Seen.model_json_schema(),
    "state": State.model_json_schema(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGate:
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
        if scope["path"] != "/health" and not self.knows(headers):
            return RefusedError(
                401, "token", f"send the header `Authorization: Bearer` with ${TOKEN_VARIABLE}"
            )
        return None

    def knows(self, headers: Headers) -> bool:
        """Whether the request has the token, or none is needed."""
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        return not self.token or hmac.compare_digest(given.encode(), self.token.encode())


def make_app(served: Sequence[Served], limits: SessionLimits, gate: TokenGate) -> ASGIApp:
    """The ASGI application."""
    sessions = Sessions(served, limits)

    async def answered(verb: str, content: Content) -> Response:
        try:
            return _response(await sessions.call(verb, content))
        except asyncio.CancelledError:  # uvicorn has waited long enough for this answer
            raise RefusedError(503, "stopping", "the server is being stopped") from None

    def post(verb: str) -> Route:
        async def endpoint(request: Request) -> Response:
            return await answered(verb, await _content(request))

        return Route(f"/{verb}", endpoint, methods=["POST"])

    async def state(request: Request) -> Response:
        return await answered("state", dict(request.query_params))

    async def close(request: Request) -> Response:
        content = await _content(request)
        await sessions.close(str(content.get("episode_id")))
        return _response({})

    async def health(request: Request) -> Response:
        told: dict[str, Any] = {"status": "healthy", "protocol": VERSION}
        if gate.knows(request.headers):
            told |= {"environments": list(sessions.served), "sessions": len(sessions)}
            told |= {"counts": dict(sessions.counts)}
        return _response(told)

    async def metadata(request: Request) -> Response:
        specs = [registry.spec(env_id) for env_id in sessions.served]
        worlds = [
            {
                "id": spec.id,
                "params": dict(sessions.served[spec.id].params),
                "max_turns": spec.max_turns,
                "max_actions_per_turn": spec.max_actions_per_turn,
            }
            for spec in specs
        ]
        told = {"name": ", ".join(spec.id for spec in specs), "environments": worlds}
        return _response({**told, "description": " ".join(spec.description for spec in specs)})

    async def schema(request: Request) -> Response:
        return _response(_SCHEMAS)

    async def talk(socket: WebSocket) -> None:
        """One episode after another, until either side leaves."""
        await socket.accept()
        name = f"socket-{secrets.token_hex(8)}"
        try:
            while (answer := await _told(sessions, await socket.receive_text(), name)) is not None:
                await socket.send_text(encoded(answer).decode("ascii"))
            await socket.close()
        except (WebSocketDisconnect, KeyError):  # KeyError: bytes where text is expected
            return
        finally:
            await sessions.close(name)

    async def refuse(request: Request, error: Exception) -> Response:
        sessions.counts["refused"] += 1
        return _refused(_refusal(request, error))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await sessions.close_all()

    told = {"/health": health, "/metadata": metadata, "/schema": schema, "/state": state}
    routes = [
        *(Route(path, endpoint, methods=["GET"]) for path, endpoint in told.items()),
        *(post(verb) for verb in VERBS if verb != "state"),
        Route("/close", close, methods=["POST"]),
        WebSocketRoute("/ws", talk),
    ]
    kinds = (RefusedError, ProtocolError, ClientDisconnect, HTTPException, Exception)
    handlers: Any = dict.fromkeys(kinds, refuse)
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None if scope["type"] == "lifespan" else gate.refusal(scope)
        if refusal is None:
            await app(scope, receive, send)
            return
        sessions.counts["refused"] += 1
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _refused(refusal)(scope, receive, send)

    return guarded


async def _told(sessions: Sessions, message: str, name: str) -> Content | None:
    """The answer to a message of a web socket; None where the client takes leave."""
    try:
        content = _object(message.encode("utf-8", "surrogatepass"))
        kind, data = content.get("type"), content.get("data", {})
        if not isinstance(data, dict):
            raise ProtocolError(f"data is {quoted(data)}, but must be an object")
        match kind:
            case "close":
                return None
            case "reset" | "state":
                asked = {**data, "episode_id": name}
            case "step":
                asked = {"action": data, "episode_id": name}
            case _:
                raise ProtocolError(
                    f"type is {quoted(kind)}, but must be reset, step, state or close"
                )
        answer = await sessions.call(kind, asked)
        return {"type": "state" if kind == "state" else "observation", "data": answer}
    except ProtocolError as error:
        code, reason = "VALIDATION_ERROR", str(error)
    except RefusedError as error:
        codes = {"full": "CAPACITY_REACHED", "env_error": "EXECUTION_ERROR"}
        code, reason = codes.get(error.kind, "SESSION_ERROR"), str(error)
    return {"type": "error", "data": {"message": reason, "code": code}}


def serve(
    served: Sequence[Served],
    limits: SessionLimits,
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
    app = make_app(served, limits, TokenGate(address=address, token=token))
    with listening(address, port) as opened:
        url = f"http://{host_in_url(address)}:{opened.getsockname()[1]}"

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
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
        )
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(Server(config).serve(sockets=[opened]))


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


async def _content(request: Request) -> dict[str, Any]:
    """The object of a request.

    Raises:
        ProtocolError, RefusedError: it is too long, comes too slowly, or is none.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page could send another type without asking first
        raise RefusedError(
            415, "content_type", f"Content-Type is {kind!r}, but must be application/json"
        )
    held = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                held += chunk
                if len(held) > MAX_BODY_BYTES:
                    limit = f"a request has at most {MAX_BODY_BYTES >> 20} MiB: shorten the action"
                    raise RefusedError(413, "too_large", limit)
    except TimeoutError:
        raise RefusedError(408, "slow", f"the request did not arrive within {BODY_S:g} s") from None
    return _object(bytes(held)) if held.strip() else {}


def _object(data: bytes) -> dict[str, Any]:
    try:
        content = parsed_json(data)
    except ValueError as error:
        raise ProtocolError(f"this is no JSON: {shorten(str(error), 100)}") from None
    if not isinstance(content, dict):
        raise ProtocolError(f"this is no JSON object: {quoted(content)}")
    return content


def _response(content: Content, status: int = 200) -> Response:
    return Response(encoded(content), status_code=status, media_type="application/json")


def _refused(error: RefusedError) -> Response:
    return _response(error.content(), error.status)


def _refusal(request: Request, error: Exception) -> RefusedError:
    """What is answered to a request that raised."""
    path = shorten(request.url.path)
    match error:
        case RefusedError():
            return error
        case ProtocolError():
            return RefusedError(400, "bad_request", str(error))
        case ClientDisconnect():
            return RefusedError(400, "bad_request", "the request did not arrive")
        case HTTPException(status_code=404):
            told = f"there is no address {path}: see docs/remote.md"
            return RefusedError(404, "not_found", told)
        case HTTPException():
            told = f"{request.method} is not for {path}: see docs/remote.md"
            return RefusedError(error.status_code, "method", told)
    return RefusedError(500, "internal", "the server failed; its own output says where")
