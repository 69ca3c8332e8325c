"""ALFWorld: household tasks of ALFRED as text, in ALFWorld's own games."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ...base import EnvSpec, EnvUnavailableError
from ...params import require
from .engine_process import LIST_TIMEOUT_S, GameEngineError, shared_engine
from .text_game import TextGame

Split = Literal["train", "eval_in_distribution", "eval_out_of_distribution"]

WON_REWARD = 10.0
_FOLDERS: Mapping[Split, str] = {
    "train": "train",
    "eval_in_distribution": "valid_seen",
    "eval_out_of_distribution": "valid_unseen",
}
_WAY_OUT = (
    "run alfworld-download (of pip install -e '.[alfworld]') and set ALFWORLD_DATA to the "
    "folder it fills"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlfWorldConfig:
    """The games of `alfworld`.

    `split`: which of ALFWorld's games. `data`: their folder, instead of `$ALFWORLD_DATA`.
    `task_types`: 1 pick and place, 2 look in light, 3 clean, 4 heat, 5 cool, 6 pick two.
    `show_commands`: list what can be done now. `repeat_goal`: say the task in every observation.
    """

    split: Split = "train"
    data: str = ""
    task_types: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    show_commands: bool = True
    repeat_goal: bool = False

    def __post_init__(self) -> None:
        wrong = [number for number in self.task_types if number not in range(1, 7)]
        require(
            bool(self.task_types) and not wrong,
            f"task_types is {list(self.task_types)}, but must hold numbers from 1 to 6",
        )


class AlfWorld(TextGame):
    """A household task in text, such as "put a clean plate in the fridge".

    Description:
        ALFWorld tells the tasks of ALFRED as text games over TextWorld: a room with receptacles and
        objects, which are taken, cleaned, heated, cooled and put down. The games come from
        ALFWorld's data and are played by its own engine, in a process of their own.
    Observation:
        First the room and the task; then what the game answers. The last line lists the commands
        that are admissible now, unless `show_commands` is off.
    Actions:
        One of the admissible commands, in any letter case. Anything else is refused.
    Rewards:
        10 when the task is done, else 0.
    Episode end:
        The task is done.
    Success:
        The task is done.
    Seeds:
        `seed` modulo the number of games is the game, in the order of the sorted file names;
        `noise_seed` is not used.
    Requires:
        The package alfworld (`pip install -e '.[alfworld]'`), which builds jericho and a
        planner and needs a C++ compiler and cmake; and its data: `alfworld-download`, and
        ALFWORLD_DATA.
    Example:
        `echoscope envs play alfworld split=eval_out_of_distribution --seed 3`

        >>> AlfWorld.spec.requires, AlfWorldConfig().split
        (('alfworld',), 'train')
    """

    spec = EnvSpec(
        id="alfworld",
        config_type=AlfWorldConfig,
        max_turns=50,
        description="Do household tasks of ALFRED, told as text.",
        requires=("alfworld",),
        extra="alfworld",
    )

    examples = (
        "look, inventory, go to desk 1, open drawer 1, take mug 1 from desk 1, "
        "move mug 1 to shelf 1, clean mug 1 with sinkbasin 1, use desklamp 1"
    )
    _config: AlfWorldConfig

    def __init__(self, config: AlfWorldConfig | None = None) -> None:
        super().__init__(config)
        if lack := _missing(self._config.data, self._config.split):
            raise EnvUnavailableError(f"alfworld {lack}")
        self._games = games_of(data_folder(self._config.data), self._config.split,
                               self._config.task_types)  # fmt: skip

    @classmethod
    def lacks(cls) -> str:
        """The data of the default split, where it is not there."""
        return _missing("", AlfWorldConfig().split)

    @property
    def num_tasks(self) -> int:
        return len(self._games)

    def _game_of(self, seed: int) -> str:
        return self._games[seed % len(self._games)]

    def _reward(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
        return WON_REWARD if after["won"] and not before["won"] else 0.0


def data_folder(data: str) -> str:
    """Where ALFWorld's games lie: the parameter, else `$ALFWORLD_DATA`; "" if neither is given."""
    return os.path.expanduser(data or os.environ.get("ALFWORLD_DATA", ""))


def _missing(data: str, split: Split) -> str:
    folder = data_folder(data)
    if not folder:
        return f"needs ALFWorld's games, and ALFWORLD_DATA is not set: {_WAY_OUT}"
    games = Path(folder) / "json_2.1.1" / _FOLDERS[split]
    return "" if games.is_dir() else f"needs ALFWorld's games, but {games} is no folder: {_WAY_OUT}"


@lru_cache(maxsize=16)
def games_of(folder: str, split: Split, task_types: tuple[int, ...]) -> tuple[str, ...]:
    """The paths of a split's games, sorted. Opening all of them takes a while, so once a process.

    Raises:
        EnvUnavailableError: the folder holds no game of these types, or one that cannot be read.
    """
    try:
        listed = shared_engine().ask(
            LIST_TIMEOUT_S, do="list", data=folder, split=split, task_types=list(task_types)
        )
    except GameEngineError as error:
        raise EnvUnavailableError(f"alfworld cannot read the games in {folder}: {error}") from None
    games = tuple(listed["games"])
    if not games:
        raise EnvUnavailableError(
            f"alfworld has no playable game of the types {list(task_types)} for {split} in "
            f"{folder}: {_WAY_OUT}"
        )
    return games
