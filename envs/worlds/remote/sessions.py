"""The server's episodes: each name is one world, played by one client, until it expires.

A request may come twice, because its answer was lost. So the last numbered request of a name is
answered from memory when it is repeated, and never played twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    Observation,
    StepResult,
    TextEnv,
    checked_opening,
    checked_result,
    checked_text,
    hash_task,
    shorten,
)
from ...params import require_within
from ...workers.threads import in_thread
from .protocol import VERSION, ProtocolError, WorldRequest, quoted, read_request

Content = Mapping[str, Any]
_CALLS_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A world that is served, with parameters that differ from its defaults."""

    id: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What the clients of a server may take.

    `max_sessions`: worlds at once. `idle_s`: seconds without a request after which one ends.
    `call_s`: seconds of one call into a world. `has_client_params`: clients may set parameters;
    otherwise a world has those it is served with.
    """

    max_sessions: int = 1024
    idle_s: float = 1800.0
    call_s: float = 60.0
    has_client_params: bool = False

    def __post_init__(self) -> None:
        bounds = (1e-3, 10**6)
        require_within(self, max_sessions=(1, 10**6), idle_s=bounds, call_s=bounds)


class RefusedError(Exception):
    """A request that is answered with an error: HTTP status, kind, one sentence."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind

    def content(self) -> Content:
        return {"error": {"kind": self.kind, "message": shorten(str(self), 400)}}


class Session:
    """One world and where its episode stands. Requests play it one at a time."""

    def __init__(self, name: str, env_id: str, params: Mapping[str, Any]) -> None:
        self.name, self.env_id, self.params = name, env_id, params
        self.lock = asyncio.Lock()
        self.last_used_s = time.monotonic()
        self.is_closed = False
        self.env: TextEnv | None = None
        self.task_key = ""
        """Empty before the first episode."""
        self.num_steps = 0
        self.number = 0
        """Of the last request that had one; its answer is `answer`."""
        self.answer: Content = {}

    def world(self) -> TextEnv:
        """The world, made when it is first asked for."""
        if self.env is None:
            self.env = registry.make(self.env_id, **self.params)
        return self.env

    def close(self) -> None:
        """Close the world; one that fails even there is left alone."""
        with contextlib.suppress(Exception):
            if self.env is not None:
                self.env.close()


def _open(session: Session, asked: WorldRequest) -> Content:
    env = session.world()
    return {
        "protocol": VERSION,
        "tools": json_value(env.tools()),
        "num_tasks": env.num_tasks,
        "reports_success": env.reports_success,
        "has_own_notice": type(env).invalid_notice is not TextEnv.invalid_notice,
        "instructions": checked_text("instructions", env.instructions()),
    }


def _reset(session: Session, asked: WorldRequest) -> Content:
    env = session.world()
    seed = secrets.randbelow(2**62) if asked.seed is None else asked.seed
    first = checked_opening(env.reset(seed, asked.noise_seed))
    key = env.task_key()
    session.task_key = hash_task(env.spec.id, first.text) if key is None else key
    session.num_steps = 0
    facts = {"episode_id": session.name, "seed": seed, "noise_seed": asked.noise_seed}
    return _answer(session, first, None, facts)


def _step(session: Session, asked: WorldRequest) -> Content:
    if not session.task_key:
        raise _unknown(session.name)
    result = checked_result(session.world().step(asked.action.text))
    session.num_steps += 1
    facts = {"info": json_value(result.info)} | {
        name: getattr(result, name) for name in ("success", "is_valid", "is_effective")
    }
    return _answer(session, result.observation, result, facts)


def _answer(
    session: Session, observation: Observation, result: StepResult | None, facts: Content
) -> Content:
    env, seen = session.world(), json_value(observation)
    return {
        "metadata": {
            "task_key": session.task_key,
            "instructions": checked_text("instructions", env.instructions()),
            "reports_success": env.reports_success,
            "frame": seen.pop("frame"),
            **facts,
        },
        "observation": {**seen, "legal_actions": list(env.legal_actions())},
        "reward": None if result is None else result.reward,
        "done": result is not None and result.terminated,
    }


def _state(session: Session, asked: WorldRequest) -> Content:
    return {
        "episode_id": session.name,
        "step_count": session.num_steps,
        "task_key": session.task_key,
    }


VERBS: Mapping[str, Callable[[Session, WorldRequest], Content]] = {
    "open": _open,
    "reset": _reset,
    "step": _step,
    "state": _state,
    "solve": lambda session, asked: {"actions": session.world().solve()},
    "guesses": lambda session, asked: {"actions": list(session.world().guesses())},
    "notice": lambda session, asked: {"notice": session.world().invalid_notice(asked.action.text)},
}


class Sessions:
    """All sessions of a server. Lives in one event loop.

    Args:
        served: what clients may play.
    """

    def __init__(self, served: Sequence[Served], limits: SessionLimits) -> None:
        self.served = {each.id: each for each in served}
        self.counts: Counter[str] = Counter()
        """Calls into worlds, and those repeated, refused, failed, timed out, expired."""
        self._limits = limits
        self._sessions: dict[str, Session] = {}
        self._slots = asyncio.Semaphore(_CALLS_AT_ONCE)

    def __len__(self) -> int:
        return len(self._sessions)

    async def call(self, verb: str, content: Content) -> Content:
        """Carry out one of `VERBS`. A world that fails or hangs ends its session.

        Raises:
            ProtocolError: this is no request.
            RefusedError: it cannot be carried out.
        """
        asked = read_request(content)
        await self._expire()
        session = self._sessions.get(asked.episode_id)
        if verb in ("open", "reset"):
            session = await self._for(session, asked)
        if session is None:
            raise _unknown(asked.episode_id)
        async with session.lock:
            if session.is_closed:
                raise _unknown(session.name)
            if asked.number and asked.number == session.number:
                self.counts["repeated"] += 1
                return session.answer
            if asked.number and asked.number < session.number:
                raise RefusedError(
                    409, "order", f"request {asked.number} comes after request {session.number}"
                )
            is_new = session.env is None
            try:
                answer: Content = await self._run(verb, partial(VERBS[verb], session, asked))
            except RefusedError as error:
                if is_new or error.kind in ("timeout", "env_error"):
                    self._forget(session)
                if error.kind == "env_error":
                    await self._close(session)
                raise
            finally:
                session.last_used_s = time.monotonic()
            if asked.number:
                session.number, session.answer = asked.number, answer
            return answer

    async def close(self, name: str) -> None:
        """End a session; one that is not there has ended."""
        session = self._sessions.get(name)
        if session is not None:
            async with session.lock:
                self._forget(session)
                await self._close(session)

    async def close_all(self) -> None:
        """End all sessions; the world of one in a call is left behind."""
        sessions = list(self._sessions.values())
        for session in sessions:
            self._forget(session)
        await asyncio.gather(*(self._close(each) for each in sessions if not each.lock.locked()))

    async def _expire(self) -> None:
        oldest = time.monotonic() - self._limits.idle_s
        for session in list(self._sessions.values()):
            if session.last_used_s < oldest and not session.lock.locked():
                self._forget(session)
                self.counts["expired"] += 1
                await self._close(session)

    async def _for(self, session: Session | None, asked: WorldRequest) -> Session:
        """The session of a name; a new one where the request is about another world."""
        is_named = asked.env is not None or bool(asked.params)
        if session is not None and not is_named:
            return session
        env_id, params = self._world_of(asked)
        if session is not None and (session.env_id, session.params) == (env_id, params):
            return session
        if session is not None:
            await self.close(session.name)
        if len(self._sessions) >= self._limits.max_sessions:
            raise RefusedError(
                503,
                "full",
                f"all {self._limits.max_sessions} sessions are taken: raise --max-sessions, or "
                f"wait until idle ones expire after {self._limits.idle_s:g} s",
            )
        session = self._sessions[asked.episode_id] = Session(asked.episode_id, env_id, params)
        return session

    def _world_of(self, asked: WorldRequest) -> tuple[str, dict[str, Any]]:
        env_id = asked.env
        if env_id is None and len(self.served) == 1:
            env_id = next(iter(self.served))
        if env_id is None or env_id not in self.served:
            hint = did_you_mean(env_id, self.served) if env_id is not None else ""
            # Without a close name the hint would list all that is served a second time.
            close = hint if hint.endswith("?") else ""
            raise RefusedError(
                404,
                "unknown_env",
                f"env is {quoted(env_id)}, which is not served here{close} (served: "
                f"{', '.join(self.served)})",
            )
        fixed, given = dict(self.served[env_id].params), asked.params
        as_sent = json_value(fixed)
        other = [key for key in given if key not in fixed or given[key] != as_sent[key]]
        if other and not self._limits.has_client_params:
            raise RefusedError(
                403,
                "params",
                f"{env_id} is served with the parameters {quoted(fixed)}, and a client may not set "
                f"{shorten(str(other[0]))}: leave it out, or serve with --client-params",
            )
        return env_id, {**fixed, **given}

    async def _run(self, what: str, call: Callable[[], Any]) -> Any:
        """What a call into a world returns; what it raises becomes a refusal with its reason."""
        self.counts["calls"] += 1
        try:
            async with self._slots:
                return await _within(call, self._limits.call_s)
        except (RefusedError, ProtocolError):
            raise
        except TimeoutError:
            self.counts["timed_out"] += 1
            raise RefusedError(
                504, "timeout", f"{what} took more than {self._limits.call_s:g} s (--timeout)"
            ) from None
        except Exception as error:  # noqa: BLE001 - a world that fails is told, and is data there
            if what == "open" and isinstance(error, EnvParamsError):
                raise RefusedError(400, "params", str(error)) from None
            if what == "open" and isinstance(error, EnvUnavailableError):
                raise RefusedError(503, "unavailable", str(error)) from None
            self.counts["failed"] += 1
            name = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
            raise RefusedError(500, "env_error", f"the environment failed: {name}{error}") from None

    def _forget(self, session: Session) -> None:
        session.is_closed = True
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    async def _close(self, session: Session) -> None:
        with contextlib.suppress(RefusedError):
            await self._run("closing", session.close)


async def _within(call: Callable[[], Any], limit_s: float) -> Any:
    """What `call` returns or raises; leaving Python (`sys.exit`) is a RuntimeError here.

    Raises:
        TimeoutError: it took more than `limit_s` seconds; a call that hangs is left behind then.
    """

    def work() -> tuple[Any, Exception | None]:  # asyncio hands on not every error as it is
        try:
            return call(), None
        except Exception as problem:  # noqa: BLE001 - raised again where it is waited for
            return None, problem
        except BaseException as problem:  # noqa: BLE001 - would end the event loop there
            return None, RuntimeError(f"{type(problem).__name__}: {problem}")

    answer = asyncio.wrap_future(in_thread("echoscope-call", work))
    result, error = await asyncio.wait_for(answer, limit_s)
    if error is not None:
        raise error
    return result


def _unknown(name: str) -> RefusedError:
    return RefusedError(
        404,
        "unknown_episode",
        f"no episode {shorten(name)!r} runs: reset it first. It has expired, or the server was "
        "started again",
    )
