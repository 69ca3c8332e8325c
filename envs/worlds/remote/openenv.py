"""The same sessions at OpenEnv's addresses, in its JSON shapes: `/reset`, `/step`, `/state`, `/ws`.

Over HTTP an episode is named by `episode_id`, or is the one that was begun without a name. Over a
web socket each connection has an episode of its own, as OpenEnv's own client expects. An action is
`{"text": "up"}`. Shapes: OpenEnv's `core/env_server/types.py` (meta-pytorch/OpenEnv).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from .protocol import VERSION, ProtocolError, decoded, encoded, object_of, shown, text_of
from .sessions import Answer, Content, RefusedError, Sessions

_MAX_NAME = 255
ACTION_SCHEMA: Mapping[str, Any] = {
    "title": "TextAction",
    "type": "object",
    "properties": {"text": {"type": "string"}, "metadata": {"type": "object"}},
    "required": ["text"],
}
OBSERVATION_SCHEMA: Mapping[str, Any] = {
    "title": "TextObservation",
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "view": {"type": ["string", "null"]},
        "messages": {"type": "array", "items": {"type": "object"}},
        "legal_actions": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["text"],
}
STATE_SCHEMA: Mapping[str, Any] = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "task_key": {"type": "string"},
    },
    "required": ["step_count"],
}


@dataclass(slots=True)
class _Episode:
    session: str = ""
    number: int = 0
    num_steps: int = 0
    task_key: str = ""


class OpenEnv:
    """OpenEnv's calls, carried out on sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._episodes: dict[str, _Episode] = {}

    async def reset(self, content: Content) -> Answer:
        """`{seed, episode_id}`, and of our own `noise_seed`, `env` and `params`."""
        name = _name_of(content)
        await self._forget_expired()
        episode = self._episodes.setdefault(name, _Episode())
        seed = content.get("seed")
        asked = {
            "seed": secrets.randbelow(2**62) if seed is None else seed,
            "noise_seed": content.get("noise_seed", 0),
        }
        if "env" in content or "params" in content:
            await self._leave(episode)
        if not self._sessions.has(episode.session):
            opening = {key: content[key] for key in ("env", "params") if key in content}
            opening["protocol"] = VERSION
            try:
                opened = await self._sessions.open(opening)
            except RefusedError:
                del self._episodes[name]
                raise
            episode.session, episode.number = opened["session"], 0
        episode.number += 1
        answer = await self._sessions.call(
            episode.session, "reset", {**asked, "episode": episode.number}
        )
        episode.num_steps, episode.task_key = 0, answer["task_key"]
        observation = {**_observed(answer), "instructions": answer["instructions"]}
        metadata = {"episode_id": name, "task_key": episode.task_key, **asked}
        return {"observation": observation, "reward": None, "done": False, "metadata": metadata}

    async def step(self, content: Content) -> Answer:
        """`{action: {text}, episode_id}`."""
        action = text_of(object_of(content, "action"), "text")
        episode = self._running(content)
        answer = await self._sessions.call(
            episode.session,
            "step",
            {"episode": episode.number, "number": episode.num_steps + 1, "action": action},
        )
        episode.num_steps += 1
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
        episode = self._running(content)
        return {
            "episode_id": _name_of(content),
            "step_count": episode.num_steps,
            "task_key": episode.task_key,
        }

    def metadata(self) -> Answer:
        """What is served."""
        served = self._sessions.environments()
        return {
            "name": ", ".join(each["id"] for each in served),
            "description": " ".join(each["description"] for each in served),
        }

    def schema(self) -> Answer:
        """JSON Schemas of an action, an observation and the state."""
        return {
            "action": dict(ACTION_SCHEMA),
            "observation": dict(OBSERVATION_SCHEMA),
            "state": dict(STATE_SCHEMA),
        }

    async def talk(self, socket: WebSocket) -> None:
        """A web socket: one episode after another, until either side leaves."""
        await socket.accept()
        name = f"socket-{secrets.token_hex(8)}"
        try:
            while True:
                said = await socket.receive_text()
                answer = await self._answered(said, name)
                if answer is None:
                    await socket.close()
                    return
                await socket.send_text(encoded(answer).decode("ascii"))
        except (WebSocketDisconnect, KeyError):  # KeyError: bytes where text is expected
            return
        finally:
            episode = self._episodes.pop(name, None)
            if episode is not None:
                await self._leave(episode)

    async def _answered(self, said: str, name: str) -> Answer | None:
        """The answer to one message; None where the client takes leave."""
        try:
            message = decoded(said.encode("utf-8", "surrogatepass"))
            kind, data = message.get("type"), message.get("data", {})
            if not isinstance(data, dict):
                raise ProtocolError(f"data is {shown(data)}, but must be an object")
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
            raise ProtocolError(f"type is {shown(kind)}, but must be reset, step, state or close")
        except ProtocolError as error:
            return _socket_error("VALIDATION_ERROR", str(error))
        except RefusedError as error:
            code = {"full": "CAPACITY_REACHED", "env_error": "EXECUTION_ERROR"}.get(error.kind)
            return _socket_error(code or "SESSION_ERROR", str(error))

    def _running(self, content: Content) -> _Episode:
        name = _name_of(content)
        episode = self._episodes.get(name)
        if episode is None or not self._sessions.has(episode.session):
            raise RefusedError(
                409, "order", f"no episode {name!r} runs: POST /reset first (or it has expired)"
            )
        return episode

    async def _leave(self, episode: _Episode) -> None:
        session, episode.session = episode.session, ""
        await self._sessions.close(session)

    async def _forget_expired(self) -> None:
        gone = [
            name
            for name, episode in self._episodes.items()
            if episode.session and not self._sessions.has(episode.session)
        ]
        for name in gone:
            del self._episodes[name]


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
            f"episode_id is {shown(name)}, but must be text of at most {_MAX_NAME} characters"
        )
    return name


def _socket_error(code: str, message: str) -> Answer:
    return {"type": "error", "data": {"message": message, "code": code}}
