"""Worlds of other libraries: every generator of reasoning-gym, every one-player game of textarena.

`make test-worlds` installs both. What a policy writes reaches neither `eval` nor a file.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echoscope.envs.base import EnvParamsError, EnvUnavailableError, TextEnv, UnknownEnvError
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.registry import FAMILIES, family_names, make, resolve, spec
from echoscope.envs.worlds.questions.generator_worker import FORMULAS, LISTS, looks_like_data

WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Generators that know no answer of their own, but score any."""
SLOW = {"arc_agi", "futoshiki", "group_anagrams", "knight_swap", "rearc"}
"""They take up to ten seconds for a question."""
WORDS = ("Crosswords", "Hangman", "WordLadder", "WordSearch", "Wordle")
"""Games that download a list of words first."""


def generators() -> list[str]:
    return _names("reasoning_gym")


def games() -> list[str]:
    return _names("textarena")


def _names(family: str) -> list[str]:
    try:
        return [f"{family}:{name}" for name in family_names(family)]
    except EnvUnavailableError:
        return []


def test_a_family_without_a_name_says_how_to_find_one() -> None:
    for family in FAMILIES:
        with pytest.raises(UnknownEnvError, match=f"`echoscope envs list {family}` lists them"):
            resolve(family)
        assert spec(f"{family}:any").id == f"{family}:any"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("n_queens", "[__import__('os').system('true')]"),
        ("spiral_matrix", "[open('x', 'w')]"),
        ("binary_matrix", "[x for x in ().__class__.__mro__]"),
        ("string_insertion", "[exit()]"),
        ("countdown", "sympify('1')"),
        ("puzzle24", "(1).__class__"),
        ("simple_integration", "x.real"),
        ("intermediate_integration", "lambda: 1"),
        ("chain_sum", "1" * 4_001),
    ],
)
def test_an_answer_that_is_a_program_reaches_no_scorer(name: str, answer: str) -> None:
    assert not looks_like_data(name, answer)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("n_queens", "[['Q', '_'], ['_', 'Q']]"),
        ("spiral_matrix", "[1, 2, -3]"),
        ("countdown", "(25 - 3) * 4 + 0.5/2"),
        ("simple_integration", "3*x**2/2 + sin(x) + C"),
        ("chain_sum", "it's __twelve__ (12)"),
    ],
)
def test_an_answer_of_the_right_form_reaches_the_scorer(name: str, answer: str) -> None:
    assert looks_like_data(name, answer)


@pytest.fixture
def reasoning_gym() -> None:
    pytest.importorskip("reasoning_gym")


@pytest.mark.usefixtures("reasoning_gym")
class TestReasoningGym:
    def test_the_generators_that_evaluate_are_those_that_are_fenced(self) -> None:
        assert {name.partition(":")[2] for name in generators()} >= LISTS | FORMULAS

    @pytest.mark.slow
    @pytest.mark.parametrize("env_id", generators())
    def test_its_own_answer_earns_everything(self, env_id: str) -> None:
        env, seen = make(env_id), set()
        for seed in range(3):
            question = env.reset(seed, 0).text
            assert env.reset(seed, 1).text == question
            seen.add(question)
            answer = env.solve()
            assert (answer is None) == (env_id.partition(":")[2] in WITHOUT_ANSWER)
            if answer is not None:
                result = env.step(answer[0])
                assert (result.reward, result.success, result.terminated) == (1.0, True, True)
        assert len(seen) == 3

    @pytest.mark.slow
    @pytest.mark.parametrize("env_id", [*generators()[::3], *generators()[1::3]])
    def test_it_keeps_the_contract(self, env_id: str) -> None:
        if env_id.partition(":")[2] in SLOW:
            pytest.skip("takes minutes")
        assert_kept(env_id)

    def test_a_wrong_answer_may_be_tried_again_for_half(self) -> None:
        env = make("reasoning_gym:chain_sum", attempts=2)
        env.reset(0, 0)
        (right,) = env.solve() or ()
        assert env.step(f"{right}0").observation.text == "Wrong. Try again."
        assert env.step(right).reward == 0.5

    def test_a_scorer_that_runs_for_ever_makes_the_answer_invalid(self) -> None:
        env = make("reasoning_gym:countdown")
        env.reset(0, 0)
        result = env.step("factorial(factorial(factorial(20)))")
        assert not result.is_valid
        assert env.step((env.solve() or [""])[0]).success

    def test_what_reaches_sympy_can_open_nothing(self, tmp_path: Path) -> None:
        env = make("reasoning_gym:simple_integration")
        env.reset(0, 0)
        for text in ("preview(x)", "test()", "plot(x)"):
            assert env.step(text).reward < 1
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("env_id", "params", "text"),
        [
            ("reasoning_gym:chain_sums", {}, "did you mean 'chain_sum'"),
            ("reasoning_gym:chain_sum", {"params": {"min_termz": 2}}, "min_termz"),
            ("reasoning_gym:chain_sum", {"params": {"seed": 2}}, "the world sets itself"),
            ("reasoning_gym:chain_sum", {"name": "x"}, "has its name already"),
        ],
    )
    def test_what_no_generator_takes_is_named(
        self, env_id: str, params: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(EnvParamsError, match=text):
            make(env_id, **params)


def assert_kept(env_id: str) -> None:
    report = check_env(env_id)
    assert report.is_installed
    assert dict(report.failed) == {}


@pytest.fixture
def textarena() -> None:
    pytest.importorskip("textarena")


def started(env_id: str, seed: int) -> tuple[TextEnv, str]:
    env = make(env_id)
    try:
        return env, env.reset(seed, 0).text
    except EnvUnavailableError:
        assert env_id.partition(":")[2].startswith(WORDS)
        pytest.skip("needs a list of words")


MOVES = ("[1 2]", "[up]", "[left]", "[A]", "[5]", "[1]", "[wait]", "up", "[a b]", "[3 3 3]") * 2


@pytest.mark.usefixtures("textarena")
class TestTextArena:
    @pytest.mark.parametrize("env_id", games())
    def test_an_episode_is_its_seeds_alone_whatever_else_draws(self, env_id: str) -> None:
        env, first = started(env_id, 5)
        other, _ = started(env_id, 6)
        before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        told = [first, *(env.step(move).observation.text for move in MOVES)]
        again = [env.reset(5, 0).text]
        for move in MOVES:
            other.step(move)
            again.append(env.step(move).observation.text)
        assert told == again
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002

    @pytest.mark.slow
    @pytest.mark.parametrize("env_id", [name for name in games() if name.count("-") == 1])
    def test_it_keeps_the_contract(self, env_id: str) -> None:
        started(env_id, 0)
        assert_kept(env_id)

    def test_a_game_is_won(self) -> None:
        env = make("textarena:GuessTheNumber-v0")
        env.reset(1, 0)
        low, high = 1, 20
        while True:
            guess = (low + high) // 2
            result = env.step(f"[{guess}]")
            if result.terminated:
                break
            low, high = (
                (guess + 1, high) if "higher" in result.observation.text else (low, guess - 1)
            )
        assert (result.success, result.reward) == (True, 1.0)

    def test_a_move_that_breaks_the_game_is_invalid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        env = make("textarena:Mastermind-v0")
        env.reset(1, 0)
        game: Any = env._game  # type: ignore[attr-defined]

        def broken(action: str) -> None:
            raise IndexError(action)

        monkeypatch.setattr(game, "step", broken)
        result = env.step("[1 2 3 4]")
        assert (result.is_valid, result.terminated) == (False, False)

    def test_a_game_of_many_players_is_not_offered(self) -> None:
        with pytest.raises(EnvParamsError, match="no one-player game 'Chess-v0'"):
            make("textarena:Chess-v0")
