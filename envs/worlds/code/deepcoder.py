"""DeepCoder: write a Python program that passes tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from ...base import EnvSpec, EnvUnavailableError, StepResult, hash_task
from ...params import require_within
from ..rows import shipped
from ..task_env import AttemptEnv, drawn
from .fences import program_of
from .problem_files import read_problems
from .programs import ProgramProblem, ProgramScore, judge
from .sandbox import Sandbox, SandboxLimits, why_not

MADE_PROBLEMS = shipped("programs.jsonl")
MAX_PROGRAM_CHARS = 50_000
_MAX_JUDGEMENTS = 2_000
_EVERY = 4
"""Part "eval" has every fourth problem of the file, part "train" the others."""
_judgements: dict[tuple[object, ...], ProgramScore] = {}
"""What programs did before, by problem with its tests, limits, walls and program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCoderConfig:
    """Source and limits of `deepcoder`.

    `data`: a file of problems in the shape of DeepCoder, PrimeIntellect, TACO, APPS or
    LiveCodeBench (JSON lines, a JSON list or Parquet); null takes the made ones that ship. The text
    of a problem is `problem`, `question`, `question_content` or `prompt`. Its tests are `tests`,
    `input_output` or `verification_info`: a list of `{input, output}`, or `{inputs, outputs}`, as
    it is or as JSON text; or LiveCodeBench's `public_test_cases` and `private_test_cases`,
    unpacked. `fn_name` of the tests or of each, or `func_name` of `metadata`, names the function
    that is called; without one, programs print. `starter_code` is shown below the text; the expert
    plays `solution` or the `solutions`. A file with a row that cannot be judged (no tests, a
    checker of its own, another language) is refused.

    `part`: which problems of the file, "all", "train", or "eval" (every fourth; no problem is in
    both). `attempts`: programs in an episode. `max_tests`: tests of a problem that are run; of
    more, half of them are those with the longest inputs and half are drawn, always the same.
    `seconds`, `memory_mb`: what a program may use per test. `unsafe`: run programs without the
    sandbox.
    """

    data: str | None = None
    part: Literal["all", "train", "eval"] = "all"
    attempts: int = 1
    max_tests: int = 10
    seconds: float = 3.0
    memory_mb: int = 256
    unsafe: bool = False

    def __post_init__(self) -> None:
        require_within(self, attempts=(1, math.inf), max_tests=(1, math.inf))
        require_within(self, seconds=(0.1, 600), memory_mb=(64, 1 << 16))


class DeepCoder(AttemptEnv[DeepCoderConfig]):
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
        All tests passed. What a function returns is compared as a value; what a program prints line
        by line and word by word; numbers with a point within 1e-6.
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
        config_type=DeepCoderConfig,
        max_turns=3,
        one_action=True,
        description="Write a Python program that passes the tests of a problem.",
    )
    title = "Program"
    max_framed_lines = 40

    @classmethod
    def lacks(cls) -> str:
        """Why no sandbox can be made here."""
        return why_not()

    def __init__(self, config: DeepCoderConfig | None = None) -> None:
        super().__init__(config)
        config = self._config
        file = config.data or MADE_PROBLEMS
        self._problems = part_of(read_problems(file, max_tests=config.max_tests), config.part)
        if not self._problems:
            raise EnvUnavailableError(
                f"{file} has too few different problems for a part {config.part!r}: it needs "
                f"{_EVERY}"
            )
        self._sandbox = Sandbox(_limits(config, self._problems), unsafe=config.unsafe)
        self._problem: ProgramProblem = self._problems[0]
        self._share_passed = 0.0

    def begin(self, seed: int, noise_seed: int) -> None:
        self._problem = self._problems[drawn(seed, len(self._problems))]
        self.pose(self._problem.text, self._problem.solution)

    def step(self, action: str) -> StepResult:
        self._share_passed = 0.0
        return super().step(action)

    def judge(self, action: str) -> tuple[float, bool, str] | None:
        program = program_of(action, self._problem.function)
        if not program.strip() or len(program) > MAX_PROGRAM_CHARS:
            return None
        judgement = self._judged(program)
        self._share_passed = judgement.share
        news = f"Passed {judgement.passed} of {judgement.total} tests. {judgement.first_failure}"
        return judgement.share, judgement.passed == judgement.total, news.strip()

    def instructions(self) -> str:
        return (
            "Write a Python program that solves the problem. It reads standard input and prints "
            "the answer, or defines the function that the problem names. Action: the program."
        )

    def guesses(self) -> tuple[str, ...]:
        return ("print(input())",)

    def task_key(self) -> str:
        return hash_task(self.spec.id, self._problem.text)

    @property
    def num_tasks(self) -> int:
        return len({problem.text for problem in self._problems})

    def _judged(self, program: str) -> ProgramScore:
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

    def info(self) -> dict[str, float]:
        return {"share_passed": self._share_passed}


def _limits(config: DeepCoderConfig, problems: tuple[ProgramProblem, ...]) -> SandboxLimits:
    """As configured, with room for the longest output that a test wants."""
    usual = SandboxLimits(seconds=config.seconds, memory_mb=config.memory_mb)
    longest = max(len(str(test.wanted)) for problem in problems for test in problem.tests)
    return replace(
        usual,
        output_chars=usual.output_chars + 2 * longest,
        file_mb=usual.file_mb + (4 * 2 * longest >> 20),
    )


def part_of(problems: tuple[ProgramProblem, ...], part: str) -> tuple[ProgramProblem, ...]:
    """The problems of "all", "train" or "eval": a text is in one of the last two only."""
    if part == "all":
        return problems
    texts = list(dict.fromkeys(problem.text for problem in problems))
    of_eval = set(texts[_EVERY - 1 :: _EVERY])
    return tuple(problem for problem in problems if (problem.text in of_eval) == (part == "eval"))
