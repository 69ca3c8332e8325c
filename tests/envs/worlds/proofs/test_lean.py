"""The world of proofs, with the scripted server; with a real Lean where one is set."""

from __future__ import annotations

from typing import Any

import pytest
import scripted_lean
from pools import begin

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.turns.runner import TurnRunner
from echoscope.envs.turns.turn import TurnSettings
from echoscope.envs.worlds.proofs import lean
from echoscope.envs.worlds.proofs.lean import Lean, LeanConfig


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    lean._verdicts.clear()


def seed_of(world: Lean, name: str) -> int:
    """A seed that draws this theorem."""
    return next(s for s in range(500) if f"theorem {name} " in world.reset(s, 0).text)


def started(kimina: scripted_lean.Kimina, name: str = "made_and_swap") -> Lean:
    world = Lean(LeanConfig(server=kimina.url, timeout_s=1.0, wait_s=0.5))
    world.reset(seed_of(world, name), 0)
    return world


@pytest.mark.long
def test_it_keeps_the_contract_with_the_scripted_server(kimina: scripted_lean.Kimina) -> None:
    report = check_env("lean", {"server": kimina.url})
    assert report.failed == {}
    assert "expert" in report.passed


def test_an_episode_by_hand(kimina: scripted_lean.Kimina) -> None:
    world = started(kimina)
    first = world.reset(seed_of(world, "made_and_swap"), 0)
    assert first.text == (
        "A conjunction may be turned round.\ntheorem made_and_swap (p q : Prop) : p ∧ q → q ∧ p"
    )
    step = world.step("intro h")
    assert (step.reward, step.is_effective, step.terminated) == (-0.1, True, False)
    assert step.observation.text == "Proof so far:\n1. intro h\nGoals:\nstep : 1\n⊢ 3 to go"
    wrong = world.step("exact h.2")
    assert wrong.observation.text == "Rejected: Unknown identifier `h.2`"
    assert (wrong.reward, wrong.is_valid, wrong.is_effective) == (-1.1, True, False)
    assert world.solve() == ["constructor", "exact h.2", "exact h.1"]
    rewards = [world.step(tactic) for tactic in world.solve() or []]
    assert [result.reward for result in rewards] == [-0.1, -0.1, 9.9]
    assert rewards[-1].observation.text.endswith("4. exact h.1\nProved.")
    assert (rewards[-1].terminated, rewards[-1].success, world.solve()) == (True, True, [])
    after = world.step("intro h")
    assert (after.is_valid, after.reward, after.terminated) == (False, 0.0, True)


def test_accepted_steps_that_prove_nothing_earn_nothing(kimina: scripted_lean.Kimina) -> None:
    world = started(kimina)
    result = world.step("intro h")
    assert (result.is_effective, result.success, result.reward) == (True, False, -0.1)
    paid = Lean(LeanConfig(server=kimina.url, accepted_reward=1.0))
    paid.reset(seed_of(paid, "made_and_swap"), 0)
    assert paid.step("intro h").reward == 0.9


def test_a_comment_on_a_line_is_left_out_of_the_proof(kimina: scripted_lean.Kimina) -> None:
    result = started(kimina).step("intro h -- p and q")
    assert (result.is_valid, result.is_effective) == (True, True)
    assert result.observation.text.startswith("Proof so far:\n1. intro h\n")


def test_a_step_that_changes_no_goal_earns_nothing_and_is_not_kept(
    kimina: scripted_lean.Kimina,
) -> None:
    world = started(kimina)
    result = world.step("skip")
    assert (result.reward, result.is_effective) == (-0.1, False)
    assert result.observation.text.startswith("That changes nothing.")
    assert result.info == {"accepted_tactics": 0.0}


@pytest.mark.parametrize(
    "tactic", ["sorry", "trivial\nend\ntheorem x : True := trivial", "#eval 1", "x" * 1_000_000]
)
def test_a_refused_tactic_never_reaches_lean(kimina: scripted_lean.Kimina, tactic: str) -> None:
    world = started(kimina)
    result = world.step(tactic)
    assert kimina.requests == []
    assert (result.is_valid, result.reward, result.terminated) == (False, -1.1, False)
    assert result.observation.text.startswith(world.invalid_notice(tactic))
    assert "Refused: " in result.observation.text
    assert len(result.observation.text) < 500


def test_lean_is_asked_once_for_one_step(kimina: scripted_lean.Kimina) -> None:
    for _ in range(3):
        started(kimina).step("intro h")
    assert len(kimina.requests) == 2  # the theorem itself, and the step


def test_a_lie_about_the_axioms_does_not_end_the_proof(kimina: scripted_lean.Kimina) -> None:
    def forged(code: str) -> dict[str, Any]:
        response = scripted_lean.respond(code)
        for message in response.get("messages", ()):
            message["data"] = message["data"].replace("any axioms", "any axioms [cheat]")
        return response

    kimina.respond = forged
    world = started(kimina, "made_add_zero")
    result = world.step("rfl")
    assert (result.success, result.reward) == (False, -1.1)
    assert "did not say which axioms" in result.observation.text


def test_a_theorem_that_lean_cannot_read_is_not_learned_from(kimina: scripted_lean.Kimina) -> None:
    kimina.respond = lambda _: {
        "env": 0,
        "messages": [scripted_lean.message("error", 1, 0, "Unknown identifier `\u211d`")],
    }
    with pytest.raises(EnvUnavailableError, match="cannot read the theorem made_self: Unknown"):
        started(kimina, "made_self").step("intro h")


def test_a_server_that_dies_in_the_middle_ends_the_episode_with_its_reason() -> None:
    with scripted_lean.kimina() as server:
        runner = TurnRunner(
            lambda: Lean(LeanConfig(server=server.url, timeout_s=1.0, wait_s=0.5)),
            TurnSettings(max_turns=10, max_actions_per_turn=1),
        )
        runner.reset(seed_of(Lean(LeanConfig(server=server.url)), "made_and_swap"), 0)
        assert runner.step_turn(["intro h"], True).stop_reason is None
    result = runner.step_turn(["constructor"], True)
    assert result.stop_reason == "env_error"
    assert "the Lean server at http://127.0.0.1" in (result.error or "")
    assert result.success is None


def test_episodes_begin_again_when_the_server_is_back(kimina: scripted_lean.Kimina) -> None:
    def hang_up(handler: Any) -> bool:
        handler.connection.close()
        return True

    params = {"server": kimina.url, "timeout_s": 1.0, "wait_s": 0.5}
    group = EnvGroup(env="lean", tag="lean", groups=2, params=params, max_turns=3)
    ends = []
    with EnvPool([group], group_size=2, seed=0, split="train") as pool:
        for step, trouble in enumerate((None, hang_up, None)):
            lean._verdicts.clear()
            kimina.trouble = trouble
            slots = [slot.index for slot in begin(pool, step)]
            results = {slot: pool.step_one(slot, ["no_such_tactic"], True) for slot in slots}
            ends.append({result.stop_reason for result in results.values()})
    assert ends == [{None}, {"env_error"}, {None}]


def test_without_a_server_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAN_SERVER_API_URL", raising=False)
    assert registry.unavailable()["lean"].startswith("needs Lean: set the environment variable")
    report = check_env("lean")
    assert report.is_ok
    assert "LEAN_SERVER_API_URL" in report.skipped["all"]
    monkeypatch.setenv("LEAN_SERVER_API_URL", "http://127.0.0.1:9")
    assert "lean" not in registry.unavailable()
    monkeypatch.setenv("LEAN_SERVER_API_URL", "nowhere")
    with pytest.raises(EnvUnavailableError, match="LEAN_SERVER_API_URL: server is 'nowhere'"):
        registry.make("lean")


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"server": "127.0.0.1:8000"}, "must look like http://127.0.0.1:8000"),
        ({"server": "file:///etc/passwd"}, "must look like http"),
        ({"server": "http://a:b"}, "must look like http"),
        ({"server": "http://a", "repl": "b"}, "server and repl are both given"),
        ({"project": "b"}, "project needs repl"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"memory_mb": 1}, "memory_mb is 1"),
    ],
)
def test_impossible_parameters_are_refused(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EnvParamsError, match=sentence):
        registry.make("lean", **params)
