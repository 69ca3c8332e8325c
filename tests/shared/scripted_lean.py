"""A Kimina Lean Server and a Lean REPL that know some proofs by heart, and speak the real JSON.

The positions, severities and wordings are those of Lean's REPL; the proofs are those of the data
file that ships. Run as a program, it is `lake env repl`: one JSON command on the standard input,
then an empty line.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

THEOREMS = Path(__file__).parents[2] / "envs" / "data" / "theorems.jsonl"
_CODE = re.compile(
    r"(?P<header>.*?)(?P<statement>theorem .*?) := \(by\n(?P<tactics>.*)\n  \)\n\n"
    r"#print axioms (?P<name>\S+)\n",
    re.DOTALL,
)


def proofs() -> dict[str, list[str]]:
    """Statement -> the lines of its proof, a line a tactic's line."""
    rows = [json.loads(line) for line in THEOREMS.read_text(encoding="utf-8").splitlines()]
    return {row["formal_statement"].removesuffix(" := by"): row["proof"] for row in rows}


def message(severity: str, line: int, column: int, data: str) -> dict[str, Any]:
    """One message as the REPL writes it."""
    return {
        "severity": severity,
        "pos": {"line": line, "column": column},
        "endPos": {"line": line, "column": column + 2},
        "data": data,
    }


def respond(code: str) -> dict[str, Any]:
    """What the REPL says to a piece of code."""
    if code.startswith("example : True"):
        return {"env": 0}
    match = _CODE.fullmatch(code)
    if match is None:
        return {"env": 0, "messages": [message("error", 1, 0, "unexpected token")]}
    proof = proofs()[match["statement"]]
    given = [line[2:] for line in match["tactics"].split("\n")]
    by_line = match["header"].count("\n") + match["statement"].count("\n") + 1
    last_line = code.rstrip("\n").count("\n") + 1
    done = 0
    lines: list[str] = []
    while done < len(proof) and lines != given:
        lines += proof[done].split("\n")
        done += 1
    if given == ["skip"]:
        done, lines = 0, given
    column = len(match["statement"].rpartition("\n")[2]) + 5
    name = match["name"]
    if lines != given:
        before, _, word = given[-1].rpartition(" ")
        start_column = 3 + len(before) if before else 2
        text = f"Unknown identifier `{word[:30]}`"
        wrong = message("error", by_line + len(given), start_column, text)
        report = message("info", last_line, 0, f"'{name}' depends on axioms: [sorryAx]")
        return {"env": 1, "messages": [wrong, report]}
    if done < len(proof):
        open_goals = f"unsolved goals\nstep : {done}\n⊢ {len(proof) - done} to go"
        return {
            "env": 1,
            "messages": [
                message("error", by_line, column, open_goals),
                message("info", last_line, 0, f"'{name}' depends on axioms: [sorryAx]"),
            ],
        }
    text = f"'{name}' does not depend on any axioms"
    return {"env": 1, "messages": [message("info", last_line, 0, text)]}


class Kimina(ThreadingHTTPServer):
    """A server on loopback. `trouble` may answer a request instead: it gets the handler."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.trouble: Callable[[Any], bool] | None = None
        self.respond = respond

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Kimina

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, content, dict(self.headers)))
        if self.server.trouble is not None and self.server.trouble(self):
            return
        if self.path == "/api/check":
            (snippet,) = content["snippets"]
            response = self.server.respond(snippet["code"])
            result = {"id": snippet["id"], "time": 0.01, "response": response}
        else:
            self.send_error(404)
            return
        self.reply({"results": [result]})

    def reply(self, content: Any, status: int = 200) -> None:
        """Answer with JSON, or with text as it is."""
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def kimina() -> Iterator[Kimina]:
    """A running server."""
    server = Kimina()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def repl() -> None:
    """The REPL: answers each command; some words make it hang, die or write nonsense."""
    command: list[str] = []
    for line in sys.stdin:
        if line.strip():
            command.append(line)
            continue
        code = json.loads("".join(command))["cmd"]
        command.clear()
        if "hang" in code:
            time.sleep(60)
        if "die" in code:
            sys.exit(1)
        if "nonsense" in code:
            sys.stdout.write("what?\n\n")
        elif code.startswith("import"):
            sys.stdout.write('{"env": 7}\n\n')
        else:
            sys.stdout.write(json.dumps(respond(code)) + "\n\n")
        sys.stdout.flush()


if __name__ == "__main__":
    repl()
