"""EnvPool: P groups x G siblings of environments (the papers' Environment State Manager).

Every seed is a pure function of (seed, split, step, group, sibling), so a pool has no state to
checkpoint: a step of a new pool begins as that of an old one. Evaluation and probe tasks do not
depend on the step. The two lowest bits of a seed name its split, so the seeds of two splits never
meet; and a task that belongs to another split is drawn again, see `reserving.py`, so that the tasks
do not meet either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from . import registry
from .base import (
    EnvUnavailableError,
    Observation,
    SiblingMismatchError,
    Tool,
    shorten,
)
from .params import require
from .reserving import MAX_DRAWS, TaskVariety, gave_up, may_play, variety_of
from .settings import EnvGroup
from .streams import SPLIT_CODES, episode_seed
from .turns.runner import TurnRunner
from .turns.turn import FAILED, Opening, TurnEnv, TurnResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One episode that has just begun: where it stands, its seeds, and what it shows first."""

    index: int
    """Its place in the pool."""
    episode_index: int
    """Its place in the step: over all rounds."""
    group_index: int
    """Over all rounds of the step."""
    sibling_index: int
    env_id: str
    tag: str
    env_seed: int
    noise_seed: int
    task_key: str | None
    """None if the world could not start."""
    observation: Observation
    instructions: str
    tools: tuple[Tool, ...] = ()
    is_one_action: bool = False
    """A reply is one action: its text is not split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The task of a group, and the siblings that have been started on it."""

    first_group: int
    """Of the round of the step."""
    env_seed: int
    seen: Mapping[int, Opening]


class EnvPool:
    """P groups of G siblings; slot `p * G + g` is sibling g of group p.

    Groups are numbered through `groups` in order. Raises the registry's errors for an unknown
    environment or a bad parameter, `EnvUnavailableError` if no episode of a tag can start, and
    `SiblingMismatchError` if siblings see different first observations.

    Whoever starts the episodes of a step calls `check_step`, then for each group `lead`, `start`
    for each of its siblings and `check_group`, and last `check_started`; then `step_one`. Calls of
    different groups, and after `lead` of different slots, may run in different threads.

    Args:
        make_turns: builds the turns of an entry; `turns_of` if None.
        first_group: the number of its first group among those of the split: a pool may hold a part.
        first_sibling: the number of the first sibling of every group, for a part of the siblings.
        varieties: of each entry, where another pool with the same entries has found them out.
    """

    def __init__(
        self,
        groups: Sequence[EnvGroup],
        *,
        group_size: int,
        seed: int,
        split: str,
        make_turns: Callable[[EnvGroup], TurnEnv] | None = None,
        first_group: int = 0,
        first_sibling: int = 0,
        varieties: Sequence[TaskVariety] = (),
    ) -> None:
        require(len(groups) > 0, "a pool needs at least one environment group")
        require(group_size >= 1, f"group_size is {group_size}, but must be at least 1")
        splits = sorted(SPLIT_CODES)
        require(split in splits, f"split is {split!r}, but must be one of {splits}")
        require(seed >= 0, f"seed is {seed}, but must not be negative")
        self._seed, self._split, self.group_size = seed, split, group_size
        self._first_group, self._first_sibling = first_group, first_sibling
        self._groups = [group for group in groups for _ in range(group.groups)]
        self.num_groups = len(self._groups)
        self._entries = list(groups)
        self._are_one_action = [group.is_one_action for group in groups]
        self._makers: list[Callable[[], TurnEnv]] = [
            partial(make_turns, group) if make_turns else _runner_maker(group) for group in groups
        ]
        self._stacks: list[TurnEnv] = [
            make()
            for group, make in zip(groups, self._makers, strict=True)
            for _ in range(group.groups * group_size)
        ]
        self._resting: dict[tuple[int, int], TurnEnv] = {}
        """Slot and entry to a world that another entry has taken the place of."""
        self._is_running = [False] * len(self._stacks)
        self._noise_seeds = [0] * len(self._stacks)
        """Of the episode that each slot plays."""
        self._kinds = [kind for kind, group in enumerate(groups) for _ in range(group.groups)]
        self._varieties: list[TaskVariety] = list(varieties)
        self._fixed_seeds: dict[int, int] = {}
        self._is_abandoned = False

    def share(self, counts: Sequence[int]) -> None:
        """Give entry k `counts[k]` groups from the next step on, in the order of the entries.

        Raises:
            ValueError: not one count of at least 1 for each entry, or another sum than P.
        """
        if len(counts) != len(self._entries) or min(counts) < 1 or sum(counts) != self.num_groups:
            raise ValueError(
                f"{list(counts)} are not shares of {self.num_groups} groups among "
                f"{len(self._entries)} entries, each at least 1"
            )
        kinds = [kind for kind, count in enumerate(counts) for _ in range(count)]
        if kinds == self._kinds:
            return
        self.varieties()  # while every entry stands where it was built
        for p, (old, new) in enumerate(zip(self._kinds, kinds, strict=True)):
            if old == new:
                continue
            for slot in self.slots_of(p):
                self._resting[slot, old] = self._stacks[slot]
                rested = self._resting.pop((slot, new), None)
                self._stacks[slot] = self._makers[new]() if rested is None else rested
                self._is_running[slot] = False
        self._kinds = kinds
        self._groups = [self._entries[kind] for kind in kinds]

    def slots_of(self, p: int) -> range:
        """The slots of group p, one a sibling."""
        return range(p * self.group_size, (p + 1) * self.group_size)

    def check_step(self, step: int, draw_round: int = 0) -> int:
        """The number of the first group of this round of a step, whose episodes may now begin.

        Args:
            draw_round: 0, or how often the step has been asked for other tasks; of "train" only.

        Raises:
            EnvParamsError: no such step or round.
        """
        require(step >= 0, f"step is {step}, but must not be negative")
        is_first = draw_round == 0 or self._split == "train"
        require(is_first, f"the tasks of {self._split!r} are fixed: there is one round")
        self.varieties()
        return self._first_group + draw_round * len(self._groups)

    def step_one(self, index: int, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        """One turn of a running slot."""
        if not 0 <= index < len(self._stacks) or not self._is_running[index]:
            raise ValueError(f"slot {index} has no running episode")
        result = self._stacks[index].step_turn(list(actions), is_well_formed)
        self._is_running[index] = result.stop_reason is None
        return result

    def abandon(self) -> None:
        """Calls into environments were left behind: none is to be closed, some may hang."""
        self._is_abandoned = True

    def close(self) -> None:
        """Close every environment, unless some call into one was left behind."""
        for stack in () if self._is_abandoned else [*self._stacks, *self._resting.values()]:
            stack.close()
        self._stacks, self._is_running, self._resting = [], [], {}

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def varieties(self) -> list[tuple[str, TaskVariety]]:
        """(tag, how many different tasks it draws) of each environment group; found out once."""
        if not self._varieties:
            firsts = [self._kinds.index(kind) * self.group_size for kind in sorted({*self._kinds})]
            self._varieties = [variety_of(self._stacks[index]) for index in firsts]
        tags = [entry.name for entry in self._entries]
        return list(zip(tags, self._varieties, strict=True))

    def lead(self, step: int, p: int, first_group: int) -> Leader:
        """Draw the task of group p, and start one sibling on it, or more where some cannot start.

        The first sibling that starts tells whether the split may play the task. One that cannot
        start keeps its place, as a failed episode; if none can, the whole group has failed.
        """
        slots = self.slots_of(p)
        is_fixed = self._split != "train"
        is_reserving = self.varieties()[self._kinds[p]][1].is_enough
        for sibling, slot in enumerate(slots, start=self._first_sibling):
            self._noise_seeds[slot] = episode_seed(
                self._seed, self._split, "noise", step, first_group + p, sibling
            )
        for draw in range(MAX_DRAWS):
            drawn = episode_seed(self._seed, self._split, "tasks", step, first_group + p, draw)
            env_seed = self._fixed_seeds.get(p, drawn)
            seen: dict[int, Opening] = {}
            key = None
            for slot in slots:
                seen[slot] = self._stacks[slot].reset(env_seed, self._noise_seeds[slot])
                if (key := seen[slot].task_key) is not None:
                    break
            if key is None or not is_reserving or may_play(self._split, key):
                if is_fixed and key is not None:
                    self._fixed_seeds[p] = env_seed
                return Leader(first_group=first_group, env_seed=env_seed, seen=seen)
        raise gave_up(self._groups[p].name, self._split)

    def start(self, index: int, leader: Leader) -> Slot:
        """The episode of a sibling on the task of its group; `lead` may have started it."""
        opening = leader.seen.get(index)
        if opening is None:
            opening = self._stacks[index].reset(leader.env_seed, self._noise_seeds[index])
        p, g = divmod(index, self.group_size)
        self._is_running[index] = True
        return Slot(
            index=index,
            episode_index=leader.first_group * self.group_size + index,
            group_index=leader.first_group + p,
            sibling_index=self._first_sibling + g,
            env_id=self._groups[p].env,
            tag=self._groups[p].name,
            env_seed=leader.env_seed,
            noise_seed=self._noise_seeds[index],
            task_key=opening.task_key,
            observation=opening.observation,
            instructions=opening.instructions,
            tools=opening.tools,
            is_one_action=self._are_one_action[self._kinds[p]],
        )

    def check_started(self, slots: Sequence[Slot]) -> None:
        """One world that cannot start is data; a tag of which none can is a broken set-up.

        Raises:
            EnvUnavailableError: no episode of a tag could start.
        """
        for tag in dict.fromkeys(slot.tag for slot in slots):
            of_tag = [slot for slot in slots if slot.tag == tag]
            if all(slot.task_key is None for slot in of_tag):
                error = of_tag[0].observation.text.removeprefix(FAILED)
                raise EnvUnavailableError(f"no episode of {tag!r} could start: {error}")

    def check_group(self, slots: Sequence[Slot]) -> None:
        """Siblings of one group begin alike, but for those that could not start.

        Raises:
            SiblingMismatchError: some do not.
        """
        good = [slot for slot in slots if slot.task_key is not None]
        for slot in good:
            other = good[0]
            task = f"{slot.tag} ({slot.env_id}), env_seed {slot.env_seed}"
            if slot.observation != other.observation:
                raise SiblingMismatchError(
                    f"{task}: sibling {slot.sibling_index} begins with "
                    f"{shorten(slot.observation.text)!r}, sibling {other.sibling_index} with "
                    f"{shorten(other.observation.text)!r}; reset(seed, noise_seed) must draw the "
                    "task from seed alone"
                )
            if slot.task_key != other.task_key:
                raise SiblingMismatchError(
                    f"{task}: siblings {other.sibling_index} and {slot.sibling_index} begin alike, "
                    f"but their task keys are {other.task_key} and {slot.task_key}; task_key() "
                    "must depend on the task alone"
                )


def turns_of(group: EnvGroup) -> TurnRunner:
    """The turns of an entry, with its limits around a world in this process."""
    return _runner_maker(group)()


def _runner_maker(group: EnvGroup) -> Callable[[], TurnRunner]:
    """What builds `turns_of` an entry; its parameters are read once."""
    return partial(TurnRunner, registry.maker(group.env, **group.params), group.settings())
