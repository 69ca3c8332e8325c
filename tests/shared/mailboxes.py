"""Loopback servers that take messages: webhooks that answer by a script, and a mail server."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from costs import HANG_S


@dataclass(slots=True)
class Mailbox:
    """What came in, and what is answered: statuses in turn, the last one for ever."""

    url: str = ""
    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [200])
    headers: dict[str, str] = field(default_factory=dict)
    is_open: threading.Event = field(default_factory=threading.Event)
    """Until it is set (it is unless a test clears it) nothing is answered."""
    bodies: list[Any] = field(default_factory=list)
    mails: list[str] = field(default_factory=list)

    def wait_for(self, number: int) -> None:
        """Until so many messages have come."""
        deadline = time.monotonic() + HANG_S
        while len(self.bodies) + len(self.mails) < number:
            assert time.monotonic() < deadline, f"{len(self.bodies)} of {number} messages came"
            time.sleep(0.005)


@contextmanager
def webhook() -> Iterator[Mailbox]:
    box = Mailbox()
    box.is_open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = box.statuses.pop(0) if len(box.statuses) > 1 else box.statuses[0]
            box.is_open.wait(HANG_S)
            box.bodies.append(content)
            try:
                self.send_response(status)
                for name, value in box.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"" if status == 200 else b"no\x1b[31m such <hook>\n")
            except OSError:
                pass  # whoever asked has not waited

        def do_GET(self) -> None:
            box.bodies.append("GET")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        box.port = server.server_port
        box.url = f"http://127.0.0.1:{box.port}/hook/secret"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield box
        server.shutdown()


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    """SMTP without TLS and login, as RFC 5321 says it."""
    box = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 ready")
            while line := self.rfile.readline().decode().strip():
                verb = line.split()[0].upper()
                if verb == "DATA":
                    self._say("354 go on")
                    text = b""
                    while (part := self.rfile.readline()) != b".\r\n":
                        text += part
                    box.mails.append(text.decode())
                self._say("221 bye" if verb == "QUIT" else "250 ok")
                if verb == "QUIT":
                    return

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        box.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield box
        server.shutdown()
