"""The world of proofs with a real Lean as the judge (`make test-lean`)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import real_lean
import scripted_lean

from echoscope.envs.checks.check_env import check_env
from echoscope.envs.worlds.proofs import lean
from echoscope.envs.worlds.proofs.backends import LocalRepl, read_repl_answer, shared_repl
from echoscope.envs.worlds.proofs.lean import Lean, LeanConfig
from echoscope.envs.worlds.proofs.statements import MADE_THEOREMS, Theorem, read_theorems
from echoscope.envs.worlds.proofs.verdicts import LeanTimeoutError, body_of, judge

THEOREMS = {theorem.name: theorem for theorem in read_theorems(MADE_THEOREMS, None)}
TIMEOUT_S = 120.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        bool(real_lean.lacking()) and "ECHOSCOPE_LEAN" not in os.environ,
        reason=real_lean.lacking() or "there is one",
    ),
]


@pytest.fixture(scope="module")
def repl() -> Iterator[LocalRepl]:
    """The process that the world of these parameters uses too."""
    params = real_lean.PARAMS
    backend = shared_repl(params["repl"], "", params["lake"], params["memory_mb"])
    yield backend
    backend.close()


@pytest.fixture
def world() -> Lean:
    """A world that remembers no verdict."""
    lean._verdicts.clear()
    return Lean(LeanConfig(**real_lean.PARAMS))


def draw(world: Lean, name: str) -> None:
    """Reset to this theorem."""
    for seed in range(500):
        if f"theorem {name} " in world.reset(seed, 0).text:
            return
    raise AssertionError(name)


@pytest.mark.parametrize("name", THEOREMS)
def test_each_shipped_proof_is_accepted_step_by_step(world: Lean, name: str) -> None:
    draw(world, name)
    results = [world.step(tactic) for tactic in THEOREMS[name].proof]
    assert [result.observation.text for result in results if not result.is_effective] == []
    assert [result.reward for result in results] == [-0.1] * (len(results) - 1) + [9.9]
    assert [result.success for result in results] == [False] * (len(results) - 1) + [True]


FALSE = Theorem(name="t", statement="theorem t : False")
SUM = Theorem(name="t", statement="theorem t : 2 + 2 = 4")
ENDLESS = (
    "set_option maxHeartbeats 0 in " + "iterate 10 (" * 10 + "skip" + ")" * 10
)  # nested: a long row of steps would reach the limit of the recursion, which ends it at once


@pytest.mark.parametrize(
    "tactic",
    [
        "sorry",
        "admit",
        "exact sorryAx _ true",
        "all_goals sorry",
        "have h : False := by skip\nexact h",
        "have h : False := by sorry\nexact h",
        "have h : False := ?_\nexact h",
        "suffices h : False from h",
        "refine ?_",
        "try done",
        "first | done | skip",
        "exact?",
        "stop",
        "exact t",
        "exact absurd rfl (nope)",
        "exact (by",
        "skip)\n\nend",
        "skip)\n\naxiom cheat : False\n\ntheorem u : False := (cheat",
        "exact cheat)\n\naxiom cheat : False\n\ntheorem u : False := (cheat",
        "skip)\n\nmacro_rules | `(tactic| skip) => `(tactic| sorry)\n\nexample : False := (by skip",
        "macro x : tactic => sorry",
        "axiom cheat : False",
        "open Classical in exact choice ⟨_⟩",
        "set_option maxRecDepth 100000 in exact t",
        "set_option debug.skipKernelTC true in sorry",
        "#print axioms t",
        "-- nothing",
        "/-",
        "run_tac Lean.Elab.Tactic.admitGoal (← Lean.Elab.Tactic.getMainGoal)",
        "decide",
        "exact unsafeCast ()",
        "exact lcProof",
    ],
)
def test_no_trick_proves_what_is_false(repl: LocalRepl, tactic: str) -> None:
    """These go to Lean itself, past the list of what is refused."""
    assert judge(repl, FALSE, [tactic], TIMEOUT_S).status in ("open", "rejected")


@pytest.mark.parametrize("tactic", ["native_decide", "decide +native"])
def test_what_trusts_the_compiler_is_rejected_for_its_axioms(repl: LocalRepl, tactic: str) -> None:
    assert judge(repl, SUM, ["decide"], TIMEOUT_S).status == "proved"
    verdict = judge(repl, SUM, [tactic], TIMEOUT_S)
    assert (verdict.status, verdict.text[:28]) == ("rejected", "The proof uses other axioms:")


def test_an_axiom_that_came_with_the_theorem_does_not_count(repl: LocalRepl) -> None:
    theorem = Theorem(name="t", statement="theorem t : False", header="axiom cheat : False")
    verdict = judge(repl, theorem, ["exact cheat"], TIMEOUT_S)
    assert (verdict.status, verdict.text) == ("rejected", "The proof uses other axioms: cheat.")


def test_a_rejected_tactic_changes_nothing(world: Lean) -> None:
    draw(world, "made_and_swap")
    world.step("intro h")
    before = world.solve()
    wrong = world.step("exact nope")
    assert wrong.observation.text == "Rejected: Unknown identifier `nope`"
    assert (wrong.reward, wrong.is_valid, wrong.is_effective) == (-1.1, True, False)
    assert world.step("skip").observation.text.startswith("That changes nothing.")
    assert world.solve() == before
    assert [world.step(tactic).success for tactic in before or []] == [False, False, True]


def test_the_scripted_lean_puts_its_messages_where_lean_does(repl: LocalRepl) -> None:
    theorem = THEOREMS["made_and_swap"]
    for tactics in ((), theorem.proof[:1], (*theorem.proof[:1], "exact nope"), theorem.proof):
        code = body_of(theorem, tactics)
        scripted = read_repl_answer(scripted_lean.respond(code)).messages
        real = repl.check("", code, TIMEOUT_S).messages
        assert [(each.severity, each.line) for each in real] == [
            (each.severity, each.line) for each in scripted
        ]


def test_a_runaway_tactic_ends_and_the_next_step_is_judged(repl: LocalRepl) -> None:
    endless = body_of(SUM, [ENDLESS])
    assert judge(repl, SUM, ["decide"], TIMEOUT_S).status == "proved"
    started = time.monotonic()
    with pytest.raises(LeanTimeoutError):
        repl.check("", endless, 2.0)
    assert time.monotonic() - started < 60  # it is killed, not waited for
    assert judge(repl, SUM, ["decide"], TIMEOUT_S).status == "proved"


def test_a_process_that_is_killed_in_a_step_costs_that_step(repl: LocalRepl) -> None:
    def kill() -> None:
        time.sleep(1)
        (child,) = psutil.Process().children()
        child.kill()

    assert judge(repl, SUM, ["decide"], TIMEOUT_S).status == "proved"
    killer = threading.Thread(target=kill)
    killer.start()
    verdict = judge(repl, SUM, [ENDLESS], TIMEOUT_S)
    killer.join()
    assert (verdict.status, verdict.is_lasting) == ("rejected", False)
    assert verdict.text == "Lean failed on this step: it ended."
    assert judge(repl, SUM, ["decide"], TIMEOUT_S).status == "proved"


def test_it_keeps_the_contract() -> None:
    report = check_env("lean", real_lean.PARAMS)
    assert report.failed == {}
    assert "expert" in report.passed
