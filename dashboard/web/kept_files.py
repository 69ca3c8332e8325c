"""Streamlit's own scripts and styles out of memory: a page asks for about a hundred of them.

Starlette reads a file in pieces, each in another thread, and each of these waits for its turn while
a page or a query computes. The files belong to an installed package, and their names carry the hash
of their content, so a browser keeps them.
"""

from __future__ import annotations

import functools
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_FOREVER = "public, max-age=31536000, immutable"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}


class KeptFiles:
    """ASGI middleware that answers for the files of a folder, which never change.

    Args:
        folder: Its files are answered under `/` and their path in it; what it does not hold, and
            any request but a plain GET, goes on to `app`.
    """

    def __init__(self, app: ASGIApp, folder: Path, prefix: str) -> None:
        self._app = app
        self._files: Mapping[str, Path] = {
            f"/{path.relative_to(folder).as_posix()}": path
            for path in (folder / prefix).rglob("*")
            if path.is_file()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = None
        if scope["type"] == "http" and scope["method"] == "GET":
            is_part = any(name == b"range" for name, _ in scope["headers"])
            path = None if is_part else self._files.get(scope["path"])
        if path is None:
            await self._app(scope, receive, send)
            return
        await kept_file(path)(scope, receive, send)


def kept_file(path: Path) -> Response:
    """An answer with a file that never changes."""
    kind = _KINDS.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    kind = kind or "application/octet-stream"
    return Response(_content(path), media_type=kind, headers={"cache-control": _FOREVER})


@functools.cache
def _content(path: Path) -> bytes:
    return path.read_bytes()
