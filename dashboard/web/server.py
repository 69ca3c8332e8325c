"""The web server: Streamlit's pages and our JSON behind one gate, on one port.

`make_app` is the ASGI application, `serve` runs it until it is told to stop.
"""

from __future__ import annotations

import gc
import importlib
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from echoscope.store.log.remote.pulling import EVERY_S, RemoteRoot
from echoscope.store.query import sql_process
from echoscope.text.network import host_in_url, is_loopback, listening

from ..charts.theme import ACCENT, ACCENT_ON_DARK, SERIES
from ..data import verdict_cache
from ..page.problems import Problem
from .gate import (
    PASSWORD_VARIABLE,
    TOKEN_PARAM,
    AccessPolicy,
    Gate,
    inline_script_hashes,
    require_safe,
)
from .kept_files import KeptFiles
from .settings import DashboardSettings, configure

DEFAULT_PORT = 8501
PORTS_TRIED = 50
NICENESS = 5
"""Whoever watches a run yields to it; so do branches that are started from a page."""
SWITCH_S = 0.0005
"""That a thread computes while others wait: a page goes through many short turns, and with Python's
own 5 ms each of them would wait so long for whatever else is being read."""
NUM_FIRST = 200
"""Runs that are read at the start; whoever needs all of them reads the others."""
_OF_PAGES = (
    "page.evaluation_box",
    "page.metric_sections",
    "charts.live",
    "page.bar",
    "live.tiles",
    "page.lineage",
    "replay.panels",
    "replay.strip",
    "page.run_table.table",
    "page.run_table.curves",
    "page.run_table.actions",
    "page.foreign_box",
    "charts.timeline",
    "report.claim_charts",
    "page.whatif_box",
)
"""What pages import: the first one need not wait for it."""
_APP = Path(__file__).parents[1] / "app.py"

STREAMLIT: Mapping[str, Any] = {
    "browser.gatherUsageStats": False,
    "client.allowedOrigins": [],
    "client.showErrorDetails": "none",
    "client.showErrorLinks": False,
    "client.toolbarMode": "minimal",
    "runner.magicEnabled": False,
    "runner.postScriptGC": False,  # a third of what a page costs; see `_warm_up`
    "server.enableAgentApi": False,
    "server.enableCORS": True,
    "server.enableStaticServing": False,
    "server.enableXsrfProtection": True,
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.maxUploadSize": 1,
    "server.showEmailPrompt": False,
    "theme.chartCategoricalColors": list(SERIES),
    "theme.headingFontSizes": ["1.75rem", "1.35rem", "1.15rem", "1rem", "0.9rem", "0.8rem"],
    "theme.light.primaryColor": ACCENT,
    "theme.dark.primaryColor": ACCENT_ON_DARK,
}
"""Set here and not in a file, so that no file of the machine changes what is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server can be reached."""

    url: str
    """Without a path and without the token."""
    token: str = field(default="", repr=False)
    """What the first visit must bring; empty where a password is asked for, or nothing."""

    def link(self, path: str = "/", **params: str) -> str:
        """The address of a page as a person opens it for the first time.

        >>> Listening(url="http://h:1", token="t").link("/live", run="a b")
        'http://h:1/live?run=a+b&token=t'
        """
        query = urlencode(params | ({TOKEN_PARAM: self.token} if self.token else {}))
        return f"{self.url}{path}?{query}" if query else self.url + path.rstrip("/")


def configure_streamlit(policy: AccessPolicy) -> None:
    """Everything that Streamlit reads from its configuration."""
    from streamlit import config

    names = ["localhost", "127.0.0.1", "::1"] if is_loopback(policy.address) else ["*"]
    for key, value in {**STREAMLIT, "server.allowedHosts": names}.items():
        config.set_option(key, value)
    config.set_option("server.address", policy.address)
    config.set_option("server.port", policy.port)


def make_app(settings: DashboardSettings, policy: AccessPolicy) -> Any:
    """The ASGI application for one root of runs."""
    import streamlit
    from starlette.middleware import Middleware

    from ..live import scripts
    from . import api

    configure(settings)
    page = Path(streamlit.__file__).parent / "static" / "index.html"
    hashes = inline_script_hashes(page.read_text(encoding="utf-8"))
    policy = replace(policy, script_hashes=hashes)
    configure_streamlit(policy)
    files = Middleware(KeptFiles, folder=page.parent, prefix="static", hints=scripts.hints())
    middleware = [Middleware(Gate, policy=policy), files]
    routes = [*api.routes(), *scripts.routes()]
    return streamlit.App(_APP, routes=routes, middleware=middleware, debug=False)


def open_port(address: str, port: int, *, is_exact: bool) -> socket.socket:
    """A socket that listens on `port`, or on one of the next where it is taken and not exact.

    Raises:
        OSError: no port could be opened.
    """
    last = port if is_exact or port == 0 else port + PORTS_TRIED
    for candidate in range(port, min(last, 65_535) + 1):
        try:
            return listening(address, candidate)
        except OSError:
            if candidate == last:
                raise
    raise OSError(f"{port} is no port; one lies between 0 and 65535")


def serve(
    settings: DashboardSettings,
    *,
    address: str = "127.0.0.1",
    port: int | None = None,
    has_token: bool = True,
    on_ready: Callable[[Listening], None],
) -> None:
    """Serve until interrupted.

    Args:
        port: None for the default one, or the next that is free.
        has_token: Whether a browser needs the token of the printed link. A password replaces it.
        on_ready: Called once, when pages can be opened.

    Raises:
        ExposureError: others could steer runs without a password.
        OSError: the port is taken.
    """
    import asyncio

    password = os.environ.get(PASSWORD_VARIABLE, "")
    require_safe(address, password, is_read_only=settings.is_read_only)
    opened = open_port(address, DEFAULT_PORT if port is None else port, is_exact=port is not None)
    with opened:
        actual = opened.getsockname()[1]
        token = secrets.token_urlsafe(24) if has_token and not password else ""
        policy = AccessPolicy(address=address, port=actual, password=password, token=token)
        app = make_app(settings, policy)
        host = host_in_url("127.0.0.1" if address == "localhost" else address)
        where = Listening(url=f"http://{host}:{actual}", token=token)
        os.nice(NICENESS)
        sys.setswitchinterval(SWITCH_S)
        is_far = not is_loopback(address)
        asyncio.run(
            _serve(app, opened, settings.root, lambda: on_ready(where), is_compressed=is_far)
        )


def _warm_up() -> None:
    """Import what the first page needs; frozen, it costs later collections of garbage nothing.

    Before the server says that it is there: a page that is drawn meanwhile waits for each import.
    """
    for name in _OF_PAGES:
        importlib.import_module(f"echoscope.dashboard.{name}")
    gc.collect()
    gc.freeze()


def _read_newest() -> None:
    """Every page asks for them."""
    queries = importlib.import_module("echoscope.dashboard.data.queries")
    with suppress(Problem):  # a page says what is wrong with the root
        queries.runs(most=NUM_FIRST)


def _follow(remote: RemoteRoot) -> None:
    """News of runs on object storage come to the disk without a page that waits for them."""
    while True:
        time.sleep(EVERY_S)
        remote.follow()


async def _serve(
    app: Any,
    opened: socket.socket,
    root: Path,
    on_ready: Callable[[], None],
    *,
    is_compressed: bool,
) -> None:
    import uvicorn
    from uvicorn.config import Config

    from .slow_requests import PatientProtocol

    class DashboardServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            _warm_up()
            await super().startup(sockets)
            on_ready()
            threading.Thread(target=_read_newest, name="newest-runs", daemon=True).start()
            if (remote := RemoteRoot.of(root)) is not None:
                threading.Thread(target=_follow, args=[remote], daemon=True).start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # First, or a page that waits for its query holds up the end.
            sql_process.end_all()
            verdict_cache.end_all()
            await super().shutdown(sockets)

    config = Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=PatientProtocol,
        ws="websockets-sansio",
        ws_max_size=64_000_000,
        ws_per_message_deflate=is_compressed,
        timeout_graceful_shutdown=2,
    )
    await DashboardServer(config).serve(sockets=[opened])
