"""Files that pages fetch from this server: plotly as it is installed, and scripts of our own.

Their addresses name their content, so a browser fetches each once and keeps it.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .chunks import chunks
from .gate import is_loopback

CHART_PAGES = ("live", "diagnosis", "compare", "alarms", "evaluations")
"""Pages that are sure to need plotly: it is fetched along with the page itself."""
_HEAD, _TAIL = b'} (typeof self !== "undefined" ? self : this, () => {\n', b"\n}));"
_EAGER_HEAD = _HEAD.replace(b"() => {", b"(function () {")
_EAGER_TAIL = b"\n})));"
"""How plotly's file begins and ends, before and after."""
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A script by its address."""

    name: str
    read: Callable[[], bytes]

    @property
    def digest(self) -> str:
        """Of the content, 16 hexadecimal digits."""
        return _digest(self)

    @property
    def path(self) -> str:
        return f"/assets/{self.name}-{self.digest}.js"


@functools.cache
def _digest(asset: Asset) -> str:
    return hashlib.sha256(asset.read()).hexdigest()[:16]


@functools.cache
def _compressed(asset: Asset) -> bytes:
    return gzip.compress(asset.read(), 6)


@functools.cache
def _plotly() -> bytes:
    """Found without importing it, which takes a while."""
    found = importlib.util.find_spec("plotly")
    assert found is not None
    assert found.origin is not None
    return compiled_ahead((Path(found.origin).parent / "package_data/plotly.min.js").read_bytes())


def compiled_ahead(script: bytes) -> bytes:
    """The same script, in which the one function around it all stands in parentheses.

    That tells a browser that it will be called: it is compiled while it is fetched, beside the
    page and not in its way. A script of another make stays as it is.
    """
    if script.count(_HEAD) != 1 or not script.endswith(_TAIL):
        return script
    return script.replace(_HEAD, _EAGER_HEAD)[: -len(_TAIL)] + _EAGER_TAIL


def _own(name: str) -> Asset:
    path = Path(__file__).parents[1] / "live" / f"{name}.js"
    return Asset(name=name, read=path.read_bytes)


PLOTLY = Asset(name="plotly", read=_plotly)
FIGURES = _own("figures")
"""Draws charts."""
PULSE = _own("pulse")
"""Listens to how a run stands."""
TILES = _own("tiles")
"""Draws the tiles of the Live page."""
_ALL = (PLOTLY, FIGURES, PULSE, TILES)


def head_tags(page: str) -> str:
    """For the end of a page's head: what it will need, so that it is there when the data are.

    Plotly is deferred, so that Streamlit begins first and asks the server for the page; while the
    answer is on its way, plotly is read.
    """
    wanted = list(chunks(page))
    tags = ""
    if page.strip("/") in CHART_PAGES:
        tags = f'<script defer src="{PLOTLY.path}" data-echoscope="plotly"></script>'
        wanted.append(FIGURES.path)
    links = (f'<link rel="modulepreload" href="{path}">' for path in wanted)
    return tags + "".join(links)


def routes() -> list[Route]:
    return [Route(asset.path, _answering(asset), methods=["GET"]) for asset in _ALL]


def _answering(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        headers = {
            "cache-control": _FOREVER,
            "etag": f'"{asset.digest}"',
            "vary": "accept-encoding",
        }
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        # Packing takes longer than a copy within one machine.
        is_near = request.client is not None and is_loopback(request.client.host)
        is_packed = not is_near and "gzip" in request.headers.get("accept-encoding", "")
        headers["content-encoding"] = "gzip" if is_packed else "identity"
        body = await run_in_threadpool(_compressed, asset) if is_packed else asset.read()
        return Response(body, headers=headers, media_type="text/javascript")

    return answer
