"""Our worlds as tasks of Inspect: `inspect eval echoscope/frozen_lake --model ...` plays them.

Inspect imports this module by its entry point, for every command, so only a task that is made
imports more. The tasks are those of `echoscope eval` with the same seed, and `echoscope import` of
the log gives the episodes back as they would stand in its store.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anyio import CancelScope, get_cancelled_exc_class, to_thread
from click import ClickException  # what Inspect's command prints as a sentence
from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Metric, Score, Scorer, Target, accuracy, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo
from inspect_ai.util import LimitExceededError

from echoscope.envs.registry import known_ids
from echoscope.envs.reserving import EVALUATION_SEED

if TYPE_CHECKING:
    from echoscope.envs.pool import EnvPool, Slot
    from echoscope.envs.reserving import TaskVariety
    from echoscope.envs.settings import EnvGroup
    from echoscope.envs.turns.turn import TurnResult
    from echoscope.store.records import StopReason

    from ..config.context import ContextConfig

NUM_TASKS = 100
"""Of a world, where nobody says how many."""
CONTEXT = (
    *("reasoning", "system", "instructions", "format_hint", "show_reward", "action_separator"),
    *("max_response_tokens", "max_episode_tokens"),
)
"""The settings of `context` that mean something for a model that is asked in messages."""
ENTRY = ("max_turns", "max_actions_per_turn", "max_actions", "format_penalty")
"""The settings of a world's entry in `envs` that a task takes."""
_STEP = 0
"""Of all episodes: an evaluation in Inspect has one."""
_SPLIT = "eval"


class EpisodeFailedError(Exception):
    """The world, and not the model, ended the episode: it has no score."""


def world_task(
    env: str,
    /,
    *,
    tasks: int = NUM_TASKS,
    siblings: int = 1,
    seed: int = EVALUATION_SEED,
    **settings: Any,
) -> Task:
    """The task of Inspect that plays a world.

    Args:
        env: the world's id, such as `frozen_lake` or `reasoning_gym:chain_sum`.
        tasks: how many tasks of the evaluation split; each is a sample.
        siblings: attempts at each task; each is an epoch.
        seed: fixes the tasks.
        settings: those of `CONTEXT` and `ENTRY`, and parameters of the world.

    Raises:
        ClickException: an unknown name or a value that is not allowed, in one sentence.
    """
    from echoscope.envs.base import EnvError
    from echoscope.store.importers.formats.inspect_metadata import KEY, task_metadata

    try:
        world, context = _checked(env, settings, tasks=tasks, siblings=siblings, seed=seed)
    except (ValueError, EnvError) as error:
        raise ClickException(str(error)) from error
    shared = task_metadata(step=_STEP, split=_SPLIT, env=env)
    samples = [
        Sample(
            id=f"{env}-{seed}-{task_number:05d}",
            input=f"{env}: task {task_number} of seed {seed}",
            metadata={**shared, "seed": str(seed), "task": task_number, KEY: {}},
        )
        for task_number in range(tasks)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=f"{env}, seed {seed}"),
        solver=play_world(world, context, seed, siblings),
        scorer=[make() for make in SCORERS],
        epochs=Epochs(siblings, "mean"),
        config=GenerateConfig(max_tokens=context.max_response_tokens),
        display_name=env,
        fail_on_error=False,  # a world that fails is data, not the end of an evaluation
    )


@task(name="world")
def any_world(
    env: str = "",
    tasks: int = NUM_TASKS,
    siblings: int = 1,
    seed: int = EVALUATION_SEED,
    **settings: Any,
) -> Task:
    """The world of any id, such as `-T env=reasoning_gym:chain_sum`."""
    if not env:
        raise ClickException("name the world, such as -T env=reasoning_gym:chain_sum")
    return world_task(env, tasks=tasks, siblings=siblings, seed=seed, **settings)


def _register(env: str) -> None:
    """Give the world a task of its own name."""

    @task(name=env)
    def play(
        tasks: int = NUM_TASKS, siblings: int = 1, seed: int = EVALUATION_SEED, **settings: Any
    ) -> Task:
        return world_task(env, tasks=tasks, siblings=siblings, seed=seed, **settings)


for _env in known_ids():
    _register(_env)


def _checked(
    env: str, settings: Mapping[str, Any], *, tasks: int, siblings: int, seed: int
) -> tuple[EnvGroup, ContextConfig]:
    """The world, with each setting where it belongs; the world is made once to see that it can be.

    Raises:
        ValueError, EnvError: what is wrong, in one sentence.
    """
    from echoscope.diagnostics.tools.setting_errors import checked
    from echoscope.envs.params import described_parameters
    from echoscope.envs.registry import env_class
    from echoscope.envs.settings import EnvGroup
    from echoscope.store.records import MAX_INDEX
    from echoscope.text.did_you_mean import did_you_mean
    from echoscope.text.user_code import search_working_folder

    from ..config.context import ContextConfig

    search_working_folder()
    for name, value, least in (("tasks", tasks, 1), ("siblings", siblings, 1), ("seed", seed, 0)):
        if type(value) is not int or not least <= value < 2**63:
            raise ValueError(f"{name} is {value!r}, but must be a whole number from {least} on")
    if tasks * siblings > MAX_INDEX:
        raise ValueError(
            f"{tasks} tasks x {siblings} siblings are {tasks * siblings} episodes, but an "
            f"evaluation holds at most {MAX_INDEX}: lower tasks or siblings"
        )
    of_world = described_parameters(env_class(env).spec.config_type)
    for name in settings:
        if name not in (*of_world, *CONTEXT, *ENTRY):
            parameters = ("tasks", "siblings", "seed", *of_world, *CONTEXT, *ENTRY)
            raise ValueError(
                f"{env} has no parameter {name!r}{did_you_mean(name, parameters, most=3)}"
            )
    # `-T system=` is null in YAML.
    values = {n: "" if n == "system" and v is None else v for n, v in settings.items()}
    of_context = {n: values[n] for n in CONTEXT if n in values and n not in of_world}
    context = checked(ContextConfig, of_context, ())
    world = checked(
        EnvGroup,
        {
            "env": env,
            "groups": 1,
            "params": {name: value for name, value in values.items() if name in of_world},
            **{name: values[name] for name in ENTRY if name in values and name not in of_world},
        },
        (),
    )
    _Worlds(world, seed).pool(0, 0).close()
    return world, context


@dataclass(slots=True, eq=False)
class _Worlds:
    """Makes the world of one episode at a time, in any thread."""

    world: EnvGroup
    seed: int
    _varieties: list[TaskVariety] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pool(self, task_number: int, sibling: int) -> EnvPool:
        """A pool of one episode: this sibling of this task."""
        from echoscope.envs.pool import EnvPool

        from ..config.collection import CollectionConfig
        from ..rollout.sources import turns_maker

        return EnvPool(
            [self.world],
            group_size=1,
            seed=self.seed,
            split=_SPLIT,
            make_turns=turns_maker(CollectionConfig(mode="async"), None),
            first_group=task_number,
            first_sibling=sibling,
            varieties=self._varieties,
        )

    def begin(self, pool: EnvPool) -> Slot:
        """Start the episode of a pool."""
        with self._lock:  # how many tasks there are is found out once, by drawing some
            first_group = pool.check_step(_STEP)
            self._varieties = [variety for _, variety in pool.varieties()]
        leader = pool.lead(_STEP, 0, first_group)
        return pool.start(0, leader)


@solver
def play_world(world: EnvGroup, context: ContextConfig, seed: int, siblings: int) -> Solver:
    """Plays a sample's task with the model that is evaluated, and records the episode."""
    worlds = _Worlds(world, seed)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        task_number, sibling = int(state.metadata["task"]), state.epoch - 1
        pool = await to_thread.run_sync(worlds.pool, task_number, sibling)
        try:
            slot = await to_thread.run_sync(worlds.begin, pool)
            slot = replace(slot, episode_index=task_number * siblings + sibling)
            await _play(state, pool, slot, context, seed)
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(pool.close)
        return state

    return solve


async def _play(
    state: TaskState, pool: EnvPool, slot: Slot, context: ContextConfig, seed: int
) -> None:
    """Play an episode to its end, or to where Inspect ends it.

    Raises:
        EpisodeFailedError: the world failed; what was played is recorded.
    """
    from echoscope.store.importers.formats.inspect_metadata import episode_metadata
    from echoscope.store.records import Split, StopReason

    from ..rollout.episode import sampling_seed
    from .dialogue import PlayedDialogue

    model = get_model()
    dialogue = PlayedDialogue(slot=slot, context=context, observation=slot.observation)

    async def ask(messages: list[ChatMessage], tools: list[ToolInfo], turn: int) -> ModelOutput:
        state.messages = messages
        sampling = sampling_seed(seed, Split.EVAL, _STEP, slot.episode_index, turn)
        config = GenerateConfig() if model.config.seed else GenerateConfig(seed=sampling % 2**31)
        state.output = await model.generate(messages, tools=tools, config=config)
        if state.output.error:
            raise RuntimeError(state.output.error)
        return state.output

    async def step_world(actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        return await to_thread.run_sync(pool.step_one, 0, actions, is_well_formed)

    def cut(reason: StopReason) -> None:
        state.metadata |= episode_metadata(dialogue.ended(reason, step=_STEP, split=Split.EVAL))

    try:
        ended = await dialogue.play(ask, step_world, step=_STEP, split=Split.EVAL)
    except LimitExceededError as error:
        is_of_tokens = error.type in ("token", "cost")
        cut(StopReason.MAX_TOKENS if is_of_tokens else StopReason.MAX_TURNS)
        raise
    except get_cancelled_exc_class():  # a limit of time, or the end of everything
        cut(StopReason.MAX_TURNS)
        raise
    state.metadata |= episode_metadata(ended)
    state.messages = dialogue.messages
    if ended.turns:
        state.messages.append(state.output.message)
    if ended.final_observation:
        state.messages.append(ChatMessageUser(content=ended.final_observation))
    if ended.stop_reason.is_failure:
        raise EpisodeFailedError(
            f"the episode ended with {ended.stop_reason}: {ended.final_observation}"
        )
    state.completed = True


def _scorer_of(name: str, average: Metric) -> Any:
    """What reads one score of the episode that the solver recorded; NaN where it has none."""

    @scorer(metrics=[average, stderr()], name=name)
    def make() -> Scorer:
        from echoscope.store.importers.formats.inspect_metadata import scores_of

        async def score(state: TaskState, target: Target) -> Score:
            return Score(value=scores_of(state.metadata).get(name, math.nan))

        return score

    return make


SCORERS = (
    _scorer_of("success", accuracy()),
    _scorer_of("return", mean()),
    _scorer_of("turns", mean()),
    _scorer_of("valid_actions", mean()),
    _scorer_of("effective_actions", mean()),
)
"""Whether the task was solved; rewards of the episode with the penalties for replies that the world
could not use; how many replies it took; the share of them whose actions the world took, and that of
those that changed the world."""
