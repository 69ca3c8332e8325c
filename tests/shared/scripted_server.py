"""A loopback server that answers sampling requests as a script says: well, wrongly, or not at all.

The honest answer to a request is a hash of its prompt and seed, so it can be checked anywhere.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCAB_SIZE = 97
Body = dict[str, Any]
Answer = Callable[[Body], Any]


def tokens_of(prompt: list[int], seed: int, number: int) -> list[int]:
    """What the honest server samples."""
    return [(sum(prompt) * 31 + seed * 17 + index * 7) % VOCAB_SIZE for index in range(number)]


def honest(body: Body) -> Body:
    """A completion as vLLM answers it."""
    tokens = tokens_of(body["prompt"], body["seed"], body["max_tokens"])
    ends = [i for i, token in enumerate(tokens) if token in body["stop_token_ids"]]
    tokens = tokens[: ends[0] + 1] if ends else tokens
    return {
        "choices": [
            {
                "token_ids": tokens,
                "prompt_token_ids": body["prompt"],
                "finish_reason": "stop" if ends else "length",
                "logprobs": {
                    "token_logprobs": [-0.5] * len(tokens),
                    "top_logprobs": [
                        {f"token_id:{token}": -0.5, "token_id:96": -0.9, "token_id:95": -9999.0}
                        for token in tokens
                    ],
                },
            }
        ]
    }


def reloaded(body: Body) -> Any:
    """What vLLM's worker answers to new weights: the version that it was sent."""
    return {"results": [body["args"][1]]}


@dataclass(slots=True)
class Script:
    """What the server does: `answers` in turn, the last one for ever; and what it was asked."""

    answers: list[Answer] = field(default_factory=lambda: [honest])
    asked: list[tuple[str, Body]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    other: dict[str, Any] = field(default_factory=dict)
    """Path to answer, or to a function of the body, besides the completions."""

    def next_answer(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class StatusError(Exception):
    """Answer with this status and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def status(code: int, text: str = "broken") -> Answer:
    def answer(body: Body) -> Any:
        raise StatusError(code, text)

    return answer


def hang(seconds: float) -> Answer:
    def answer(body: Body) -> Any:
        time.sleep(seconds)
        return honest(body)

    return answer


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The url of a server that follows the script."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.answer(json.loads(text or b"{}"))

        def answer(self, body: Body) -> None:
            with script.lock:
                script.asked.append((self.path, body))
                answers = self.path in ("/v1/completions", "/generate")
                answer = script.next_answer() if answers else None
            try:
                answered = answer or script.other[self.path]
                answered = answered(body) if callable(answered) else answered
                code, text = 200, answered if isinstance(answered, str) else json.dumps(answered)
            except StatusError as wanted:
                code, text = wanted.code, wanted.text
            except KeyError:
                code, text = 404, f"no {self.path}"
            if text == "hang up":
                self.close_connection = True
                self.connection.close()
                return
            try:
                self.send_response(code)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())
            except OSError:
                return  # who asked has gone

        def log_message(self, *args: Any) -> None: ...

    script.other.setdefault("/v1/models", {"data": [{"id": "served"}]})
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
