"""The server's sessions: each is one world, played by one client, until it expires.

A request may come twice, because its answer was lost. So the last reset and the last step of a
session are answered from memory when they are repeated, and never played twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.strict_json import json_value

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
from ...params import require_within
from .call_threads import CallThreads, HangingCallsError
from .protocol import (
    VERSION,
    ActionAsked,
    EpisodeAsked,
    ProtocolError,
    ResetAsked,
    StepAsked,
    asked,
    quoted,
    write_result,
)

Content = Mapping[str, Any]
Answer = dict[str, Any]
MAX_BATCH = 1024
"""Calls in one batch."""


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
        require_within(self, max_sessions=(1, 10**6), max_calls=(1, 10**6))
        require_within(self, idle_s=(1e-3, 10**6), call_s=(1e-3, 10**6))


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
        self.episode = self.num_steps = 0
        self.task_key = ""
        self.num_repeated = 0
        """Requests that were answered from memory."""
        self._env = env
        self._asked: ResetAsked | StepAsked | None = None
        self._answer: Answer = {}

    def opened(self) -> Answer:
        """What a client learns at first."""
        env = self._env
        return {
            "protocol": VERSION,
            "session": self.id,
            "env": env.spec.id,
            "tools": json_value(env.tools()),
            "num_tasks": env.num_tasks,
            "has_own_notice": type(env).invalid_notice is not TextEnv.invalid_notice,
            "instructions": checked_text("instructions", env.instructions()),
            "max_turns": env.spec.max_turns,
            "max_actions_per_turn": env.spec.max_actions_per_turn,
            **self._state(),
        }

    def reset(self, content: Content) -> Answer:
        """Start the episode that the client numbers; a repeated one is not started again."""
        request = asked(ResetAsked, content)
        if request == self._asked:
            return self._repeated()
        if request.episode <= self.episode:
            raise RefusedError(
                409, "order", f"episode {request.episode} is over: number {self.episode} has begun"
            )
        first = checked_opening(self._env.reset(request.seed, request.noise_seed))
        key = self._env.task_key()
        self.task_key = hash_task(self._env.spec.id, first.text) if key is None else key
        self.episode, self.num_steps = request.episode, 0
        return self._remembered(
            request,
            {
                "episode": request.episode,
                "observation": json_value(first),
                "task_key": self.task_key,
                "instructions": checked_text("instructions", self._env.instructions()),
            },
        )

    def step(self, content: Content) -> Answer:
        """Play the next action; the last one, asked for again, is not played again."""
        request = self._about_this_episode(StepAsked, content)
        if request == self._asked:
            return self._repeated()
        if request.number != self.num_steps + 1:
            raise RefusedError(
                409, "order", f"step {request.number} was asked for after step {self.num_steps}"
            )
        result = self._env.step(request.text)
        self.num_steps = request.number
        return self._remembered(request, {"number": request.number, "result": write_result(result)})

    def solve(self, content: Content) -> Answer:
        """The expert's actions from here."""
        self._about_this_episode(EpisodeAsked, content)
        return {"actions": self._env.solve()}

    def guesses(self, content: Content) -> Answer:
        """Actions of a player who guesses."""
        self._about_this_episode(EpisodeAsked, content)
        return {"actions": list(self._env.guesses())}

    def notice(self, content: Content) -> Answer:
        """What an observation begins with after an invalid action."""
        request = self._about_this_episode(ActionAsked, content)
        return {"notice": self._env.invalid_notice(request.text)}

    def close(self) -> None:
        """Close the world; one that fails even there is left alone."""
        with contextlib.suppress(Exception):
            self._env.close()

    def _about_this_episode(self, kind: Any, content: Content) -> Any:
        request = asked(kind, content)
        if request.episode != self.episode:
            raise RefusedError(
                409, "order", f"episode {request.episode} is not the one that runs, {self.episode}"
            )
        return request

    def _state(self) -> Answer:
        return {
            "legal_actions": list(self._env.legal_actions()),
            "reports_success": self._env.reports_success,
        }

    def _remembered(self, request: ResetAsked | StepAsked, answer: Answer) -> Answer:
        self._asked, self._answer = request, {**answer, **self._state()}
        return self._answer

    def _repeated(self) -> Answer:
        self.num_repeated += 1
        return self._answer


VERBS: Mapping[str, Callable[[Session, Content], Answer]] = {
    "reset": Session.reset,
    "step": Session.step,
    "solve": Session.solve,
    "guesses": Session.guesses,
    "notice": Session.notice,
}


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
        return [
            {
                "id": env_id,
                "description": registry.spec(env_id).description,
                "params": dict(served.params),
                "max_turns": registry.spec(env_id).max_turns,
                "max_actions_per_turn": registry.spec(env_id).max_actions_per_turn,
            }
            for env_id, served in self._served.items()
        ]

    def metrics(self) -> Answer:
        """Numbers since the start."""
        mean_s = self._call_s / self._num_timed if self._num_timed else None
        return {
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "sessions": len(self._sessions),
            "max_sessions": self._limits.max_sessions,
            "hanging_calls": self._threads.num_hanging,
            "mean_call_ms": None if mean_s is None else round(1000 * mean_s, 3),
            **{name: self._counts[name] for name in _COUNTED},
        }

    async def open(self, content: Content) -> Answer:
        """A new session."""
        protocol = content.get("protocol")
        if protocol != VERSION:
            given = f"protocol is {quoted(protocol)}, but" if "protocol" in content else _UNSAID
            raise RefusedError(400, "protocol", f"{given} this server has {VERSION}")
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
            with self._failures_are_told(f"opening {env_id}"):
                session = await self._run(lambda: Session(registry.make(env_id, **params)))
                answer: Answer = await self._run(session.opened)
        finally:
            self._num_opening -= 1
        self._sessions[session.id] = session
        self._counts["opened"] += 1
        return answer

    async def call(self, session_id: str, verb: str, content: Content) -> Answer:
        """Carry out one of `VERBS` in a session. A world that fails or hangs ends its session."""
        session = self.session(session_id)
        async with session.lock:
            if session.is_closed:
                raise _unknown(session_id)
            repeated = session.num_repeated
            try:
                with self._failures_are_told(verb):
                    answer: Answer = await self._run(partial(VERBS[verb], session, content))
            except RefusedError as error:
                if error.kind in ("timeout", "env_error"):
                    self._forget(session)
                if error.kind == "env_error":
                    await self._close(session)
                raise
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
            match call:
                case {"session": str(session), "verb": str(verb), "content": dict(content)}:
                    if verb in VERBS:
                        return await self.call(session, verb, content)
            raise RefusedError(
                400,
                "bad_request",
                f"a call is {quoted(call)}, but must have session, content and a verb of "
                f"{', '.join(VERBS)}",
            )
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
        await asyncio.gather(*map(self._close, idle))
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

    def session(self, session_id: str) -> Session:
        """A session.

        Raises:
            RefusedError: it is not there.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise _unknown(session_id)
        return session

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
                f"env is {quoted(env_id)}, which is not served here{close} (served: "
                f"{', '.join(self._served)})",
            )
        fixed = dict(self._served[env_id].params)
        requested = content.get("params", {})
        if not isinstance(requested, dict):
            raise RefusedError(
                400, "bad_request", f"params is {quoted(requested)}, but is an object"
            )
        as_sent = json_value(fixed)
        other = [key for key in requested if key not in fixed or requested[key] != as_sent[key]]
        if other and not self._limits.has_client_params:
            raise RefusedError(
                403,
                "params",
                f"{env_id} is served with the parameters {quoted(fixed)}, and a client may not set "
                f"{shorten(str(other[0]))}: leave it out, or serve with --client-params",
            )
        return env_id, {**fixed, **requested}

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

    @contextlib.contextmanager
    def _failures_are_told(self, what: str) -> Iterator[None]:
        """Whatever a call into a world raises becomes a refusal with its reason."""
        try:
            yield
        except RefusedError:
            raise
        except ProtocolError as error:
            raise RefusedError(400, "bad_request", str(error)) from None
        except TimeoutError:
            self._counts["timed_out"] += 1
            raise RefusedError(
                504, "timeout", f"{what} took more than {self._limits.call_s:g} s (--timeout)"
            ) from None
        except Exception as error:  # noqa: BLE001 - a world that fails is told, and is data there
            if isinstance(error, EnvParamsError | EnvUnavailableError) and what not in VERBS:
                is_theirs = isinstance(error, EnvParamsError)
                status, kind = (400, "params") if is_theirs else (503, "unavailable")
                raise RefusedError(status, kind, str(error)) from None
            self._counts["failed"] += 1
            name = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
            raise RefusedError(500, "env_error", f"the environment failed: {name}{error}") from None

    def _forget(self, session: Session) -> None:
        session.is_closed = True
        self._sessions.pop(session.id, None)

    async def _close(self, session: Session) -> None:
        with contextlib.suppress(TimeoutError, RefusedError):
            await self._run(session.close)


_COUNTED = (
    *("opened", "expired", "calls", "resets", "steps", "repeated", "refused", "failed"),
    "timed_out",
)
_UNSAID = "there is no protocol, and"


def _unknown(session_id: str) -> RefusedError:
    return RefusedError(
        404, "unknown_session", f"there is no session {shorten(session_id)}: open one"
    )
