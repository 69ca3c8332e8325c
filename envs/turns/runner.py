"""Runs a reply's actions on a world within its limits, and turns failures into data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from echoscope.text.amounts import counted

from ..base import (
    NO_ACTION_NOTICE,
    WRONG_FORMAT_NOTICE,
    EnvParamsError,
    EnvValueError,
    Message,
    Observation,
    StepResult,
    TextEnv,
    Tool,
    checked_feedback,
    checked_opening,
    checked_result,
    checked_text,
    hash_task,
    is_task_key,
    normalise,
    prefixed,
    shorten,
)
from .turn import (
    Opening,
    StopReason,
    TurnEnv,
    TurnResult,
    TurnSettings,
    failed_opening,
    failed_turn,
)


class TurnRunner(TurnEnv):
    """Runs actions in order until the task ends; an invalid one is skipped and said.

    An episode stops with the first of these reasons: its own end, `max_actions`, `max_turns`. The
    world itself knows nothing of limits.

    After an exception the world's state is unknown: the episode ends, and the next `reset` builds a
    new world with `build`.
    """

    def __init__(self, build: Callable[[], TextEnv], settings: TurnSettings) -> None:
        self._build = build
        self.env = build()
        """The world itself, for experts and viewers, too."""
        self._settings = settings
        self._num_turns = self._num_actions = 0
        self._state = Observation(text="")
        self._is_broken = False
        self._error: str | None = None
        self._tools = _tools_of(self.env)

    @property
    def num_tasks(self) -> int | None:
        try:
            declared = self.env.num_tasks
        except (Exception, SystemExit) as error:
            raise EnvParamsError(f"{self.env.spec.id}: num_tasks raised {_named(error)}") from error
        if declared is not None and (type(declared) is not int or declared < 1):
            raise EnvParamsError(
                f"{self.env.spec.id}: num_tasks is {shorten(repr(declared))}, but must be a "
                "positive integer or None"
            )
        return declared

    def reset(self, seed: int, noise_seed: int) -> Opening:
        self._error = None
        self._num_turns = self._num_actions = 0
        try:
            if self._is_broken:
                self.env = self._build()
            self._is_broken = True  # until the world has answered
            first = checked_opening(self.env.reset(seed, noise_seed))
            opening = Opening(
                observation=first,
                task_key=_task_key(self.env, first),
                instructions=self._instructions(),
                tools=self._tools,
            )
            self._is_broken = False
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a world's failure is data
            opening = failed_opening(self._fail(error), self._tools)
        self._state = opening.observation
        return opening

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        settings = self._settings
        if settings.max_actions is not None:
            actions = actions[: settings.max_actions - self._num_actions]
        result = self._play(actions, is_well_formed)
        self._num_turns += 1
        self._num_actions += len(result.actions)
        penalty = 0.0 if result.is_valid else settings.format_penalty
        stop_reason = result.stop_reason or self._limit_reached()
        return replace(result, format_penalty=penalty, stop_reason=stop_reason)

    def _limit_reached(self) -> StopReason | None:
        most = self._settings.max_actions
        if most is not None and self._num_actions >= most:
            return "max_actions"
        return "max_turns" if self._num_turns >= self._settings.max_turns else None

    def _play(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        most = self._settings.max_actions_per_turn
        if self._error is not None:
            return failed_turn(self._state, self._error, is_valid=is_well_formed)
        executed: list[str] = []
        answers: list[Observation] = []
        reward, is_effective, bad = 0.0, False, None if actions else ""
        result: StepResult | None = None
        self._is_broken = True  # until the world has answered
        try:
            for action in actions[:most]:
                spelled = self._spell(action)
                result = checked_result(self.env.step(spelled))
                reward += result.reward
                answers.append(result.observation)
                if result.is_valid:
                    executed.append(spelled)
                elif bad is None:
                    bad = action
                if result.is_valid or result.is_effective:
                    self._state = result.observation
                is_effective = is_effective or result.is_effective
                if result.terminated:
                    break
            if bad is None and not is_well_formed:
                bad = ""
            is_cut = len(actions) > most
            dropped = [f"Only the first {counted(most, 'action')} counted."] if is_cut else []
            if self._tools:
                observation = self._tool_feedback(answers, dropped)
            else:
                has_actions = any(action.strip() for action in actions)
                notices = [] if bad is None else [self._notice(bad, has_actions=has_actions)]
                notices += dropped
                state = self._state
                observation = prefixed(" ".join(notices), state) if notices else state
                checked_feedback(observation)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - see reset
            return failed_turn(
                self._state,
                self._fail(error),
                actions=tuple(executed),
                reward=reward,
                is_valid=is_well_formed and bad is None,
            )
        self._is_broken = False
        return TurnResult(
            observation=observation,
            actions=tuple(executed),
            reward=reward,
            format_penalty=0.0,
            is_valid=bad is None,
            is_effective=is_effective,
            terminated=result is not None and result.terminated,
            stop_reason="terminated" if result is not None and result.terminated else None,
            success=self._success(result),
            info=result.info if result is not None else {},
            answers=tuple(answer.text for answer in answers) if self._tools else (),
        )

    def _instructions(self) -> str:
        settings = self._settings
        text = checked_text("instructions()", self.env.instructions())
        if settings.max_actions is not None:
            text += f" At most {counted(settings.max_actions, 'action')} in all."
        per_turn = counted(settings.max_actions_per_turn, "action")
        each = " each" if settings.max_turns > 1 else ""
        return f"{text} You have {counted(settings.max_turns, 'turn')}, {per_turn}{each}."

    def close(self) -> None:
        """Close the world; one that fails even there is reported and left alone."""
        if self._is_broken:
            return
        try:
            self.env.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the run is over, and saved
            warnings.warn(
                f"{self.env.spec.id}: close() raised {_named(error)}", RuntimeWarning, stacklevel=2
            )

    def _spell(self, action: str) -> str:
        """The environment's own spelling of a legal action; any other text as it is."""
        action_text = normalise(action)
        for legal in self.env.legal_actions():
            if normalise(legal) == action_text:
                return legal
        return action

    def _notice(self, bad: str, *, has_actions: bool) -> str:
        """What is wrong with a reply: the action `bad`, or "" where that is the format alone.

        A world's own notice about a reply without an action stays as it is.
        """
        notice = self.env.invalid_notice(bad)
        if has_actions and not bad:
            return notice.replace(NO_ACTION_NOTICE, WRONG_FORMAT_NOTICE)
        return notice

    def _tool_feedback(self, answers: Sequence[Observation], dropped: Sequence[str]) -> Observation:
        """All that the calls of a turn gave, in order: nothing of it is seen a second time."""
        messages = [
            message
            for answer in answers
            for message in answer.messages or (Message(role="user", content=answer.text),)
        ]
        notices = [*([] if answers else [self.env.invalid_notice("")]), *dropped]
        by_user = [message.content for message in messages if message.role != "tool"] + notices
        results = [message for message in messages if message.role == "tool"]
        if by_user:
            results.append(Message(role="user", content="\n".join(by_user)))
        return Observation(
            text="\n".join(message.content for message in results),
            frame=answers[-1].frame if answers and answers[-1].frame else self._state.frame,
            messages=tuple(results),
            image=answers[-1].image if answers else self._state.image,
        )

    def _success(self, result: StepResult | None) -> bool | None:
        if result is not None and result.success is not None:
            return bool(result.success)
        return False if self.env.reports_success else None

    def _fail(self, error: BaseException) -> str:
        self._error = _named(error)
        return self._error


def _tools_of(env: TextEnv) -> tuple[Tool, ...]:
    try:
        tools = tuple(env.tools())
        names = [tool.name for tool in tools]
    except (Exception, SystemExit) as error:
        raise EnvParamsError(f"{env.spec.id}: tools() raised {_named(error)}") from error
    if not all(isinstance(tool, Tool) for tool in tools) or len({*names}) < len(names):
        raise EnvParamsError(f"{env.spec.id}: tools() must return Tools with different names")
    return tools


def _task_key(env: TextEnv, first: Observation) -> str:
    key = env.task_key()
    if key is None:
        return hash_task(env.spec.id, first.text)
    if not is_task_key(key):
        raise EnvParamsError(
            f"task_key() returned {shorten(repr(key))}, but must return what hash_task returns"
        )
    return key


def _named(error: BaseException) -> str:
    """An error with its type; `sys.exit` says no more than its code."""
    if isinstance(error, EnvValueError):
        return shorten(str(error), 300)
    return f"{type(error).__name__}: {shorten(str(error), 300)}"
