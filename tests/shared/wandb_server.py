"""A stand-in for W&B's server on this machine: it answers what wandb's public client asks of it."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(slots=True)
class WandbServer:
    """One run, `lab/ragen/lake0001`; every other one does not exist."""

    url: str = ""
    status: int = 200
    """Of every answer; not 200 refuses."""
    delay_s: float = 0.0
    body: bytes | None = None
    """Of every answer, instead of what was asked for."""
    state: str = "finished"
    rows: list[dict[str, Any]] = field(default_factory=list)
    pages: list[tuple[int, int]] = field(default_factory=list)
    """First and last step of each page that was asked for."""
    authorizations: set[str] = field(default_factory=set)

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        if "viewer" in query:
            teams = {"edges": []}
            viewer = {"id": "VXNl", "entity": "lab", "username": "me", "email": "me@lab"}
            data["viewer"] = viewer | {"flags": "{}", "teams": teams}
        if "project(" in query:
            name = variables.get("name") or variables.get("runName") or variables.get("run")
            run = self._run(variables) if name == "lake0001" else None
            data["project"] = {"run": run}
        return data

    def _run(self, variables: dict[str, Any]) -> dict[str, Any]:
        if "minStep" in variables:
            first, last = variables["minStep"], variables["maxStep"]
            self.pages.append((first, last))
            page = [row for row in self.rows if first <= row["_step"] < last]
            return {"history": [json.dumps(_json(row)) for row in page]}
        last_step = max((row["_step"] for row in self.rows), default=-1)
        return {
            "id": "UnVu",
            "projectId": "1",
            "name": "lake0001",
            "displayName": "lake",
            "state": self.state,
            "tags": [],
            "sweepName": None,
            "group": None,
            "jobType": None,
            "commit": None,
            "readOnly": False,
            "createdAt": "2026-01-01T00:00:00",
            "heartbeatAt": "2026-01-01T00:00:00",
            "description": "",
            "notes": "",
            "systemMetrics": "{}",
            "summaryMetrics": "{}",
            "config": '{"lr": {"value": 1e-6}}',
            "historyLineCount": len(self.rows),
            "user": {"name": "me", "username": "me"},
            "historyKeys": {"lastStep": last_step, "keys": {}, "sets": []},
            "parquetHistory": {"parquetUrls": [], "liveData": []},
        }


def _json(row: dict[str, Any]) -> dict[str, Any]:
    """W&B writes what is not finite as text."""
    return {
        key: "NaN" if isinstance(value, float) and math.isnan(value) else value
        for key, value in row.items()
    }


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    served = WandbServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(served.delay_s)
            answer: dict[str, Any] = {"errors": [{"message": "no such key"}]}
            if served.status == 200 and self.path == "/graphql":
                served.authorizations.add(self.headers.get("Authorization", ""))
                asked = json.loads(content)
                answer = {"data": served.answer(asked["query"], asked.get("variables") or {})}
            body = json.dumps(answer).encode() if served.body is None else served.body
            try:
                self.send_response(served.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                return  # whoever asked has not waited

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
