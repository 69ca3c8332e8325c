"""The same sessions at OpenEnv's addresses, in its JSON shapes: `/reset`, `/step`, `/state`, `/ws`.

Over HTTP an episode is named by `episode_id`, or is the one that was begun without a name. Over a
web socket each connection has an episode of its own, as OpenEnv's own client expects. An action is
`{"text": "up"}`. Shapes: OpenEnv's `core/env_server/types.py` (meta-pytorch/OpenEnv).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from .protocol import VERSION, ProtocolError, decoded, encoded, quoted
from .sessions import Answer, Content, RefusedError, Session, Sessions

_MAX_NAME = 255
_TEXT = {"type": "string"}


def _schema(title: str, required: str, **properties: Any) -> Mapping[str, Any]:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": [required],
    }


SCHEMAS: Mapping[str, Any] = {
    "action": _schema("TextAction", "text", text=_TEXT, metadata={"type": "object"}),
    "observation": _schema(
        "TextObservation",
        "text",
        text=_TEXT,
        view={"type": ["string", "null"]},
        messages={"type": "array", "items": {"type": "object"}},
        legal_actions={"type": "array", "items": _TEXT},
    ),
    "state": _schema(
        "State",
        "step_count",
        episode_id={"type": ["string", "null"]},
        step_count={"type": "integer", "minimum": 0},
        task_key=_TEXT,
    ),
}
"""JSON Schemas of an action, an observation and the state."""


class OpenEnv:
    """OpenEnv's calls, carried out on sessions: each named episode has a session of its own."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._session_of: dict[str, str] = {}

    async def reset(self, content: Content) -> Answer:
        """`{seed, episode_id}`, and of our own `noise_seed`, `env` and `params`."""
        name = _name_of(content)
        seed = content.get("seed")
        drawn = {
            "seed": secrets.randbelow(2**62) if seed is None else seed,
            "noise_seed": content.get("noise_seed", 0),
        }
        if "env" in content or "params" in content:
            await self._leave(name)
        self._session_of = {n: s for n, s in self._session_of.items() if self._sessions.has(s)}
        if name not in self._session_of:
            opening = {key: content[key] for key in ("env", "params") if key in content}
            opened = await self._sessions.open({**opening, "protocol": VERSION})
            self._session_of[name] = opened["session"]
        session = self._sessions.session(self._session_of[name])
        request = {**drawn, "episode": session.episode + 1}
        answer = await self._sessions.call(session.id, "reset", request)
        observation = {**_observed(answer), "instructions": answer["instructions"]}
        metadata = {"episode_id": name, "task_key": answer["task_key"], **drawn}
        return {"observation": observation, "reward": None, "done": False, "metadata": metadata}

    async def step(self, content: Content) -> Answer:
        """`{action: {text}, episode_id}`."""
        action = content.get("action")
        if not isinstance(action, dict) or not isinstance(action.get("text"), str):
            raise ProtocolError(f"action is {quoted(action)}, but must be an object with a text")
        session = self._running(content)
        request = {
            "episode": session.episode,
            "number": session.num_steps + 1,
            "action": action["text"],
        }
        answer = await self._sessions.call(session.id, "step", request)
        result = answer["result"]
        return {
            "observation": _observed({**answer, "observation": result["observation"]}),
            "reward": result["reward"],
            "done": result["terminated"],
            "metadata": {
                key: result[key] for key in ("success", "is_valid", "is_effective", "info")
            },
        }

    def state(self, content: Content) -> Answer:
        """`{episode_id, step_count, task_key}`."""
        session = self._running(content)
        return {
            "episode_id": _name_of(content),
            "step_count": session.num_steps,
            "task_key": session.task_key,
        }

    def metadata(self) -> Answer:
        """What is served."""
        served = self._sessions.environments()
        return {
            "name": ", ".join(each["id"] for each in served),
            "description": " ".join(each["description"] for each in served),
        }

    async def talk(self, socket: WebSocket) -> None:
        """A web socket: one episode after another, until either side leaves."""
        await socket.accept()
        name = f"socket-{secrets.token_hex(8)}"
        try:
            while True:
                answer = await self._answered(await socket.receive_text(), name)
                if answer is None:
                    await socket.close()
                    return
                await socket.send_text(encoded(answer).decode("ascii"))
        except (WebSocketDisconnect, KeyError):  # KeyError: bytes where text is expected
            return
        finally:
            await self._leave(name)

    async def _answered(self, message: str, name: str) -> Answer | None:
        """The answer to one message; None where the client takes leave."""
        try:
            content = decoded(message.encode("utf-8", "surrogatepass"))
            kind, data = content.get("type"), content.get("data", {})
            if not isinstance(data, dict):
                raise ProtocolError(f"data is {quoted(data)}, but must be an object")
            match kind:
                case "reset":
                    answer = await self.reset({**data, "episode_id": name})
                    return {"type": "observation", "data": answer}
                case "step":
                    answer = await self.step({"action": data, "episode_id": name})
                    return {"type": "observation", "data": answer}
                case "state":
                    return {"type": "state", "data": self.state({"episode_id": name})}
                case "close":
                    return None
            raise ProtocolError(f"type is {quoted(kind)}, but must be reset, step, state or close")
        except ProtocolError as error:
            code, reason = "VALIDATION_ERROR", str(error)
        except RefusedError as error:
            codes = {"full": "CAPACITY_REACHED", "env_error": "EXECUTION_ERROR"}
            code, reason = codes.get(error.kind, "SESSION_ERROR"), str(error)
        return {"type": "error", "data": {"message": reason, "code": code}}

    def _running(self, content: Content) -> Session:
        name = _name_of(content)
        session = self._session_of.get(name, "")
        if not self._sessions.has(session):
            raise RefusedError(
                409, "order", f"no episode {name!r} runs: POST /reset first (or it has expired)"
            )
        return self._sessions.session(session)

    async def _leave(self, name: str) -> None:
        await self._sessions.close(self._session_of.pop(name, ""))


def _observed(answer: Answer) -> Answer:
    """What the policy may read. The frame shows people more, so it stays here."""
    observation = {key: value for key, value in answer["observation"].items() if key != "frame"}
    return {**observation, "legal_actions": answer["legal_actions"]}


def _name_of(content: Content) -> str:
    name = content.get("episode_id")
    if name is None:
        return "default"
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise ProtocolError(
            f"episode_id is {quoted(name)}, but must be text of at most {_MAX_NAME} characters"
        )
    return name
