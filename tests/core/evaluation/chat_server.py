"""A server on the loopback that speaks OpenAI's and Anthropic's protocols for the shipped policy.

It replies greedily, so whoever asks it plays as the policy itself does at temperature 0. It fails
as it is told to.
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

import numpy as np
from generating import generate

from echoscope.core.config.loading import load_config
from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.build import build_engine
from echoscope.core.evaluation.who import load, resolve
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.chat import load_chat
from echoscope.text.replies import THINK_OPEN

Fault = Callable[[int], str]
"""What happens to the request of this number: "", "500", "429", "stall", "half" or "usage"."""


@dataclass
class ChatServer:
    """The server, and what it was asked."""

    fault: Fault = lambda number: ""
    num_requests: int = 0
    num_answered: int = 0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def __post_init__(self) -> None:
        config = load_config("frozen_lake")
        self._engine = build_engine(config, load(resolve("tiny"), config))
        self._chat = load_chat(resolve_model("tiny"))

    def reply(self, messages: list[dict[str, Any]], max_tokens: int) -> tuple[str, int, int, bool]:
        """The policy's words after these messages, tokens in and out, and whether it was cut."""
        text = self._chat.tokenizer.apply_chat_template(
            [{"role": m["role"], "content": _text(m["content"])} for m in messages],
            tokenize=False,
            add_generation_prompt=True,
        )
        prompt = np.array(self._chat.encode_template(str(text) + THINK_OPEN), np.int32)
        params = SamplingParams(
            max_new_tokens=max_tokens,
            temperature=0.0,
            stop_token_ids=self._chat.stop_token_ids,
        )
        (sample,) = generate(self._engine, [prompt], params, seeds=[0])
        sampled_text, _ = self._chat.decode_response(sample.tokens)
        is_cut = int(sample.tokens[-1]) not in self._chat.stop_token_ids
        return THINK_OPEN + sampled_text, len(prompt), len(sample.tokens), is_cut


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@contextmanager
def serving(fault: Fault = lambda number: "") -> Iterator[ChatServer]:
    """The server while the block runs; its paths are /v1/chat/completions and /v1/messages."""
    state = ChatServer(fault)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with state.lock:
                state.num_requests += 1
                fault = state.fault(state.num_requests)
            if fault in ("500", "429"):
                self._answer(int(fault), {"error": {"message": "try again", "type": "server"}})
                return
            if fault == "stall":
                time.sleep(8)
                self.close_connection = True
                return
            with state.lock:
                text, num_in, num_out, is_cut = state.reply(_messages(asked), asked["max_tokens"])
                state.num_answered += 1
                state.num_input_tokens += num_in
                state.num_output_tokens += num_out
            if fault == "usage":
                num_in, num_out = -1, -7
            body = _anthropic if self.path.endswith("messages") else _openai
            self._answer(200, body(text, num_in, num_out, is_cut), is_half=fault == "half")

        def _answer(self, status: int, body: dict[str, Any], *, is_half: bool = False) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if is_half else data)
            self.close_connection |= is_half

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def _messages(asked: dict[str, Any]) -> list[dict[str, Any]]:
    system = asked.get("system")
    return ([{"role": "system", "content": system}] if system else []) + list(asked["messages"])


def _openai(text: str, num_in: int, num_out: int, is_cut: bool) -> dict[str, Any]:
    return {
        "id": "reply",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "length" if is_cut else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": num_in,
            "completion_tokens": num_out,
            "total_tokens": num_in + num_out,
        },
    }


def _anthropic(text: str, num_in: int, num_out: int, is_cut: bool) -> dict[str, Any]:
    return {
        "id": "msg_reply",
        "type": "message",
        "role": "assistant",
        "model": "claude-tiny",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "max_tokens" if is_cut else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": num_in, "output_tokens": num_out},
    }
