"""JSON beside the pages: how runs stand, and commands to them, as `echoscope ctl` sends them.

Nothing that a model or an environment wrote is in an answer, but for charts, which only pages ask
for: whoever reads it may be a program that takes text for orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from echoscope.store.records import CommandAction
from echoscope.store.status import RunStatus
from echoscope.store.steer.steering import MAX_AUTHOR, os_user, prepare, send, standing
from echoscope.text.strict_json import parsed_json

from ..data import queries
from ..live import pulses
from ..live.pulses import lines, pulse
from ..page.problems import Problem
from .gate import HEALTH_PATH
from .settings import settings

COMMAND_HEADER = "x-echoscope-command"
"""Whoever sends a command sets it to 1. A page of another site cannot, without being asked for."""
MAX_BODY = 65_536

Answer = tuple[int, dict[str, Any]]
"""Status and JSON."""


class _Refused(Exception):  # noqa: N818 -- an answer, not a failure
    def __init__(self, status: int, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.status, self.text, self.advice = status, text, advice


def routes() -> list[Route]:
    return [
        Route(HEALTH_PATH, _answering(lambda _: (200, {"status": "ok"})), methods=["GET"]),
        Route("/api/runs", _answering(_runs), methods=["GET"]),
        Route("/api/runs/{run_id}/status", _of_run(run_status), methods=["GET"]),
        Route("/api/runs/{run_id}/pulse", _of_run(_pulse), methods=["GET"]),
        Route("/api/runs/{run_id}/chart", _chart, methods=["GET"]),
        Route("/api/runs/{run_id}/tiles", _of_run(_tiles), methods=["GET"]),
        Route("/api/runs/{run_id}/commands", _command, methods=["POST"]),
        Route("/api/{path:path}", _answering(_unknown), methods=["GET", "POST"]),
    ]


def _answering(handler: Callable[[Request], Answer]) -> Callable[[Request], Response]:
    """JSON from a handler, its refusals included. Starlette calls it in a thread of its own."""

    def answer(request: Request) -> Response:
        return _json(lambda: handler(request))

    return answer


def _of_run(ask: Callable[[str], dict[str, Any]]) -> Callable[[Request], Response]:
    """JSON about one run."""
    return _answering(lambda request: (200, ask(request.path_params["run_id"])))


def _json(ask: Callable[[], Answer]) -> Response:
    try:
        status, value = ask()
    except _Refused as no:
        error = {"text": no.text, "advice": no.advice}
        return JSONResponse({"error": error}, status_code=no.status)
    except Problem as found:
        error = {"text": found.text, "advice": found.advice}
        return JSONResponse({"error": error}, status_code=404)
    out = {"as_of": time.time(), **value}
    return JSONResponse(out, status_code=status, headers={"cache-control": "no-store"})


def _unknown(request: Request) -> Answer:
    """Without this Streamlit answers what it does not know with the front page and 200."""
    known = ", ".join(route.path for route in routes()[:-1])
    shown = ascii(request.url.path[:200])
    raise _Refused(404, f"there is no address {shown} for {request.method}", f"There are: {known}")


def _runs(request: Request) -> Answer:
    pattern = request.query_params.get("filter", "")
    try:
        rows = queries.runs(pattern)
    except Problem as found:
        raise _Refused(400 if pattern else 404, found.text, found.advice) from found
    keys = ("run_id", "created_at", "ended_at", "updated_at", "last_step", "num_steps")
    readable = [row for row in rows if not row.problem]
    stands = [queries.row_status(row) for row in readable]
    return 200, {
        "runs": [
            {key: getattr(row, key) for key in keys} | status_fields(found)
            for row, found in zip(readable, stands, strict=True)
        ],
        "num_unreadable": sum(1 for row in rows if row.problem),
    }


def status_fields(stands: RunStatus) -> dict[str, Any]:
    """How a run stands, without the reason: people write those."""
    return {"status": stands.status.value, "status_by": stands.by, "status_since": stands.since}


def run_status(run_id: str) -> dict[str, Any]:
    """How a run stands, without any text that a model wrote.

    Raises:
        Problem: no such run, or it cannot be read.
    """
    info = queries.info(run_id)
    where = standing(info, queries.commands(run_id), queries.current_settings(run_id))
    verdict = queries.verdict(run_id)
    return {
        "run_id": run_id,
        **status_fields(pulses.status(run_id)),
        "is_paused": where.is_paused,
        "step": info.last_step,
        "steps": where.steps,
        "attempt": info.attempt,
        "num_commands_waiting": len(where.waiting),
        "verdict": {
            "state": verdict.state.value,
            "regime": verdict.regime.value,
            "kinds": list(verdict.kinds),
            "onset_step": verdict.onset_step,
            "last_step": verdict.last_step,
            "confidence": verdict.confidence,
        },
        "open_alarms": [
            {"alarm_id": a.alarm_id, "rule": a.rule, "severity": a.severity.value, "step": a.step}
            for a in queries.open_alarms(run_id)
        ],
    }


def _pulse(run_id: str) -> dict[str, Any]:
    """200 for a run that is gone, too: whoever looks at it is to be told, and not to see errors."""
    said = {name: asdict(line) for name, line in lines(run_id).items()}
    return {**pulse(run_id), "lines": said}


def _tiles(run_id: str) -> dict[str, Any]:
    from ..live import tiles  # with pandas and Streamlit: not when the server starts

    return tiles.answer(run_id)


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


async def _command(request: Request) -> Response:
    """A command, once it has arrived as a whole."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            break
    return await run_in_threadpool(_json, lambda: _commanded(request, body))


def _commanded(request: Request, body: bytes) -> Answer:
    if settings().is_read_only:
        raise _Refused(403, "this dashboard is read-only", "Start it without --read-only.")
    if request.headers.get(COMMAND_HEADER) != "1":
        raise _Refused(403, f"the header {COMMAND_HEADER}: 1 is missing")
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise _Refused(415, "the body must be application/json")
    return 202, _send(request.path_params["run_id"], _wish(body))


def _wish(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BODY:
        raise _Refused(413, f"the body has more than {MAX_BODY} bytes")
    try:
        value = parsed_json(body)
    except ValueError as error:
        raise _Refused(400, f"the body is not JSON ({error})") from error
    if not isinstance(value, dict) or not isinstance(value.get("settings", {}), dict):
        raise _Refused(400, "the body must be an object with action, settings and reason")
    if not isinstance(value.get("reason", ""), str):
        raise _Refused(400, "the reason must be text")
    return value


def _send(run_id: str, wish: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(wish) - {"action", "settings", "reason"})
    if unknown:
        raise _Refused(400, f"unknown fields {', '.join(map(ascii, unknown))}")
    path, info = queries.path_of(run_id), queries.info(run_id)
    try:
        action = CommandAction(wish.get("action", ""))
    except ValueError as error:
        raise _Refused(400, str(error), f"action: {', '.join(CommandAction)}") from error
    wanted = wish.get("settings", {})
    try:
        command = prepare(
            info, action, settings=wanted, issued_by=author(), reason=wish.get("reason", "")
        )
        send(path, command)
    except ValueError as error:
        status = 409 if info.status != "running" else 400
        raise _Refused(status, str(error)) from error
    return {"command_id": command.command_id, "action": command.action.value, "outcome": "sent"}


def author() -> str:
    """Who is named as the author of what this process writes."""
    return f"{os_user()} (dashboard)"[:MAX_AUTHOR]
