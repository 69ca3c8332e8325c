"""The server's sessions: each is one world, played by one client, until it expires.

A request may come twice, because its answer was lost. So the last reset and the last step of a
session are answered from memory when they are repeated, and never played twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from echoscope.text.did_you_mean import did_you_mean

from ... import registry
from ...base import (
    EnvError,
    EnvParamsError,
    EnvUnavailableError,
    TextEnv,
    checked_opening,
    checked_text,
    hash_task,
    shorten,
)
from .call_threads import CallThreads, HangingCallsError
from .protocol import (
    VERSION,
    ProtocolError,
    integer_of,
    object_of,
    read_action,
    shown,
    text_of,
    write_observation,
    write_result,
    write_tool,
)

Content = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A world that is served, with parameters that differ from its defaults."""

    id: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the clients of a server may take.

    `max_sessions`: at once. `idle_s`: seconds without a request after which a session ends.
    `call_s`: seconds of one call into a world. `max_calls`: calls into worlds at once.
    `has_client_params`: clients may set parameters; otherwise a world has those it is served with.
    """

    max_sessions: int = 1024
    idle_s: float = 1800.0
    call_s: float = 60.0
    max_calls: int = 32
    has_client_params: bool = False

    def __post_init__(self) -> None:
        for name in ("max_sessions", "idle_s", "call_s", "max_calls"):
            if not 0 < getattr(self, name) <= 1e6:
                raise EnvParamsError(
                    f"{name} is {getattr(self, name)}, but must lie above 0 and at most at 1000000"
                )


class RefusedError(Exception):
    """A request that is answered with an error: HTTP status, kind, one sentence."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind

    def content(self) -> Answer:
        """The answer's body."""
        return {"error": {"kind": self.kind, "message": shorten(str(self), 400)}}


class Session:
    """One world and where its episode stands. Its methods are called one at a time."""

    def __init__(self, env: TextEnv) -> None:
        self.id = secrets.token_hex(16)
        self.lock = asyncio.Lock()
        self.last_used_s = time.monotonic()
        self.is_closed = False
        self._env = env
        self._episode = 0
        self._num_steps = 0
        self._asked: tuple[Any, ...] = ()
        self._answer: Answer = {}
        self.num_repeated = 0
        """Requests that were answered from memory."""

    def opened(self) -> Answer:
        """What a client learns at first."""
        env = self._env
        return {
            "protocol": VERSION,
            "session": self.id,
            "env": env.spec.id,
            "tools": [write_tool(tool) for tool in env.tools()],
            "num_tasks": env.num_tasks,
            "has_own_notice": type(env).invalid_notice is not TextEnv.invalid_notice,
            "instructions": checked_text("instructions", env.instructions()),
            "max_turns": env.spec.max_turns,
            "max_actions_per_turn": env.spec.max_actions_per_turn,
            **self._state(),
        }

    def reset(self, content: Content) -> Answer:
        """Start the episode that the client numbers; a repeated one is not started again."""
        episode = integer_of(content, "episode", least=1)
        seed, noise_seed = integer_of(content, "seed"), integer_of(content, "noise_seed")
        asked = ("reset", episode, seed, noise_seed)
        if asked == self._asked:
            self.num_repeated += 1
            return self._answer
        if episode <= self._episode:
            raise RefusedError(
                409, "order", f"episode {episode} is over: number {self._episode} has begun"
            )
        first = checked_opening(self._env.reset(seed, noise_seed))
        key = self._env.task_key()
        self._episode, self._num_steps = episode, 0
        return self._remember(
            asked,
            {
                "episode": episode,
                "observation": write_observation(first),
                "task_key": hash_task(self._env.spec.id, first.text) if key is None else key,
                "instructions": checked_text("instructions", self._env.instructions()),
                **self._state(),
            },
        )

    def step(self, content: Content) -> Answer:
        """Play the next action; the last one, asked for again, is not played again."""
        number = integer_of(content, "number", least=1)
        action = read_action(content)
        self._check_episode(content)
        asked = ("step", number, action)
        if asked == self._asked:
            self.num_repeated += 1
            return self._answer
        if number != self._num_steps + 1:
            raise RefusedError(
                409, "order", f"step {number} was asked for after step {self._num_steps}"
            )
        result = self._env.step(action)
        self._num_steps = number
        return self._remember(
            asked, {"number": number, "result": write_result(result), **self._state()}
        )

    def solve(self, content: Content) -> Answer:
        """The expert's actions from here."""
        self._check_episode(content)
        return {"actions": self._env.solve()}

    def guesses(self, content: Content) -> Answer:
        """Actions of a player who guesses."""
        self._check_episode(content)
        return {"actions": list(self._env.guesses())}

    def notice(self, content: Content) -> Answer:
        """What an observation begins with after an invalid action."""
        self._check_episode(content)
        return {"notice": self._env.invalid_notice(read_action(content))}

    def close(self) -> None:
        """Close the world; one that fails even there is left alone."""
        with contextlib.suppress(Exception):
            self._env.close()

    def _check_episode(self, content: Content) -> None:
        episode = integer_of(content, "episode")
        if episode != self._episode:
            raise RefusedError(
                409, "order", f"episode {episode} is not the one that runs, {self._episode}"
            )

    def _state(self) -> Answer:
        return {
            "legal_actions": list(self._env.legal_actions()),
            "reports_success": self._env.reports_success,
        }

    def _remember(self, asked: tuple[Any, ...], answer: Answer) -> Answer:
        self._asked, self._answer = asked, answer
        return answer


VERBS: Mapping[str, Callable[[Session, Content], Answer]] = {
    "reset": Session.reset,
    "step": Session.step,
    "solve": Session.solve,
    "guesses": Session.guesses,
    "notice": Session.notice,
}
_UNSAID = "there is no protocol, and"
MAX_BATCH = 1024
"""Calls in one batch."""


class Sessions:
    """All sessions of a server. Lives in one event loop.

    Args:
        served: what clients may play.
    """

    def __init__(self, served: Sequence[Served], limits: Limits) -> None:
        self._served = {each.id: each for each in served}
        self._limits = limits
        self._threads = CallThreads(limits.max_calls)
        self._sessions: dict[str, Session] = {}
        self._num_opening = 0
        self._counts: Counter[str] = Counter()
        self._num_timed, self._call_s = 0, 0.0
        self._started_s = time.monotonic()

    def environments(self) -> list[Answer]:
        """What is served, with the limits that each world is made for."""
        out = []
        for env_id, served in self._served.items():
            spec = registry.spec(env_id)
            out.append(
                {
                    "id": env_id,
                    "description": spec.description,
                    "params": dict(served.params),
                    "max_turns": spec.max_turns,
                    "max_actions_per_turn": spec.max_actions_per_turn,
                }
            )
        return out

    def metrics(self) -> Answer:
        """Numbers since the start."""
        mean_s = self._call_s / self._num_timed if self._num_timed else None
        return {
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "sessions": len(self._sessions),
            "max_sessions": self._limits.max_sessions,
            "hanging_calls": self._threads.num_hanging,
            "mean_call_ms": None if mean_s is None else round(1000 * mean_s, 3),
            **{
                name: self._counts[name]
                for name in (
                    *("opened", "expired", "calls", "resets", "steps", "repeated"),
                    *("refused", "failed", "timed_out"),
                )
            },
        }

    async def open(self, content: Content) -> Answer:
        """A new session."""
        protocol = content.get("protocol")
        if protocol != VERSION:
            said = f"protocol is {shown(protocol)}, but" if "protocol" in content else _UNSAID
            raise RefusedError(400, "protocol", f"{said} this server has {VERSION}")
        env_id, params = self._wanted(content)
        await self.expire()
        if len(self._sessions) + self._num_opening >= self._limits.max_sessions:
            raise RefusedError(
                503,
                "full",
                f"all {self._limits.max_sessions} sessions are taken: raise --max-sessions, or "
                f"wait until idle ones expire after {self._limits.idle_s:g} s",
            )
        self._num_opening += 1
        try:
            session = await self._run(lambda: Session(registry.make(env_id, **params)))
            answer: Answer = await self._run(session.opened)
        except EnvParamsError as error:
            raise RefusedError(400, "params", str(error)) from None
        except EnvUnavailableError as error:
            raise RefusedError(503, "unavailable", str(error)) from None
        except TimeoutError:
            raise self._too_slow(f"opening {env_id}") from None
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - a world that fails is told, and is data there
            raise self._failed(error) from None
        finally:
            self._num_opening -= 1
        self._sessions[session.id] = session
        self._counts["opened"] += 1
        return answer

    async def call(self, session_id: str, verb: str, content: Content) -> Answer:
        """Carry out one of `VERBS` in a session."""
        session = self._sessions.get(session_id)
        if session is None:
            raise _unknown(session_id)
        async with session.lock:
            if session.is_closed:
                raise _unknown(session_id)
            repeated = session.num_repeated
            try:
                answer: Answer = await self._run(partial(VERBS[verb], session, content))
            except ProtocolError as error:
                raise RefusedError(400, "bad_request", str(error)) from None
            except TimeoutError:
                self._forget(session)
                raise self._too_slow(verb) from None
            except RefusedError:
                raise
            except Exception as error:  # noqa: BLE001 - see open
                self._forget(session)
                await self._close(session)
                raise self._failed(error) from None
            finally:
                session.last_used_s = time.monotonic()
            self._counts["repeated"] += session.num_repeated - repeated
            self._counts[f"{verb}s"] += session.num_repeated == repeated
            return answer

    async def batch(self, content: Content) -> Answer:
        """Many calls at once; each has an answer or an error, in their order."""
        calls = content.get("calls")
        if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_BATCH:
            raise RefusedError(
                400, "bad_request", f"calls must be a list of 1 to {MAX_BATCH} objects"
            )
        return {"answers": await asyncio.gather(*map(self._one_of_batch, calls))}

    async def _one_of_batch(self, call: Any) -> Answer:
        try:
            if not isinstance(call, dict):
                raise ProtocolError(f"a call is {shown(call)}, but must be an object")
            verb = text_of(call, "verb")
            if verb not in VERBS:
                raise ProtocolError(f"verb is {shown(verb)}, but must be one of {', '.join(VERBS)}")
            return await self.call(text_of(call, "session"), verb, object_of(call, "content"))
        except ProtocolError as error:
            return RefusedError(400, "bad_request", str(error)).content()
        except RefusedError as error:
            return error.content()

    async def close(self, session_id: str) -> None:
        """End a session; one that is not there has ended."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        async with session.lock:
            self._forget(session)
            await self._close(session)

    async def close_all(self) -> int:
        """End all sessions, those in a call too; their number."""
        sessions = list(self._sessions.values())
        for session in sessions:
            self._forget(session)
        idle = [session for session in sessions if not session.lock.locked()]
        await asyncio.gather(*(self._close(session) for session in idle))
        return len(sessions)

    async def expire(self) -> None:
        """End the sessions that nobody has used for long."""
        oldest = time.monotonic() - self._limits.idle_s
        for session in list(self._sessions.values()):
            if session.last_used_s < oldest and not session.lock.locked():
                self._forget(session)
                self._counts["expired"] += 1
                await self._close(session)

    def has(self, session_id: str) -> bool:
        """Whether a session is there."""
        return session_id in self._sessions

    def count_refused(self) -> None:
        """One more request was refused."""
        self._counts["refused"] += 1

    def _wanted(self, content: Content) -> tuple[str, dict[str, Any]]:
        env_id = content.get("env")
        if env_id is None and len(self._served) == 1:
            env_id = next(iter(self._served))
        if not isinstance(env_id, str) or env_id not in self._served:
            hint = did_you_mean(env_id, self._served) if isinstance(env_id, str) else ""
            # Without a close name the hint would list all that is served a second time.
            close = hint if hint.endswith("?") else ""
            raise RefusedError(
                404,
                "unknown_env",
                f"env is {shown(env_id)}, which is not served here{close} (served: "
                f"{', '.join(self._served)})",
            )
        fixed = dict(self._served[env_id].params)
        wanted = content.get("params", {})
        if not isinstance(wanted, dict):
            raise RefusedError(400, "bad_request", f"params is {shown(wanted)}, but is an object")
        other = [key for key in wanted if key not in fixed or not _is_same(wanted[key], fixed[key])]
        if other and not self._limits.has_client_params:
            raise RefusedError(
                403,
                "params",
                f"{env_id} is served with the parameters {shown(fixed)}, and a client may not set "
                f"{shorten(str(other[0]))}: leave it out, or serve with --client-params",
            )
        return env_id, {**fixed, **wanted}

    async def _run(self, call: Callable[[], Any]) -> Any:
        self._counts["calls"] += 1
        took_s: list[float] = []

        def timed() -> Any:  # in its thread, so that the time in the queue does not count
            started = time.perf_counter()
            try:
                return call()
            finally:
                took_s.append(time.perf_counter() - started)

        try:
            return await self._threads.run(timed, self._limits.call_s)
        except HangingCallsError as error:
            raise RefusedError(503, "hanging", str(error)) from None
        finally:
            self._num_timed += len(took_s)
            self._call_s += sum(took_s)

    def _too_slow(self, what: str) -> RefusedError:
        self._counts["timed_out"] += 1
        return RefusedError(
            504, "timeout", f"{what} took more than {self._limits.call_s:g} s (--timeout)"
        )

    def _failed(self, error: Exception) -> RefusedError:
        self._counts["failed"] += 1
        name = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
        return RefusedError(500, "env_error", f"the environment failed: {name}{error}")

    def _forget(self, session: Session) -> None:
        session.is_closed = True
        self._sessions.pop(session.id, None)

    async def _close(self, session: Session) -> None:
        with contextlib.suppress(TimeoutError, RefusedError):
            await self._run(session.close)


def _unknown(session_id: str) -> RefusedError:
    return RefusedError(
        404, "unknown_session", f"there is no session {shorten(session_id)}: open one"
    )


def _is_same(one: Any, other: Any) -> bool:
    """Whether two parameters are equal as JSON has them."""
    return bool(json.loads(json.dumps(one)) == json.loads(json.dumps(other)))
