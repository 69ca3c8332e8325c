"""A player behind a provider's interface: Inspect asks, retries, limits and counts the cost."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from inspect_ai.model import (
    ChatMessage,
    GenerateConfig,
    Model,
    ModelOutput,
    get_model,
)
from inspect_ai.tool import ToolInfo
from tenacity import RetryError

from echoscope.diagnostics.measure.outcomes import COST, INPUT_TOKENS, OUTPUT_TOKENS
from echoscope.envs.pool import Leader
from echoscope.envs.turns.turn import TurnResult
from echoscope.store.records import Split

from ..config.loading import ConfigError
from ..config.settings import RunConfig
from ..rollout.episode import sampling_seed
from .dialogue import PlayedDialogue, usage
from .players import IN_FLIGHT, Spent, TaskBatch
from .who import Who

KEY_VARIABLE = "LOCAL_API_KEY"
"""Holds the key for a server at an address."""
MAX_RETRIES = 5
"""Of one request, with Inspect's growing pauses."""
CONNECT_S = 10
REQUEST_S = 300
"""Longest wait for one answer."""
MAX_PROBLEMS = 5
"""Episodes in a row that could not be played, after which none begins any more."""
_WATCH_S = 0.1


class ProviderPlayer:
    """Plays in messages with a model of Inspect's model layer.

    Raises:
        ConfigError: no such provider, no key, or a setting that has no meaning for it.
    """

    def __init__(self, who: Who, config: RunConfig) -> None:
        _check(config)
        self._config = config
        self._price = who.price
        self._model = _model(who, config)
        self.spent = Spent()
        self._num_failed_in_a_row = 0

    def close(self) -> None:
        """Nothing is held open: each play closes its connections."""

    def play(self, part: TaskBatch) -> None:
        """See `Player`."""
        try:
            asyncio.run(self._play(part))
        except ExceptionGroup as group:  # the first world that failed
            raise _innermost(group) from None

    async def _play(self, part: TaskBatch) -> None:
        collection, pool = self._config.collection, part.pool
        first_group, size = pool.check_step(0), pool.group_size
        num_under_way = max(size, collection.max_in_flight or IN_FLIGHT)
        # Worlds wait in threads; asyncio's own few would make them wait for each other.
        threads = ThreadPoolExecutor(collection.num_threads(num_under_way))
        asyncio.get_running_loop().set_default_executor(threads)
        room = asyncio.Semaphore(num_under_way // size)
        tasks: list[asyncio.Task[None]] = []
        watcher = asyncio.create_task(_cancel_when(part.should_abort, tasks))

        async def group(p: int, slots: Sequence[int]) -> None:
            try:
                leader = await asyncio.to_thread(pool.lead, 0, p, first_group)
                async with asyncio.TaskGroup() as siblings:
                    for slot in slots:
                        siblings.create_task(self._episode(part, slot, leader))
            finally:
                room.release()

        try:
            async with self._model, asyncio.TaskGroup() as groups:
                for p in range(pool.num_groups):
                    slots = [s for s in pool.slots_of(p) if s not in part.played]
                    if not slots:
                        continue
                    await room.acquire()
                    has_given_up = self._num_failed_in_a_row >= MAX_PROBLEMS
                    if part.should_abort() or has_given_up or not part.may_begin():
                        break
                    tasks.append(groups.create_task(group(p, slots)))
        finally:
            watcher.cancel()

    async def _episode(self, part: TaskBatch, index: int, leader: Leader) -> None:
        pool = part.pool
        slot = await asyncio.to_thread(pool.start, index, leader)
        dialogue = PlayedDialogue(
            slot=slot, context=self._config.context, observation=slot.observation
        )

        async def generate(
            messages: list[ChatMessage], tools: list[ToolInfo], turn: int
        ) -> ModelOutput:
            seed = sampling_seed(self._config.seed, Split.EVAL, 0, slot.episode_index, turn)
            output = await self._model.generate(
                messages, tools=tools, config=GenerateConfig(seed=seed % 2**31)
            )
            self._count(output)
            if output.error:
                raise RuntimeError(output.error)
            return output

        async def step_world(actions: Sequence[str], is_well_formed: bool) -> TurnResult:
            return await asyncio.to_thread(pool.step_one, index, actions, is_well_formed)

        try:
            ended = await dialogue.play(generate, step_world, step=part.step, split=Split.EVAL)
        except Exception as error:  # noqa: BLE001 - every provider has classes of its own
            self._num_failed_in_a_row += 1
            problem = _problem(error)
            if problem not in self.spent.problems:
                self.spent.problems.append(problem)
            return
        self._num_failed_in_a_row = 0
        part.on_finished([ended])

    def _count(self, output: ModelOutput) -> None:
        """Add what a reply cost; by the price that was given, where one was."""
        used = usage(output)
        num_in, num_out = used.get(INPUT_TOKENS, 0.0), used.get(OUTPUT_TOKENS, 0.0)
        if self._price is not None and output.usage is not None:
            output.usage.total_cost = (self._price[0] * num_in + self._price[1] * num_out) / 1e6
        self.spent.add(int(num_in), int(num_out), usage(output).get(COST))


async def _cancel_when(
    should_abort: Callable[[], bool], tasks: Sequence[asyncio.Task[None]]
) -> None:
    """Cancel what is in play once that is asked for."""
    while not should_abort():
        await asyncio.sleep(_WATCH_S)
    for task in tasks:
        task.cancel()


def _model(who: Who, config: RunConfig) -> Model:
    """Inspect's model of this name.

    Raises:
        ConfigError: what is wrong with it, in one sentence.
    """
    address, _, name = who.typed.partition("#")
    if name:
        _check_there(address)
    settings = GenerateConfig(
        max_tokens=config.context.max_response_tokens,
        temperature=config.eval.temperature,
        max_retries=MAX_RETRIES,
        attempt_timeout=REQUEST_S,
        max_connections=config.collection.max_in_flight,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request
    try:
        if name:
            return get_model(
                f"openai-api/local/{name}",
                config=settings,
                base_url=address,
                api_key=os.environ.get(KEY_VARIABLE, "none"),  # one's own servers take any
                memoize=False,
            )
        return get_model(who.typed, config=settings, memoize=False)
    except Exception as error:  # noqa: BLE001 - packages, keys and names, each with its own class
        raise ConfigError(f"{who.typed} cannot be asked: {_problem(error)}") from None


def _check_there(address: str) -> None:
    """Raises ConfigError where nobody listens: each request would try six times to find out."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_S).close()
    except OSError as error:
        raise ConfigError(f"nobody answers at {address} ({error.strerror or error})") from None


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _problem(error: BaseException) -> str:
    """What went wrong at last, after all attempts, in one line."""
    if isinstance(error, RetryError) and (last := error.last_attempt.exception()) is not None:
        return f"{_problem(last)} ({error.last_attempt.attempt_number} attempts)"
    text = re.sub(r"\[/?[a-z ]+\]", "", str(error))  # marks of rich
    return " ".join(f"{type(error).__name__}: {text}".split())[:300]


def _check(config: RunConfig) -> None:
    """Raises ConfigError for what only a player with tokens here can do."""
    sampling, context = config.sampling, config.context
    for name, is_set in (
        ("context.history_turns", context.history_turns is not None),
        ("sampling.stop", bool(sampling.stop)),
        ("sampling.stop_token_ids", bool(sampling.stop_token_ids)),
    ):
        if is_set:
            raise ConfigError(
                f"{name} is set, but a provider's model is shown the whole conversation and ends "
                "its replies itself: leave it out"
            )
