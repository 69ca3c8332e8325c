"""JSON beside the pages: which runs there are, and what open pages ask for as a run goes on.

Nothing that a model or an environment wrote is in an answer, but for charts, which only pages ask
for: whoever reads it may be a program that takes text for orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ..data import queries
from ..live.pulses import lines, pulse
from ..page.links import FRONT_PAGE
from ..page.problems import Problem
from .gate import HEALTH_PATH

Answer = dict[str, Any]


def routes() -> list[Route]:
    return [
        Route(HEALTH_PATH, _answering(lambda _: {"status": "ok"}), methods=["GET"]),
        Route("/api/runs", _answering(_runs), methods=["GET"]),
        Route("/api/runs/{run_id}/pulse", _answering(_pulse), methods=["GET"]),
        Route("/api/runs/{run_id}/tiles", _answering(_tiles), methods=["GET"]),
        Route("/api/runs/{run_id}/chart", _chart, methods=["GET"]),
        Route("/api/{path:path}", _answering(_unknown), methods=["GET", "POST"]),
        Route(f"/{FRONT_PAGE}", _front, methods=["GET"]),
    ]


def _answering(handler: Callable[[Request], Answer]) -> Callable[[Request], Response]:
    """JSON from a handler, its refusals included. Starlette calls it in a thread of its own."""

    def answer(request: Request) -> Response:
        try:
            value = handler(request)
        except Problem as trouble:
            error = {"text": trouble.text, "advice": trouble.advice}
            return JSONResponse({"error": error}, status_code=404)
        out = {"as_of": time.time(), **value}
        return JSONResponse(out, headers={"cache-control": "no-store"})

    return answer


def _unknown(request: Request) -> Answer:
    """Without this Streamlit answers what it does not know with the front page and 200."""
    addresses = ", ".join(route.path for route in routes()[:-2])
    address = ascii(request.url.path[:200])
    raise Problem(f"there is no address {address} for {request.method}", f"There are: {addresses}")


def _front(request: Request) -> RedirectResponse:
    """Streamlit knows the front page by no other name than /."""
    query = request.url.query
    return RedirectResponse(f"/?{query}" if query else "/", status_code=307)


def _runs(request: Request) -> Answer:
    """Every run without any text that people wrote."""
    rows = queries.runs()
    keys = ("run_id", "created_at", "ended_at", "updated_at", "last_step", "num_steps")
    readable = [row for row in rows if not row.problem]
    return {
        "runs": [
            {key: getattr(row, key) for key in keys}
            | {"status": queries.row_status(row).status.value}
            for row in readable
        ],
        "num_unreadable": len(rows) - len(readable),
    }


def _pulse(request: Request) -> Answer:
    """200 for a run that is gone, too: whoever looks at it is to be told, and not to see errors."""
    run_id = request.path_params["run_id"]
    texts = {name: asdict(line) for name, line in lines(run_id).items()}
    return {**pulse(run_id), "lines": texts}


def _tiles(request: Request) -> Answer:
    from ..live import tiles  # with pandas and Streamlit: not when the server starts

    return tiles.answer(request.path_params["run_id"])


def _chart(request: Request) -> Response:
    """A chart of a live run as it is now; 204 where there is none, which is no error to show."""
    # With plotly, which takes a while: not when the server starts.
    from ..charts import live as live_charts

    name, controls = live_charts.from_query(request.query_params)
    try:
        page = live_charts.snapshot(request.path_params["run_id"], controls, is_followed=True)
        body = live_charts.sent(page, name)
    except Problem:
        return Response(status_code=204)
    return Response(body, media_type="text/plain", headers={"cache-control": "no-store"})
