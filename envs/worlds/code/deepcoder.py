"""DeepCoder: write a Python program that passes tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ...base import (
    EnvSpec,
    EnvUnavailableError,
    Observation,
    StepResult,
    TextEnv,
    check_seed,
    hash_task,
    prefixed,
)
from ...frames import card_frame
from ...params import require
from .fences import program_of
from .problem_files import read_problems
from .programs import Judgement, Problem, judge
from .sandbox import Limits, Sandbox, why_not

MADE_PROBLEMS = Path(__file__).parents[2] / "data" / "programs.jsonl"
MAX_PROGRAM_CHARS = 50_000
_MAX_JUDGEMENTS = 2_000
_EVERY = 4
"""Part "eval" has every fourth problem of the file, part "train" the others."""
_judgements: dict[tuple[object, ...], Judgement] = {}
"""What programs did before, by problem with its tests, limits, walls and program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCoderConfig:
    """Source and limits of `deepcoder`.

    `data`: a file of problems in the shape of DeepCoder, PrimeIntellect, TACO, APPS or
    LiveCodeBench (JSON lines, a JSON list or Parquet); null takes the made ones that ship. `part`:
    which problems of the file, "all", "train", or "eval" (every fourth; no problem is in both).
    `attempts`: programs in an episode. `max_tests`: tests of a problem that are run; of more, half
    of them are those with the longest inputs and half are drawn, always the same. `seconds`,
    `memory_mb`: what a program may use per test. `unsafe`: run programs without the sandbox.
    """

    data: str | None = None
    part: Literal["all", "train", "eval"] = "all"
    attempts: int = 1
    max_tests: int = 10
    seconds: float = 3.0
    memory_mb: int = 256
    unsafe: bool = False

    def __post_init__(self) -> None:
        require(self.attempts >= 1, f"attempts is {self.attempts}, but must be at least 1")
        require(self.max_tests >= 1, f"max_tests is {self.max_tests}, but must be at least 1")
        require(
            0.1 <= self.seconds <= 600,
            f"seconds is {self.seconds}, but must lie between 0.1 and 600",
        )
        require(
            64 <= self.memory_mb <= 1 << 16,
            f"memory_mb is {self.memory_mb}, but must lie between 64 and 65536",
        )


class DeepCoder(TextEnv):
    """A programming problem, answered with a Python program.

    Description:
        Programs run in a sandbox without a network, one process a test, with Python's own library
        and nothing else. They see the input of a test and never its output.
    Observation:
        The problem; after an attempt "Passed 2 of 3 tests. Test 3: it gave another output."
    Actions:
        A Python program, in a fenced block or bare: it reads standard input and prints, or defines
        the function that the problem names. Of several blocks it is the last that says python and
        prints, or defines the function.
    Rewards:
        The share of tests that passed.
    Episode end:
        All tests passed, or no attempt is left.
    Success:
        All tests passed.
    Seeds:
        `seed` draws the problem; `noise_seed` is not used.
    Requires:
        Linux and bubblewrap (Debian: `apt install bubblewrap`), or `unsafe: true`.
    Example:
        >>> world = DeepCoder(DeepCoderConfig(unsafe=True))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> world.step(world.solve()[0]).reward
        1.0
    """

    spec = EnvSpec(
        id="deepcoder",
        entry_point=f"{__name__}:DeepCoder",
        config_type=DeepCoderConfig,
        max_turns=3,
        max_actions_per_turn=1,
        one_action=True,
        description="Write a Python program that passes the tests of a problem.",
    )

    @classmethod
    def lacks(cls) -> str:
        """Why no sandbox can be made here."""
        return why_not()

    def __init__(self, config: DeepCoderConfig | None = None) -> None:
        self._config = config = DeepCoderConfig() if config is None else config
        super().__init__(config)
        file = config.data or str(MADE_PROBLEMS)
        self._problems = part_of(read_problems(file, max_tests=config.max_tests), config.part)
        if not self._problems:
            raise EnvUnavailableError(
                f"{file} has too few different problems for a part {config.part!r}: it needs "
                f"{_EVERY}"
            )
        self._sandbox = Sandbox(_limits(config, self._problems), unsafe=config.unsafe)
        self._problem: Problem = self._problems[0]
        self._num_attempts = 0
        self._is_solved = False

    def reset(self, seed: int, noise_seed: int) -> Observation:
        check_seed("noise_seed", noise_seed)
        rng = np.random.default_rng(check_seed("seed", seed))
        self._problem = self._problems[int(rng.integers(len(self._problems)))]
        self._num_attempts, self._is_solved = 0, False
        return self._observe(self._problem.text)

    def step(self, action: str) -> StepResult:
        program = program_of(action, self._problem.function)
        if self._is_over or not program.strip() or len(program) > MAX_PROGRAM_CHARS:
            observation = prefixed(self.invalid_notice(action), self._observe(self._problem.text))
            return self._result(observation, 0.0, is_valid=False)
        judgement = self._judged(program)
        self._num_attempts += 1
        self._is_solved = judgement.passed == judgement.total
        news = f"Passed {judgement.passed} of {judgement.total} tests. {judgement.first_failure}"
        return self._result(self._observe(news.strip()), judgement.share, is_valid=True)

    def instructions(self) -> str:
        return (
            "Write a Python program that solves the problem. It reads standard input and prints "
            "the answer, or defines the function that the problem names. Action: the program."
        )

    def solve(self) -> list[str] | None:
        """The program that came with the problem; None where there is none, or no attempt left."""
        if self._is_solved:
            return []
        return [self._problem.solution] if self._problem.solution and not self._is_over else None

    def guesses(self) -> tuple[str, ...]:
        """A program that repeats its input."""
        return ("print(input())",)

    def task_key(self) -> str:
        """The text of the problem."""
        return hash_task(self.spec.id, self._problem.text)

    @property
    def num_tasks(self) -> int:
        """The different problems."""
        return len({problem.text for problem in self._problems})

    def _judged(self, program: str) -> Judgement:
        """Siblings often write the same program, and it is to be judged the same."""
        config = self._config
        key = (self._problem.key, config.seconds, config.memory_mb, config.unsafe)
        earlier = _judgements.get((*key, program))
        if earlier is not None:
            return earlier
        judgement = judge(program, self._problem, self._sandbox)
        if not judgement.timed_out:  # a busy machine may have been the reason
            if len(_judgements) >= _MAX_JUDGEMENTS:
                _judgements.clear()
            _judgements[(*key, program)] = judgement
        return judgement

    @property
    def _is_over(self) -> bool:
        return self._is_solved or self._num_attempts >= self._config.attempts

    def _result(self, observation: Observation, reward: float, *, is_valid: bool) -> StepResult:
        return StepResult(
            observation=observation,
            reward=reward,
            terminated=self._is_over,
            success=self._is_solved,
            is_valid=is_valid,
            is_effective=is_valid,
            info={"share_passed": reward},
        )

    def _observe(self, text: str) -> Observation:
        lines = self._problem.text.splitlines()[:40]
        if text != self._problem.text:
            lines.append(text)
        return Observation(text=text, frame=card_frame("Program", lines))


def _limits(config: DeepCoderConfig, problems: tuple[Problem, ...]) -> Limits:
    """As configured, with room for the longest output that a test wants."""
    usual = Limits(seconds=config.seconds, memory_mb=config.memory_mb)
    longest = max(len(str(test.wanted)) for problem in problems for test in problem.tests)
    return replace(
        usual,
        output_chars=usual.output_chars + 2 * longest,
        file_mb=usual.file_mb + (4 * 2 * longest >> 20),
    )


def part_of(problems: tuple[Problem, ...], part: str) -> tuple[Problem, ...]:
    """The problems of "all", "train" or "eval": a text is in one of the last two only."""
    if part == "all":
        return problems
    texts = list(dict.fromkeys(problem.text for problem in problems))
    of_eval = set(texts[_EVERY - 1 :: _EVERY])
    return tuple(problem for problem in problems if (problem.text in of_eval) == (part == "eval"))
