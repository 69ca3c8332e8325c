"""The server as a person starts it: a process of its own on loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from made_run import make_run
from started import started

from echoscope.dashboard.page import links
from echoscope.dashboard.web.server import open_port

PATIENCE_S = 60.0
PASSWORD = "correct horse"


class Served:
    """`echoscope dashboard ROOT` in a process; requests to it by header."""

    def __init__(
        self, root: Path, *options: str, has_token: bool = False, **environment: str
    ) -> None:
        if not has_token:
            options = ("--no-token", *options)
        self.process = started(
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "echoscope",
                    "dashboard",
                    str(root),
                    "--port",
                    "0",
                    *options,
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.split(":")[2].split("/")[0])

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace"), answer.msg
        finally:
            connection.close()

    def upgrade(self, **headers: str) -> int:
        """The status of an attempt to open Streamlit's web socket."""
        return self.ask(
            "/_stcore/stream",
            Connection="Upgrade",
            Upgrade="websocket",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
            **headers,
        )[0]

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_run(folder / "a")
    return folder


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[Served]:
    server = Served(root)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def locked(root: Path) -> Iterator[Served]:
    server = Served(root, ECHOSCOPE_PASSWORD=PASSWORD)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def tokened(root: Path) -> Iterator[Served]:
    server = Served(root, has_token=True)
    yield server
    server.stop()


def test_it_prints_where_it_is(served: Served) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+", served.url)


def test_pages_json_and_web_socket_are_served(served: Served) -> None:
    for path in ("/", *(f"/{name}" for name in links.PAGES if name != links.FRONT_PAGE)):
        status, page, _ = served.ask(path)
        assert (status, "<title>Streamlit</title>" in page) == (200, True), path
    assert '"run_id":"a"' in served.ask("/api/runs")[1]
    assert served.upgrade(Origin=f"http://127.0.0.1:{served.port}") == 101


def test_scripts_in_the_page_are_those_that_the_policy_names(served: Served) -> None:
    _, page, headers = served.ask("/")
    assert len(re.findall(r"<script>", page)) == headers["content-security-policy"].count(
        "'sha256-"
    )


def test_others_are_refused(served: Served) -> None:
    assert served.ask("/", Host="evil.example")[0] == 403
    assert served.ask("/api/runs", Origin="http://evil.example")[0] == 403
    assert served.upgrade(Origin="http://evil.example") == 403
    assert served.upgrade(Host="evil.example") == 403


def test_what_streamlit_offers_besides_is_off(served: Served) -> None:
    assert served.ask("/_stcore/upload_file/x/y", "PUT", "data")[0] == 403
    assert served.ask("/_stcore/agent/sessions")[0] in (403, 404)
    assert served.ask("/app/static/x")[0] != 500


def test_a_password_is_asked_for(locked: Served) -> None:
    status, page, headers = locked.ask("/live?run=a")
    assert (status, 'type="password"' in page) == (401, True)
    assert headers["cache-control"] == "no-store"
    assert locked.ask("/api/runs")[0] == 401
    assert locked.upgrade(Origin=f"http://127.0.0.1:{locked.port}") == 403
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    body = f"password={PASSWORD.replace(' ', '+')}&next=/live"
    status, _, headers = locked.ask("/login", "POST", body, **form)
    assert (status, headers["location"]) == (303, "/live")
    session = headers["set-cookie"].split(";")[0]
    assert locked.ask("/api/runs", Cookie=session)[0] == 200
    assert locked.upgrade(Origin=f"http://127.0.0.1:{locked.port}", Cookie=session) == 101


def session_of(server: Served) -> str:
    """The cookie that the printed link gives."""
    status, _, headers = server.ask(server.url.removeprefix(f"http://127.0.0.1:{server.port}"))
    assert (status, headers["location"]) == (303, "/")
    return headers["set-cookie"].split(";")[0]


def test_the_printed_link_opens_pages_json_and_the_web_socket(tokened: Served) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/\?token=[A-Za-z0-9_-]{32}", tokened.url)
    cookie = session_of(tokened)
    assert "<title>Streamlit</title>" in tokened.ask("/live", Cookie=cookie)[1]
    assert '"run_id":"a"' in tokened.ask("/api/runs", Cookie=cookie)[1]
    assert tokened.upgrade(Origin=f"http://127.0.0.1:{tokened.port}", Cookie=cookie) == 101


def test_another_account_of_the_machine_cannot_steer(tokened: Served, root: Path) -> None:
    """It reaches loopback, and knows neither the link nor the cookie."""
    body = '{"action": "stop"}'
    headers = {"Content_Type": "application/json", "X_Echoscope_Command": "1"}
    status, answer, _ = tokened.ask("/api/runs/a/commands", "POST", body, **headers)
    assert (status, "Open the link" in answer) == (401, True)
    assert tokened.upgrade() == 403
    assert tokened.ask("/live")[0] == 401
    assert list((root / "a" / "commands").iterdir()) == []


def test_a_program_sends_the_token_as_a_header(tokened: Served) -> None:
    token = tokened.url.partition("token=")[2]
    assert tokened.ask("/api/runs", Authorization=f"Bearer {token}")[0] == 200
    assert tokened.ask("/api/runs", Authorization=f"Bearer {token}x")[0] == 401


def test_readiness_needs_no_token(tokened: Served, locked: Served) -> None:
    for server in (tokened, locked):
        status, answer, _ = server.ask("/api/health")
        assert (status, json.loads(answer)["status"]) == (200, "ok")


@pytest.mark.long
def test_the_token_is_in_no_log(root: Path, tmp_path: Path) -> None:
    server = Served(root, has_token=True)
    token = server.url.partition("token=")[2]
    session_of(server)
    server.ask("/api/runs?token=wrong")
    server.process.terminate()
    printed, logged = server.process.communicate(timeout=PATIENCE_S)
    assert token not in printed + logged  # the link was the first line, and is read already
    stored = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert token.encode() not in stored


def test_an_unknown_api_path_is_404_and_json(served: Served) -> None:
    for method in ("GET", "POST"):
        status, answer, headers = served.ask("/api/nowhere", method)
        assert (status, headers["content-type"]) == (404, "application/json")
        assert json.loads(answer)["error"]["text"] == (
            f"there is no address '/api/nowhere' for {method}"
        )


def test_the_front_page_has_one_address(served: Served) -> None:
    status, _, headers = served.ask("/runs?sort=name")
    assert (status, headers["location"]) == (307, "/?sort=name")


def run_command(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "echoscope", "dashboard", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr


def test_it_refuses_to_be_open_to_others(root: Path) -> None:
    code, output = run_command(str(root), "--address", "0.0.0.0")
    assert code == 1
    assert output == (
        "error: refusing to listen on 0.0.0.0, where others could steer your runs: set a password "
        "in ECHOSCOPE_PASSWORD, or add --read-only\n"
    )


def test_a_port_that_was_asked_for_and_is_taken_is_one_line(root: Path, served: Served) -> None:
    code, output = run_command(str(root), "--port", str(served.port))
    assert code == 1
    assert output.startswith(f"error: cannot listen on 127.0.0.1 port {served.port}: ")


def test_the_next_free_port_is_taken_otherwise() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with open_port("127.0.0.1", port, is_exact=False) as opened:
            assert opened.getsockname()[1] > port
        with pytest.raises(OSError, match="cannot listen"):
            open_port("127.0.0.1", port, is_exact=True)


def test_small_answers_are_not_held_back() -> None:
    async def has_no_delay() -> bool:
        writers = asyncio.Queue[asyncio.StreamWriter]()

        async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await writers.put(writer)

        with open_port("127.0.0.1", 0, is_exact=True) as opened:
            async with await asyncio.start_server(take, sock=opened):
                _, client = await asyncio.open_connection(*opened.getsockname())
                accepted = (await writers.get()).get_extra_info("socket")
                answer = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                client.close()
        return bool(answer)

    assert asyncio.run(has_no_delay())


@pytest.mark.long
def test_a_run_opens_its_page_and_a_missing_root_is_said(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Served(root / "a", "--read-only")
    assert server.url.endswith(f":{server.port}/live?run=a")
    server.stop()
    monkeypatch.chdir(tmp_path)
    none = Served(Path("runs"))  # the default: a first visit
    none.process.terminate()
    assert "echoscope demo --root runs" in none.process.communicate(timeout=PATIENCE_S)[1]
    code, output = run_command("nowhere")
    assert code == 1
    assert output == (
        "error: there is no folder nowhere; give the folder that holds your runs, or make a first "
        "run with `echoscope demo --root nowhere`\n"
    )
    monkeypatch.chdir(root.parent)
    (root.parent / "runs").symlink_to(root)
    message = "error: there is no run `a` here; did you mean `runs/a`?\n"
    assert run_command("a") == (1, message)


@pytest.mark.long
def test_no_page_imports_torch(root: Path) -> None:
    """Nor anything of the trainer: the dashboard starts fast and cannot disturb a run."""
    script = f"""
        import sys
        from pathlib import Path
        from streamlit.testing.v1 import AppTest
        from echoscope.dashboard.page import links
        from echoscope.dashboard.web import api, server, settings
        settings.configure(settings.DashboardSettings(root=Path({str(root)!r})))
        for name in links.PAGES:
            page = AppTest.from_file(str(links.script(name)), default_timeout=60)
            page.query_params["run"] = "a"
            page.run()
            assert not page.exception, (name, page.exception)
        banned = ("torch", "transformers", "peft", "echoscope.core", "echoscope.envs", "sklearn")
        print([name for name in banned if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
    )
    assert done.stdout.strip() == "[]", done.stderr[-2000:]


@pytest.mark.long
def test_a_query_in_flight_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    """The query runs in a thread like those that draw pages, and has an hour."""
    make_run(tmp_path / "a", 2)
    script = f"""
        import os, signal, threading, time
        from pathlib import Path
        import psutil
        from echoscope.dashboard.data import sql
        from echoscope.dashboard.page.problems import Problem
        from echoscope.dashboard.web.server import serve
        from echoscope.dashboard.web.settings import DashboardSettings
        from sql_bombs import BOMBS

        def ask():
            try:
                sql.ask("a", BOMBS["a cross join"])
            except Problem as problem:
                print(problem, flush=True)

        def ready(where):
            threading.Thread(target=ask).start()
            while not any(child.cpu_times().user > 2 for child in psutil.Process().children()):
                time.sleep(0.05)
            print([child.pid for child in psutil.Process().children()][0], flush=True)
            os.kill(os.getpid(), signal.SIGTERM)

        settings = DashboardSettings(root=Path({str(tmp_path)!r}), sql_seconds=3600.0)
        serve(settings, port=0, on_ready=ready)
    """
    served = started(
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
        )
    )
    served.wait(PATIENCE_S)
    assert served.stdout is not None
    pid, *lines = served.stdout.read().split("\n")
    assert not psutil.pid_exists(int(pid))
    assert "the query was interrupted" in lines
