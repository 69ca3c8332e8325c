"""The gate: names, origins, the password, headers; what it refuses never reaches a page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from echoscope.dashboard.web.gate import (
    AccessPolicy,
    AttemptLimit,
    ExposureError,
    Gate,
    LoginSessions,
    content_policy,
    inline_script_hashes,
    is_known_host,
    require_safe,
)

HOME = "http://127.0.0.1:8501"
SOCKET = "ws://127.0.0.1:8501/_stcore/stream"
PASSWORD = "correct horse"


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"the page {request.url.path}")


async def stream(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


def client(
    password: str = "",
    address: str = "127.0.0.1",
    base_url: str = HOME,
    token: str = "",
    **options: bool,
) -> TestClient:
    policy = AccessPolicy(address=address, port=8501, password=password, token=token)
    app = Starlette(
        routes=[
            Route("/", page),
            Route("/live", page),
            Route("/api/runs", page, methods=["GET", "POST"]),
            WebSocketRoute("/_stcore/stream", stream),
        ],
        middleware=[Middleware(Gate, policy=policy)],
    )
    return TestClient(app, base_url=base_url, **options)  # type: ignore[arg-type]


# -- who may listen where --------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "127.3.4.5"])
def test_loopback_needs_no_password(address: str) -> None:
    require_safe(address, "", is_read_only=False)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.5", "gpu-box"])
def test_other_addresses_need_a_password_or_read_only(address: str) -> None:
    with pytest.raises(ExposureError, match="ECHOSCOPE_PASSWORD, or add --read-only"):
        require_safe(address, "", is_read_only=False)
    require_safe(address, "", is_read_only=True)
    require_safe(address, PASSWORD, is_read_only=False)


def test_a_short_password_is_refused() -> None:
    with pytest.raises(ExposureError, match="has 3 characters, but must have 8"):
        require_safe("127.0.0.1", "abc", is_read_only=True)


# -- names and origins -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "host", "is_known"),
    [
        ("127.0.0.1", "127.0.0.1:8501", True),
        ("127.0.0.1", "localhost:9000", True),  # through a tunnel
        ("127.0.0.1", "[::1]:8501", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "192.168.1.5:8501", False),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "evil.example@127.0.0.1", False),
        ("127.0.0.1", "127.0.0.1/evil", False),
        ("127.0.0.1", "127.0.0.1:notaport", False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "192.168.1.5:8501", True),
        ("0.0.0.0", "[2001:db8::1]:8501", True),
        ("0.0.0.0", "evil.example", False),
        ("gpu-box", "gpu-box:8501", True),
    ],
)
def test_only_names_of_this_server_are_answered(address: str, host: str, is_known: bool) -> None:
    assert is_known_host(AccessPolicy(address=address, port=8501), host) is is_known


def test_a_foreign_host_is_refused_in_words() -> None:
    answer = client().get("/", headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert answer.text == (
        "This dashboard does not answer to the name 'evil.example'; use the address that it "
        "printed.\n"
    )


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "file://", ""]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_foreign_origin_is_refused(origin: str, method: str) -> None:
    answer = client().request(method, "/api/runs", headers={"origin": origin})
    assert answer.status_code == 403
    assert "other web sites" in answer.json()["error"]["text"]


def test_our_own_origin_passes() -> None:
    assert client().get("/", headers={"origin": HOME}).text == "the page /"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),  # a link in a chat
        (
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
            403,
        ),  # a picture
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),  # another port
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200),
    ],
)
def test_what_another_site_embeds_is_refused(headers: dict[str, str], status: int) -> None:
    assert client().get("/", headers=headers).status_code == status


def test_a_form_of_another_site_is_refused() -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client().post("/api/runs", headers=headers).status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_methods_that_pages_do_not_need_are_refused(method: str) -> None:
    assert client().request(method, "/").status_code == 403


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}]
)
def test_web_sockets_are_checked_too(headers: dict[str, str]) -> None:
    with (
        pytest.raises(WebSocketDisconnect),
        client().websocket_connect(SOCKET, headers=headers),
    ):
        pass


def test_our_own_web_socket_passes() -> None:
    with client().websocket_connect(SOCKET, headers={"origin": HOME}) as socket:
        assert socket.receive_text() == "hello"


# -- the password ----------------------------------------------------------------------------------


@pytest.fixture
def locked() -> Iterator[TestClient]:
    with client(PASSWORD, follow_redirects=False) as opened:
        yield opened


def give(opened: TestClient, password: str, target: str = "/live?run=a") -> object:
    return opened.post("/login", data={"password": password, "next": target})


def test_without_a_session_there_is_the_password_page(locked: TestClient) -> None:
    answer = locked.get("/live?run=a&step=3")
    assert answer.status_code == 401
    assert 'name="next" value="/live?run=a&amp;step=3"' in answer.text
    assert "the page" not in answer.text


def test_the_form_is_sent_with_our_origin(locked: TestClient) -> None:
    """Browsers send `Origin: null` with a form on a page whose policy is `no-referrer`."""
    assert locked.get("/").headers["referrer-policy"] == "same-origin"
    wrong = {"password": "wrong", "next": "/"}
    assert locked.post("/login", data=wrong, headers={"origin": HOME}).status_code == 401
    assert locked.post("/login", data=wrong, headers={"origin": "null"}).status_code == 403


def test_without_a_session_the_rest_is_refused(locked: TestClient) -> None:
    assert locked.get("/api/runs").status_code == 401
    assert locked.get("/_stcore/health").status_code == 401
    with pytest.raises(WebSocketDisconnect), locked.websocket_connect(SOCKET):
        pass


def test_the_password_opens_a_session(locked: TestClient) -> None:
    answer = give(locked, PASSWORD)
    assert (answer.status_code, answer.headers["location"]) == (303, "/live?run=a")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("echoscope_8501=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert locked.get("/live").text == "the page /live"
    with locked.websocket_connect(SOCKET, headers={"origin": HOME}) as socket:
        assert socket.receive_text() == "hello"


@pytest.mark.parametrize("password", ["", "wrong", PASSWORD + " ", PASSWORD.upper(), "\ud800x" * 3])
def test_another_password_does_not(locked: TestClient, password: str) -> None:
    answer = locked.post(
        "/login",
        content=f"password={password}".encode("utf-8", "surrogatepass"),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == 401
    assert "That is not the password." in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "/\\evil.example", "http://evil.example", "javascript:x", "/a\r\nb"],
)
def test_it_leads_nowhere_else(locked: TestClient, target: str) -> None:
    assert give(locked, PASSWORD, target).headers["location"] == "/"


@pytest.mark.parametrize("token", ["", "x", "9999999999.abc.def", "9999999999..", "..", "a.b.c.d"])
def test_made_up_sessions_are_not_known(locked: TestClient, token: str) -> None:
    locked.cookies.set("echoscope_8501", token)
    assert locked.get("/").status_code == 401


def test_a_session_of_another_process_is_not_known() -> None:
    assert not LoginSessions().is_valid(LoginSessions().issue())


def test_a_session_ends() -> None:
    now = [1_000.0]
    sessions = LoginSessions(lambda: now[0])
    token = sessions.issue()
    assert sessions.is_valid(token)
    now[0] += 12 * 3600 + 1
    assert not sessions.is_valid(token)


def test_after_five_wrong_passwords_the_right_one_must_wait(locked: TestClient) -> None:
    for _ in range(5):
        assert give(locked, "wrong").status_code == 401
    answer = give(locked, PASSWORD)
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60


def test_attempts_are_forgotten_after_a_minute_and_counted_per_client() -> None:
    now = [0.0]
    limit = AttemptLimit(clock=lambda: now[0])
    limit.begin("a")
    now[0] = 10
    for _ in range(4):
        limit.begin("a")
    assert limit.wait_s("a") == 50  # until the first of the five is a minute ago
    assert limit.wait_s("b") == 0
    for number in range(55):
        limit.begin(f"b{number}")
    assert limit.wait_s("c") == 50  # sixty of all clients
    now[0] = 61
    assert limit.wait_s("a") == limit.wait_s("c") == 0


def test_a_right_answer_takes_its_attempt_back() -> None:
    limit = AttemptLimit(clock=lambda: 0.0)
    for _ in range(9):
        limit.take_back(limit.begin("a"))
    assert limit.wait_s("a") == 0


def test_strangers_cannot_lock_out_who_was_let_in_before() -> None:
    """Seventy addresses use up what strangers have; the owner's session has ended meanwhile."""
    now = [0.0]
    policy = AccessPolicy(address="127.0.0.1", port=8501, password=PASSWORD)
    gate = Gate(Starlette(), policy, clock=lambda: now[0])
    cookies: list[str] = []

    def try_from(address: str, password: str, cookie: str = "") -> int:
        async def answer() -> int:
            body = asyncio.get_running_loop().create_future()
            body.set_result(f"password={password}".encode())
            return await answer_to(gate, address, body, cookie, cookies)

        return asyncio.run(answer())

    assert try_from("10.0.0.1", PASSWORD) == 303
    (cookie,) = cookies
    now[0] = 13 * 3600
    wrong = [try_from(f"10.0.1.{n}", "wrong") for n in range(70)]
    assert (wrong.count(401), wrong.count(429)) == (60, 10)
    assert try_from("10.0.2.1", PASSWORD) == 429
    assert try_from("10.0.2.1", PASSWORD, cookie) == 303
    assert try_from("10.0.0.1", PASSWORD) == 303
    assert (
        try_from("10.0.2.2", PASSWORD, LoginSessions().issue()) == 429
    )  # a cookie that others made

    # Through a tunnel all have one address: five wrong ones there keep only the others waiting.
    assert [try_from("127.0.0.1", PASSWORD, cookie)] == [303]
    assert [try_from("127.0.0.1", "wrong") for _ in range(6)] == [401] * 5 + [429]
    assert try_from("127.0.0.1", PASSWORD, cookie) == 303
    # A cookie opens nothing by itself, and has five attempts a minute like everybody.
    again = [try_from("127.0.0.1", "wrong", cookie) for _ in range(6)]
    assert again == [401] * 5 + [429]


def test_an_expired_cookie_names_its_holder_and_opens_nothing() -> None:
    now = [0.0]
    sessions = LoginSessions(clock=lambda: now[0])
    token = sessions.issue()
    holder = sessions.holder(token)
    assert holder
    now[0] = 13 * 3600
    assert (sessions.is_valid(token), sessions.holder(token)) == (False, holder)
    assert sessions.holder("") == sessions.holder("9.x.y") == LoginSessions().holder(token) == ""


async def answer_to(
    gate: Gate,
    client: str,
    body: asyncio.Future[bytes],
    cookie: str = "",
    cookies: list[str] | None = None,
) -> int:
    """The status of a POST /login whose headers are sent and whose body comes later."""
    statuses: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": await body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            given = dict(message["headers"]).get(b"set-cookie", b"").decode()
            if given and cookies is not None:
                cookies.append(given.split(";")[0].partition("=")[2])

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/login",
        "raw_path": b"/login",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1:8501"),
            (b"cookie", f"echoscope_8501={cookie}".encode()),
        ],
        "client": (client, 5),
        "server": ("127.0.0.1", 8501),
        "scheme": "http",
    }
    await gate(scope, receive, send)
    return statuses[0]


def test_who_goes_away_in_the_middle_of_a_form_is_no_failure() -> None:
    gate = Gate(Starlette(), AccessPolicy(address="127.0.0.1", port=8501, password=PASSWORD))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/login",
        "raw_path": b"/login",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8501")],
        "client": ("a", 5),
        "server": ("127.0.0.1", 8501),
        "scheme": "http",
    }

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        pytest.fail("nobody listens")

    asyncio.run(gate(scope, receive, send))


@pytest.mark.parametrize(
    ("clients", "num_tried"), [(["a"] * 200, 5), ([f"{n}" for n in range(200)], 60)]
)
def test_attempts_are_counted_before_their_bodies_are_read(
    clients: list[str], num_tried: int
) -> None:
    """200 connections send their headers, and then their bodies, the right password last."""

    async def burst() -> list[int]:
        gate = Gate(Starlette(), AccessPolicy(address="127.0.0.1", port=8501, password=PASSWORD))
        bodies = [asyncio.get_running_loop().create_future() for _ in clients]
        asked = [
            asyncio.create_task(answer_to(gate, client, body))
            for client, body in zip(clients, bodies, strict=True)
        ]
        await asyncio.sleep(0)  # every request has come as far as its body
        for body in bodies[:-1]:
            body.set_result(b"password=wrong")
        bodies[-1].set_result(f"password={PASSWORD}".encode())
        return await asyncio.gather(*asked)

    answers = asyncio.run(burst())
    assert answers.count(401) == num_tried
    assert answers.count(429) == 200 - num_tried


# -- the token of the link -------------------------------------------------------------------------

TOKEN = "a-token-of-32-characters-as-made"


@pytest.fixture
def linked() -> Iterator[TestClient]:
    with client(token=TOKEN, follow_redirects=False) as opened:
        yield opened


def test_the_link_opens_a_session_and_loses_its_token(linked: TestClient) -> None:
    answer = linked.get(f"/live?run=a&token={TOKEN}&step=3")
    assert (answer.status_code, answer.headers["location"]) == (303, "/live?run=a&step=3")
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert linked.get("/live").text == "the page /live"
    with linked.websocket_connect(SOCKET, headers={"origin": HOME}) as socket:
        assert socket.receive_text() == "hello"


@pytest.mark.parametrize("path", ["/api/runs", "/_stcore/health", "/live", "/live?token=wrong"])
def test_without_the_token_nothing_is_answered(linked: TestClient, path: str) -> None:
    answer = linked.get(path)
    assert answer.status_code == 401
    assert "the page" not in answer.text
    with pytest.raises(WebSocketDisconnect), linked.websocket_connect(SOCKET):
        pass


def test_the_token_can_be_pasted(linked: TestClient) -> None:
    page = linked.get("/live?run=a").text
    assert "paste its token here" in page
    assert '<label for="password">Token</label>' in page
    assert give(linked, TOKEN).headers["location"] == "/live?run=a"
    assert linked.get("/live").text == "the page /live"


def test_a_policy_does_not_show_its_secrets() -> None:
    policy = AccessPolicy(address="h", port=1, password=PASSWORD, token=TOKEN)
    assert PASSWORD not in repr(policy)
    assert TOKEN not in repr(policy)


def test_a_form_that_is_too_large_is_refused(locked: TestClient) -> None:
    assert locked.post("/login", content=b"x" * 10_000).status_code == 413


def test_a_link_on_another_site_comes_again_from_here(locked: TestClient) -> None:
    """The strict cookie is not sent with the first request; the answer asks for a second one."""
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    answer = locked.get("/live", headers=headers)
    assert 'http-equiv="refresh"' in answer.text
    assert "password" not in answer.text


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/nowhere", "/api/runs"])
def test_every_answer_has_the_headers(path: str) -> None:
    headers = client().get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_the_password_page_has_them_too(locked: TestClient) -> None:
    assert "frame-ancestors 'none'" in locked.get("/").headers["content-security-policy"]


def test_pages_may_load_nothing_from_elsewhere() -> None:
    policy = dict(part.split(" ", 1) for part in content_policy(("sha256-x",), "h:1").split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self' ws://h:1 wss://h:1"
    assert "'unsafe-inline'" not in policy["script-src"]
    assert not any("http" in sources or "*" in sources for sources in policy.values())


def test_hashes_of_inline_scripts() -> None:
    """`printf 'a()' | openssl sha256 -binary | base64`; scripts with a source need none."""
    page_text = '<script>a()</script><script src="b.js"></script>'
    assert inline_script_hashes(page_text) == (
        "sha256-qVpDBgj7bpq5hMAcGp3AOc79J3Y1Z4HvySTwKrWDoy4=",
    )
