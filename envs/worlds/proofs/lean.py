"""Lean: prove a theorem, tactic by tactic, with Lean 4 as the judge."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from echoscope.text.pictures import card_frame

from ...base import (
    EnvParamsError,
    EnvSpec,
    EnvUnavailableError,
    Observation,
    StepResult,
    hash_task,
    shorten,
)
from ...params import require, require_within
from ..remote.http_client import checked_url
from ..task_env import TaskEnv, drawn
from .backends import KiminaServer, shared_repl
from .statements import MADE_THEOREMS, read_theorems
from .tactics import refusal, without_comments
from .verdicts import LeanBackend, LeanVerdict, judge

SERVER_VARIABLE = "LEAN_SERVER_API_URL"
"""Environment variable with the address of a server, as Kimina's own client reads it."""
MAX_SHOWN_TACTICS = 40
_MAX_VERDICTS = 20_000
_verdicts: dict[tuple[object, ...], LeanVerdict] = {}
"""What Lean said before, by backend, theorem and tactics: siblings often write the same step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanConfig:
    """Theorems, judge and rewards of `lean`.

    `data`: a file in the format of miniF2F (JSON lines, a JSON list or Parquet); null takes the
    theorems that ship, which need no Mathlib. `split`: only the rows of this split.

    `server`: address of a Kimina Lean Server; null takes the environment variable
    LEAN_SERVER_API_URL. `repl`: folder of a built REPL on this machine, instead of a server;
    `project`: a built Lean project for its imports; `lake`: the program; `memory_mb`: what the
    REPL may use.

    `timeout_s`: Lean's time for one step. `wait_s`: how much longer a server's answer may take.
    `step_reward` is paid for every step, and on top of it `rejected_reward` for one that Lean
    rejects, `solved_reward` for the proof, `accepted_reward` for one that Lean accepts and that
    changes a goal. A `have` of something known is such a step: `accepted_reward` above 0.1 pays for
    proving nothing.
    """

    data: str | None = None
    split: str | None = None
    server: str | None = None
    repl: str | None = None
    project: str = ""
    lake: str = "lake"
    memory_mb: int = 8192
    timeout_s: float = 30.0
    wait_s: float = 10.0
    step_reward: float = -0.1
    accepted_reward: float = 0.0
    rejected_reward: float = -1.0
    solved_reward: float = 10.0

    def __post_init__(self) -> None:
        require(
            self.server is None or self.repl is None,
            "server and repl are both given: set one of them",
        )
        require(not self.project or self.repl is not None, "project needs repl: set both")
        require_within(self, timeout_s=(0.1, 3600), wait_s=(0.1, 3600), memory_mb=(512, math.inf))
        if self.server is not None:
            _server_url(self.server)


class Lean(TaskEnv[LeanConfig]):
    """A theorem, proved by tactics that Lean 4 checks one by one.

    Description:
        A step is one tactic, or several lines of them. What Lean accepts is kept; what it rejects
        changes nothing. A proof counts only if Lean says that the stated theorem rests on its own
        axioms (propext, Classical.choice, Quot.sound) and on nothing else.
    Observation:
        The theorem; after a step the proof so far and the open goals, or Lean's message.
    Actions:
        A tactic such as `intro h` or `exact h.1`; before it may stand `open NAMES in`, `set_option
        maxRecDepth N in` and `set_option maxHeartbeats N in`, and comments are left out. Not played
        are `sorry` and `native_decide`, commands, programs, strings with brackets or escapes, and
        brackets that do not match.
    Rewards:
        -0.1 a step, +10 for the last step of a proof, -1 for a step that is rejected, refused or
        takes too long.
    Episode end:
        The theorem is proved.
    Success:
        The same.
    Seeds:
        `seed` draws the theorem; `noise_seed` is not used.
    Requires:
        A Kimina Lean Server (`server`, or the environment variable LEAN_SERVER_API_URL), or Lean's
        REPL on this machine (`repl`, with `pip install -e '.[lean]'`). Each step asks it. An
        episode whose server is gone ends with an environment error and is not learned from.
    Example:
        >>> world = Lean(LeanConfig(server="http://127.0.0.1:8000"))
        >>> "theorem " in world.reset(seed=3, noise_seed=0).text
        True
        >>> world.step("sorry").observation.text.splitlines()[0]
        'Invalid action "sorry". Refused: sorry gives up instead of proving.'
    """

    spec = EnvSpec(
        id="lean",
        config_type=LeanConfig,
        max_turns=15,
        one_action=True,
        description="Prove a theorem, tactic by tactic, with Lean 4 as the judge.",
    )
    is_solved = False

    @classmethod
    def lacks(cls) -> str:
        """That no server is set."""
        if os.environ.get(SERVER_VARIABLE):
            return ""
        return (
            f"needs Lean: set the environment variable {SERVER_VARIABLE} or the parameter server to"
            " the address of a Kimina Lean Server, or repl to the folder of a built Lean REPL"
        )

    def __init__(self, config: LeanConfig | None = None) -> None:
        super().__init__(config)
        config = self._config
        self._theorems = read_theorems(config.data or MADE_THEOREMS, config.split)
        self._backend = _backend(config)
        self.begin(0, 0)

    def begin(self, seed: int, noise_seed: int) -> None:
        self._theorem = self._theorems[drawn(seed, len(self._theorems))]
        self._tactics: tuple[str, ...] = ()
        self._goals, self.is_solved = "", False

    def step(self, action: str) -> StepResult:
        """See `TextEnv.step`.

        Raises:
            EnvUnavailableError: Lean answers nothing any more.
        """
        tactic = without_comments(action)
        if refusal(tactic) or self.is_over:
            reward = 0.0 if self.is_over else self._rejected
            return replace(self.refused(action), reward=reward)
        if not self._goals:
            self._goals = self._first_goals()
        tactics = (*self._tactics, tactic)
        verdict = self._judged(tactics)
        if verdict.status in ("rejected", "timeout"):
            told = self.observe(f"Rejected: {verdict.text}")
            return self.result(self._rejected, told, is_effective=False)
        is_news = verdict.status == "proved" or verdict.text != self._goals
        self.is_solved = verdict.status == "proved"
        if is_news:  # a step that changes no goal would only make the proof longer
            self._tactics, self._goals = tactics, verdict.text
        reward = self._config.step_reward + (self._config.accepted_reward if is_news else 0.0)
        if self.is_solved:
            reward += self._config.solved_reward
        state = self._state if is_news else f"That changes nothing.\n{self._state}"
        return self.result(reward, self.observe(state), is_effective=is_news)

    def invalid_notice(self, action: str) -> str:
        problem = refusal(without_comments(action))
        notice = super().invalid_notice(action)
        return f"{notice} Refused: {problem}." if action.strip() and problem else notice

    def instructions(self) -> str:
        return (
            "Prove the theorem in Lean 4. Action: one tactic, for example: intro h. Accepted "
            "tactics are kept, rejected ones change nothing. "
            "sorry, axioms and commands are "
            "refused."
        )

    def plan(self) -> list[str] | None:
        """What is left of the proof that came with the theorem; None where there is none."""
        proof = self._theorem.proof
        is_begun = proof[: len(self._tactics)] == self._tactics
        return list(proof[len(self._tactics) :]) or None if is_begun else None

    def guesses(self) -> tuple[str, ...]:
        return ("rfl", "simp", "decide", "intro h", "constructor")

    def task_key(self) -> str:
        return hash_task(self.spec.id, self._theorem.header, self._theorem.statement)

    @property
    def num_tasks(self) -> int:
        return len({(theorem.header, theorem.statement) for theorem in self._theorems})

    @property
    def _rejected(self) -> float:
        return self._config.step_reward + self._config.rejected_reward

    @property
    def _task(self) -> str:
        informal = f"{self._theorem.informal}\n" if self._theorem.informal else ""
        return f"{informal}{self._theorem.statement}"

    @property
    def _state(self) -> str:
        """The proof so far with the open goals, or the task where nothing is proved yet."""
        if not self._tactics:
            return self._task
        listed = _numbered(self._tactics)
        if self.is_solved:
            return f"Proof:\n{listed}\nProved."
        return f"Proof so far:\n{listed}\nGoals:\n{self._goals}"

    def _first_goals(self) -> str:
        """The goals before the first step.

        Raises:
            EnvUnavailableError: Lean answers nothing, or cannot read the theorem.
        """
        verdict = self._judged(())
        if verdict.status != "open":
            raise EnvUnavailableError(
                f"{self._backend.name} cannot read the theorem {shorten(self._theorem.name)}: "
                f"{shorten(verdict.text or 'nothing is left to prove', 200)}"
            )
        return verdict.text

    def _judged(self, tactics: tuple[str, ...]) -> LeanVerdict:
        theorem, timeout_s = self._theorem, self._config.timeout_s
        key = (self._backend.name, theorem.header, theorem.statement, tactics)
        earlier = _verdicts.get(key)
        if earlier is not None:
            return earlier
        verdict = judge(self._backend, theorem, tactics, timeout_s)
        if verdict.is_lasting:  # a busy machine may have been the reason of another one
            if len(_verdicts) >= _MAX_VERDICTS:
                _verdicts.clear()
            _verdicts[key] = verdict
        return verdict

    def info(self) -> dict[str, float]:
        return {"accepted_tactics": float(len(self._tactics))}

    def observe(self, news: str = "") -> Observation:
        """What Lean says, or the proof so far."""
        text = news or self._state
        lines = self._theorem.statement.splitlines()
        if self._tactics:
            lines += ["", *_numbered(self._tactics).splitlines()]
        if text != self._task:
            lines += ["", *text.splitlines()[-12:]]
        return Observation(text=text, frame=card_frame(f"Lean: {self._theorem.name}", lines))


def _numbered(tactics: Sequence[str]) -> str:
    """The last tactics of a proof, numbered."""
    first = max(0, len(tactics) - MAX_SHOWN_TACTICS)
    return "\n".join(f"{n}. {tactic}" for n, tactic in enumerate(tactics[first:], start=first + 1))


def _server_url(url: str) -> str:
    return checked_url("server", url, "http://127.0.0.1:8000")


def _backend(config: LeanConfig) -> LeanBackend:
    if config.repl is not None:
        return shared_repl(config.repl, config.project, config.lake, config.memory_mb)
    server = config.server or os.environ.get(SERVER_VARIABLE)
    if not server:
        raise EnvUnavailableError(f"lean {Lean.lacks()}")
    try:
        return KiminaServer(_server_url(server), config.wait_s)
    except EnvParamsError as error:
        raise EnvUnavailableError(f"{SERVER_VARIABLE}: {error}") from None
