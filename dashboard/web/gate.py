"""Who may talk to the dashboard: names it answers to, origins, the password, headers.

It stands before everything else, web sockets included. A request that it refuses reaches neither
Streamlit nor a route.

- A foreign `Host` is refused: a web page that points its own name at this machine gets nothing.
- A foreign `Origin`, and whatever a browser marks as sent by another site, is refused.
- Without a password the server makes a token and prints a link that ends in it, as Jupyter does: on
  a machine with several accounts, loopback belongs to all of them. With a password there is no
  token. Either opens a session: it is compared in constant time, attempts are limited, and the
  cookie is signed with a secret that lives and dies with the process.
- A token in an address is answered with a redirect to the address without it, so that it appears
  neither in a `Referer` nor in the history. Programs send `Authorization: Bearer TOKEN`.
- Pages may load nothing from outside and may not be framed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import ipaddress
import math
import re
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import Template
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from echoscope.text.network import is_loopback

from ..charts.theme import ACCENT

PASSWORD_VARIABLE = "ECHOSCOPE_PASSWORD"
MIN_PASSWORD = 8
SESSION_S = 12 * 3600
LOGIN_PATH = "/login"
HEALTH_PATH = "/api/health"
"""Answers without a session: whether the server is up, and nothing else."""
TOKEN_PARAM = "token"
PER_CLIENT, PER_WINDOW, WINDOW_S = 5, 60, 60.0
"""Attempts that one client, and all together, may fail within so many seconds."""
_MAX_FORM = 8_192
_MAX_ADDRESSES = 1_000
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_METHODS = ("GET", "HEAD", "POST")
_PAGE = Template((Path(__file__).parent / "login.html").read_text(encoding="utf-8"))
_TOKEN_ADVICE = (
    "<p>Open the link that the terminal shows (it ends in <code>token=...</code>), or paste its "
    "token here. Every start of the dashboard makes a new token.</p>\n"
)
_BOUNCE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0">
<title>Echoscope</title></head><body></body></html>
"""


class ExposureError(ValueError):
    """The dashboard would be open to other machines without a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """What a server was started with."""

    address: str
    port: int
    password: str = field(default="", repr=False)
    """Empty for none."""
    token: str = field(default="", repr=False)
    """Of the printed link, 192 random bits; empty where there is a password, or where nobody wants
    one."""
    script_hashes: tuple[str, ...] = ()
    """`sha256-...` of the inline scripts of the front page."""

    @property
    def secret(self) -> str:
        """What opens a session; empty where none is needed."""
        return self.password or self.token


def require_safe(address: str, password: str, *, is_read_only: bool) -> None:
    """Raises ExposureError where others could steer runs without a password."""
    if password and len(password) < MIN_PASSWORD:
        raise ExposureError(
            f"{PASSWORD_VARIABLE} has {len(password)} characters, but must have {MIN_PASSWORD} or "
            "more"
        )
    if not is_loopback(address) and not password and not is_read_only:
        raise ExposureError(
            f"refusing to listen on {address}, where others could steer your runs: set a password "
            f"in {PASSWORD_VARIABLE}, or add --read-only"
        )


def is_known_host(policy: AccessPolicy, host: str) -> bool:
    """Whether a `Host` header names this server.

    On loopback only loopback names do. Elsewhere any literal address does, too, which no foreign
    web page can have as its name, and the machine's own name.
    """
    try:
        parts = urlsplit(f"//{host}")
        name, _ = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if parts.netloc != host or "@" in host or not name:
        return False
    if name in _LOOPBACK:
        return True
    if is_loopback(policy.address):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in (socket.gethostname().lower(), policy.address.lower())
    return True


def refusal(policy: AccessPolicy, scope: Scope) -> str:
    """Why a request is not answered at all, in one sentence; empty if it may pass."""
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_known_host(policy, hosts[0]):
        host = ascii(", ".join(hosts)[:80])
        return (
            f"This dashboard does not answer to the name {host}; use the address that it printed."
        )
    origins = headers.getlist("origin")
    if origins and not _is_same(origins, hosts[0]):
        return "This dashboard does not take requests from other web sites."
    site = headers.get("sec-fetch-site", "none")
    mode = headers.get("sec-fetch-mode", "navigate")
    is_link = scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and mode == "navigate"
    if site not in ("same-origin", "none") and not is_link:
        return "This dashboard does not take requests from other web sites."
    if scope["type"] == "http" and scope["method"] not in _METHODS:
        return f"This dashboard does not know the method {scope['method'][:20]!a}."
    return ""


def _is_same(origins: list[str], host: str) -> bool:
    parts = urlsplit(origins[0])
    is_http = parts.scheme in ("http", "https")
    return len(origins) == 1 and is_http and parts.netloc.lower() == host.lower()


@dataclass(slots=True)
class AttemptLimit:
    """A client may fail a few times a minute; all clients together, some more.

    An attempt counts from its first byte on, and only a right answer takes it back: attempts that
    are begun together and finished later are limited like those that follow each other.
    """

    clock: Callable[[], float] = time.monotonic
    _begun: list[tuple[float, str]] = field(default_factory=list)
    """When, and who; in order."""

    def wait_s(self, client: str) -> float:
        """Seconds until this client may try again; 0 for now."""
        now = self.clock()
        self._begun = [attempt for attempt in self._begun if now - attempt[0] < WINDOW_S]
        everyone = [begun_at for begun_at, _ in self._begun]
        own = [begun_at for begun_at, who in self._begun if who == client]
        limited = ((own, PER_CLIENT), (everyone, PER_WINDOW))
        waits = [times[-most] + WINDOW_S - now for times, most in limited if len(times) >= most]
        return max(waits, default=0.0)

    def begin(self, client: str) -> tuple[float, str]:
        """Count an attempt; the mark that takes it back."""
        attempt = self.clock(), client
        self._begun.append(attempt)
        return attempt

    def take_back(self, attempt: tuple[float, str]) -> None:
        """The attempt gave the right answer."""
        if attempt in self._begun:
            self._begun.remove(attempt)


class LoginLimit:
    """How often a password may be tried: by strangers, and by those that gave it once.

    Strangers can use up what strangers have, and keep each other waiting. Whoever was let in before
    has an allowance of its own: a browser by its cookie, also an expired one, which nobody else can
    make; else an address, which others may share.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._strangers = AttemptLimit(clock=clock)
        self._known = AttemptLimit(clock=clock)
        self._addresses: OrderedDict[str, None] = OrderedDict()

    def of(self, browser: str, address: str) -> tuple[AttemptLimit, str]:
        """The allowance of a client, and its name there.

        Args:
            browser: `LoginSessions.holder` of its cookie; empty for none.
        """
        if browser:
            return self._known, f"browser {browser}"
        limit = self._known if address in self._addresses else self._strangers
        return limit, f"address {address}"

    def remember(self, address: str) -> None:
        """The password was given at this address."""
        self._addresses[address] = None
        self._addresses.move_to_end(address)
        if len(self._addresses) > _MAX_ADDRESSES:
            self._addresses.popitem(last=False)


class LoginSessions:
    """Signed cookies of one process: `expiry.nonce.signature`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._secret = secrets.token_bytes(32)
        self._clock = clock

    def issue(self) -> str:
        body = f"{int(self._clock()) + SESSION_S}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._sign(body)}"

    def is_valid(self, token: str) -> bool:
        expiry = token.partition(".")[0]
        return bool(self.holder(token)) and expiry.isdigit() and int(expiry) > self._clock()

    def holder(self, token: str) -> str:
        """Whom a cookie was given to, be it expired; empty where this process did not make it."""
        body, _, signature = token.rpartition(".")
        is_ours = hmac.compare_digest(signature.encode(), self._sign(body).encode())
        return body.partition(".")[2] if is_ours else ""

    def _sign(self, body: str) -> str:
        return hmac.new(self._secret, body.encode(), hashlib.sha256).hexdigest()


class Gate:
    """ASGI middleware that applies a policy."""

    def __init__(
        self, app: ASGIApp, policy: AccessPolicy, clock: Callable[[], float] = time.time
    ) -> None:
        self._app = app
        self._policy = policy
        self._sessions = LoginSessions(clock)
        self._limit = LoginLimit()
        self._login_page = partial(_login_page, has_password=bool(policy.password))
        # Browsers keep cookies by host alone: two dashboards on one machine must not collide.
        self._cookie = f"echoscope_{policy.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):  # in the middle of its request: nobody is there to be told
            await self._handle(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        why = refusal(self._policy, scope)
        response: Response | None = None
        if why:
            response = _words(scope, why, 403)
        elif self._policy.secret:
            response = await self._admit(scope, receive)
        if response is None:
            await self._app(scope, receive, self._with_headers(scope, send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": why or "no session"})
        else:
            await response(scope, receive, self._with_headers(scope, send))

    async def _admit(self, scope: Scope, receive: Receive) -> Response | None:
        """None for whoever may pass; else what a client without a session is told."""
        connection = HTTPConnection(scope)
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if is_read and connection.url.path == HEALTH_PATH:
            return None
        if is_read and TOKEN_PARAM in connection.query_params and self._policy.token:
            return self._open_link(connection)
        if self._sessions.is_valid(connection.cookies.get(self._cookie, "")):
            return None
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        is_bearer = bool(self._policy.token) and scheme.lower() == "bearer"
        # Not counted: nobody guesses 192 bits, and a neighbour could lock others out.
        if is_bearer and _is_equal(given.strip(), self._policy.token):
            return None
        if scope["type"] == "websocket":
            return Response(status_code=401)
        return await self._ask(Request(scope, receive))

    def _open_link(self, connection: HTTPConnection) -> Response:
        """The answer to a printed link: the same address without its token, and a session."""
        kept = [pair for pair in connection.query_params.multi_items() if pair[0] != TOKEN_PARAM]
        target = _local(connection.url.path + (f"?{urlencode(kept)}" if kept else ""))
        if not _is_equal(connection.query_params[TOKEN_PARAM], self._policy.token):
            if self._sessions.is_valid(connection.cookies.get(self._cookie, "")):
                return _moved(target)  # an old link, in a browser that was let in before
            message = "The token of this link is not the one of this dashboard."
            return self._login_page(target, message)
        return self._let_in(connection, target)

    async def _ask(self, request: Request) -> Response:
        """Ask a client without a session for the password or the token."""
        if request.method == "POST" and request.url.path == LOGIN_PATH:
            return await self._login(request)
        if request.url.path.startswith(("/api/", "/_stcore/")):
            message = (
                "Open the dashboard in a browser and give the password."
                if self._policy.password
                else "Open the link that `echoscope dashboard` printed, or send its token as "
                "`Authorization: Bearer TOKEN`."
            )
            return _words(request.scope, message, 401)
        asked = request.url.path
        if request.url.query:
            asked += f"?{request.url.query}"
        if request.headers.get("sec-fetch-site") == "cross-site":
            # The strict cookie stays away from links on other sites: come again from here.
            return _bounce_page()
        return self._login_page(_local(asked))

    async def _login(self, request: Request) -> Response:
        address = request.client.host if request.client else ""
        browser = self._sessions.holder(request.cookies.get(self._cookie, ""))
        limit, client = self._limit.of(browser, address)
        # Before the form is read: it may be long in coming, and others with it.
        wait_s = limit.wait_s(client)
        if wait_s > 0:
            message = f"Too many attempts. Try again in {wait_s:.0f} seconds."
            return self._login_page("/", message, status=429, retry_after_s=wait_s)
        mark = limit.begin(client)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM:
                return self._login_page("/", "The form is too large.", status=413)
        form = parse_qs(body.decode("utf-8", errors="replace"), keep_blank_values=True)
        target = _local(form.get("next", ["/"])[0])
        if not _is_equal(form.get("password", [""])[0], self._policy.secret):
            name = "password" if self._policy.password else "token"
            return self._login_page(target, f"That is not the {name}.")
        limit.take_back(mark)
        self._limit.remember(address)
        return self._let_in(request, target)

    def _let_in(self, connection: HTTPConnection, target: str) -> Response:
        """Open a session, and go to a path of ours."""
        response = _moved(target)
        response.set_cookie(
            self._cookie,
            self._sessions.issue(),
            path="/",
            httponly=True,
            samesite="strict",
            secure=connection.url.scheme == "https",
        )
        return response

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        headers = security_headers(self._policy, Headers(scope=scope).get("host", ""))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                kept = answer.get("referrer-policy", headers["referrer-policy"])
                answer.update({**headers, "referrer-policy": kept})
            await send(message)

        return sending


def _words(scope: Scope, text: str, status: int) -> Response:
    if scope.get("path", "").startswith("/api/"):
        return JSONResponse({"error": {"text": text, "advice": ""}}, status_code=status)
    return Response(f"{text}\n", status_code=status, media_type="text/plain; charset=utf-8")


def _moved(target: str) -> Response:
    return RedirectResponse(target, status_code=303, headers={"cache-control": "no-store"})


def _is_equal(given: str, expected: str) -> bool:
    """Constant time, whatever the lengths."""
    given_digest, other = (
        hashlib.sha256(t.encode("utf-8", "replace")).digest() for t in (given, expected)
    )
    return hmac.compare_digest(given_digest, other)


def _local(target: str) -> str:
    """Where to go after the password: a path of ours, never another site."""
    is_local = re.fullmatch(r"/(?![/\\])[^\\\x00-\x20\x7f]*", target) is not None
    return target if is_local and len(target) < 2_000 else "/"


def _login_page(
    target: str,
    message: str = "",
    *,
    has_password: bool = True,
    status: int = 401,
    retry_after_s: float = 0.0,
) -> HTMLResponse:
    """Ask for the password, or else for the token, and go to `target` afterwards."""
    alert = f'<p role="alert">{html.escape(message)}</p>' if message else ""
    page = _PAGE.substitute(
        accent=ACCENT,
        advice="" if has_password else _TOKEN_ADVICE,
        label="Password" if has_password else "Token",
        autocomplete="current-password" if has_password else "off",
        target=html.escape(target, quote=True),
        words=alert,
    )
    # Without a referrer a browser sends the form with `Origin: null`, as a foreign page would.
    headers = {"cache-control": "no-store", "referrer-policy": "same-origin"}
    if retry_after_s > 0:
        headers["retry-after"] = str(math.ceil(retry_after_s))
    return HTMLResponse(page, status_code=status, headers=headers)


def _bounce_page() -> HTMLResponse:
    """Asks the browser to come again, this time from a page of ours."""
    return HTMLResponse(_BOUNCE, headers={"cache-control": "no-store"})


def security_headers(policy: AccessPolicy, host: str) -> Mapping[str, str]:
    """Headers of every answer to a request for `host`, which was checked."""
    return {
        "content-security-policy": content_policy(policy.script_hashes, host),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
    }


def content_policy(script_hashes: Iterable[str], host: str) -> str:
    """What pages may load: what Streamlit and plotly need from here, and nothing from elsewhere.

    Streamlit sets styles from code, hence inline styles; workers and pictures are made of blobs.
    """
    scripts = " ".join(f"'{digest}'" for digest in script_hashes)
    # Older browsers do not count web sockets as 'self'.
    sockets = f"ws://{host} wss://{host}" if host.isprintable() and ";" not in host else ""
    return "; ".join(
        (
            "default-src 'none'",
            # A component's script (the synced cursor, keys) is a blob that the page makes itself.
            f"script-src 'self' 'wasm-unsafe-eval' blob: {scripts}".rstrip(),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "media-src 'self' blob:",
            f"connect-src 'self' {sockets}".rstrip(),
            "worker-src 'self' blob:",
            "manifest-src 'self'",
            "frame-src 'none'",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


def inline_script_hashes(page: str) -> tuple[str, ...]:
    """`sha256-...` of each inline script of an HTML page, as a content policy names them."""
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = (hashlib.sha256(text.encode()).digest() for text in scripts)
    return tuple(f"sha256-{base64.b64encode(digest).decode()}" for digest in digests)
