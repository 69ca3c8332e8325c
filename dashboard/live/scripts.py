"""The scripts that pages fetch from this server: every file of `js/`, and plotly's.

All of them stand under one address that names their content, so a browser fetches each once and
keeps it, and a script imports its neighbour by name (`./pulse.js`). What they ask for and what they
are given is described in docs/live-pages.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from echoscope.text.network import is_loopback

from ..web.kept_files import kept_file

_PLOTLY = "plotly.js"
_FIRST: Mapping[str, Sequence[str]] = {
    "/": ("figures.js",),
    "/live": ("pulse.js", "tiles.js", "figures.js", "cursor.js", _PLOTLY),
    "/diagnosis": ("pulse.js", "figures.js", _PLOTLY),
    "/replay": ("pulse.js", "talk.js"),
    "/compare": ("figures.js", "cursor.js", _PLOTLY),
}
"""Page -> scripts that its first elements need; plotly where a chart is among them."""


@functools.cache
def files() -> Mapping[str, Path]:
    """Name of a script, as it stands in an address -> its file."""
    own = {path.name: path for path in sorted((Path(__file__).parent / "js").glob("*.js"))}
    # Importing plotly to ask for its file would take a while.
    plotly = distribution("plotly").locate_file("plotly/package_data/plotly.min.js")
    return {**own, _PLOTLY: Path(str(plotly))}


@functools.cache
def folder() -> str:
    """The address of all scripts. It ends in 16 hexadecimal digits of the hash of their content."""
    content = hashlib.sha256()
    for path in files().values():
        content.update(path.read_bytes())
    return f"/assets/{content.hexdigest()[:16]}"


def address(name: str) -> str:
    """Where a browser fetches a script: `/assets/0123456789abcdef/figures.js`."""
    return f"{folder()}/{name}"


def hints() -> Mapping[str, Sequence[str]]:
    """Page -> values of the header `Link` by which a browser fetches scripts before they are asked
    for."""
    kinds = {_PLOTLY: "preload; as=script"}
    return {
        page: [f"<{address(name)}>; rel={kinds.get(name, 'modulepreload')}" for name in names]
        for page, names in _FIRST.items()
    }


def routes() -> list[Route]:
    return [
        Route(address(name), _answering(path), methods=["GET"]) for name, path in files().items()
    ]


def _answering(path: Path) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        response = kept_file(path)
        if request.client is not None and is_loopback(request.client.host):
            # Streamlit's middleware packs what has no encoding yet. Within one machine, packing
            # takes longer than the copy.
            response.headers["content-encoding"] = "identity"
        return response

    return answer


@functools.cache
def component(script: str, function: str = "default") -> Callable[..., Any]:
    """A Streamlit component that is one function of a script of this folder.

    Args:
        script: For example `pulse.js`.
        function: The name under which the script exports it.
    """
    import streamlit as st  # takes a while: not when the server starts

    name = f"echoscope_{script.removesuffix('.js')}_{function}"
    return st.components.v2.component(name, js=_call(), isolate_styles=False)


def _call() -> str:
    """Calls the function that the name of a component says.

    It is one text for all of them: of each other one a browser makes a file of its own first, and a
    page has six. The script runs from that file, in which only whole addresses can be imported.
    """
    base = json.dumps(folder())
    # Several lines: Streamlit takes a single line for the path of a file.
    return f"""export default async (given) => {{
  const [, script, call] = given.name.split("_");
  return (await import(`${{location.origin}}${{{base}}}/${{script}}.js`))[call](given);
}};"""
