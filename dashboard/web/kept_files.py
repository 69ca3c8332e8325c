"""Streamlit's own scripts and styles out of memory: a page asks for about a hundred of them.

Streamlit fetches the script of a kind of element when the first one arrives, and draws grey boxes
meanwhile; the style of the pages is such an element, so everything would move when it comes. The
answer with a page therefore names these scripts: a browser has them when it needs them.

Starlette reads a file in pieces, each in another thread, and each of these waits for its turn while
a page or a query computes. The files belong to an installed package, and their names carry the hash
of their content, so a browser keeps them.
"""

from __future__ import annotations

import functools
import mimetypes
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OF_ALL_PAGES = ("Html", "BidiComponent", "Selectbox", "PageLink", "Checkbox")
"""Scripts of elements that nearly every page begins with, by the first part of their names."""
OF_PAGE: Mapping[str, Sequence[str]] = {
    "/": ("TextInput", "DataFrame"),
    "/live": ("TextInput",),
    "/replay": ("DataFrame",),
}
"""The same of some pages."""
_IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*["']\./([\w.-]+\.js)["']""")

_FOREVER = "public, max-age=31536000, immutable"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}


class KeptFiles:
    """ASGI middleware that answers for the files of a folder, which never change.

    Args:
        folder: Its files are answered under `/` and their path in it; what it does not hold, and
            any request but a plain GET, goes on to `app`.
        hints: Values of the header `Link` that some pages have besides, by the path of the page.
    """

    def __init__(
        self,
        app: ASGIApp,
        folder: Path,
        prefix: str,
        hints: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._app = app
        self._files: Mapping[str, Path] = {
            f"/{path.relative_to(folder).as_posix()}": path
            for path in (folder / prefix).rglob("*")
            if path.is_file()
        }
        scripts, address, index = folder / prefix / "js", f"/{prefix}/js", folder / "index.html"
        own = hints or {}
        self._hints = {
            page: ", ".join(
                [*_hints(scripts, address, index, OF_PAGE.get(page, ())), *own.get(page, ())]
            )
            for page in {"", *OF_PAGE, *own}
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = None
        if scope["type"] == "http" and scope["method"] == "GET":
            is_part = any(name == b"range" for name, _ in scope["headers"])
            path = None if is_part else self._files.get(scope["path"])
        if path is not None:
            await kept_file(path)(scope, receive, send)
        elif scope["type"] == "http" and (hints := self._hints.get(scope["path"], self._hints[""])):
            await self._app(scope, receive, _with_hints(send, hints))
        else:
            await self._app(scope, receive, send)


def _with_hints(send: Send, hints: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if headers.get("content-type", "").startswith("text/html"):
                headers.append("link", hints)
        await send(message)

    return sending


def _hints(scripts: Path, address: str, page: Path, kinds: Sequence[str]) -> list[str]:
    """Parts of a header that name the scripts of `OF_ALL_PAGES` and `kinds`, and what they import.

    What the page names itself is left out, and so is a kind that this Streamlit has no script for.
    """
    named = page.read_text(encoding="utf-8") if page.is_file() else ""
    first = [
        path for kind in (*OF_ALL_PAGES, *kinds) for path in sorted(scripts.glob(f"{kind}.*.js"))
    ]
    names = [name for name in _with_imports(scripts, first) if name not in named]
    return [f"<{address}/{name}>; rel=modulepreload" for name in names]


def _with_imports(scripts: Path, paths: Iterable[Path]) -> list[str]:
    """Names of scripts, and of all that they import."""
    names: dict[str, None] = {}
    waiting = [path.name for path in paths]
    while waiting:
        name = waiting.pop(0)
        if name not in names and (scripts / name).is_file():
            names[name] = None
            waiting += _IMPORT.findall((scripts / name).read_text(encoding="utf-8"))
    return list(names)


def kept_file(path: Path) -> Response:
    """An answer with a file that never changes."""
    kind = _KINDS.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    kind = kind or "application/octet-stream"
    return Response(_content(path), media_type=kind, headers={"cache-control": _FOREVER})


@functools.cache
def _content(path: Path) -> bytes:
    return path.read_bytes()
