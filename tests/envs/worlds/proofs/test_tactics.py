"""Which tactics reach Lean: nothing that could prove something else, or nothing at all."""

from __future__ import annotations

import pytest
from costs import processor_seconds

from echoscope.envs.worlds.proofs.tactics import COMMANDS, refusal, without_comments


@pytest.mark.parametrize(
    "tactic",
    [
        "intro h",
        "exact ⟨h.1, fun x => h.2 x⟩",
        "cases h with\n| inl hp => exact Or.inr hp\n| inr hq => exact Or.inl hq",
        "simp only [Nat.add_comm, ← h'] at h₁ ⊢",
        "rcases h with ⟨x, hx, rfl⟩ | h",
        "have h₂ : ∀ n : \u2115, n ≤ n + 1 := fun n => Nat.le_succ n",
        "nlinarith [sq_nonneg (a - b), mul_pos ha hb]",
        "norm_num [Nat.choose, f''] at *",
        "exact Set.image_subset f '' s",
        "simp [Finset.sum_range_succ, Polynomial.eval, Range.stop]",
        "refine ⟨#[1, 2], ?_⟩ <;> omega",
        "rw [abs_of_nonneg (by positivity : (0 : \u211d) ≤ x)]",
        "interval_cases n <;> simp_all",
        "exact h.elim",
        "open Classical in exact em p",
        "open Nat Finset.Basic in\nsimp",
        "set_option maxRecDepth 2000 in open Nat in decide",
        'exact congrArg (f "a: b, c.") h',
    ],
)
def test_what_proofs_are_made_of_is_sent(tactic: str) -> None:
    assert refusal(tactic) == ""


@pytest.mark.parametrize(
    ("tactic", "reason"),
    [
        ("", "there is no tactic"),
        (" \n ", "there is no tactic"),
        ("sorry", "sorry gives up"),
        ("exact (sorry)", "sorry gives up"),
        ("exact sorryAx _ true", "sorryAx gives up"),
        ("exact _root_.sorryAx _ true", "sorryAx gives up"),
        ("admit", "admit gives up"),
        ("stop", "stop is no tactic"),
        ("axiom cheat : False", "axiom is no tactic"),
        ("native_decide", "native_decide trusts the compiler"),
        ("decide +native", r"\+native trusts the compiler"),
        ("exact Lean.ofReduceBool _ _ rfl", "ofReduceBool trusts the compiler"),
        ("#eval 1", r"a command \(#\)"),
        ("#print axioms foo", r"a command \(#\)"),
        ("import Mathlib", "import is no tactic"),
        ("trivial\nend\ntheorem other : True := by trivial", "end is no tactic"),
        ("trivial\ntheorem other : True := trivial", "theorem is no tactic"),
        ("macro x : tactic => x", "macro is no tactic"),
        ("set_option debug.skipKernelTC true in trivial", "set_option is no tactic"),
        ("open Lean in trivial", "Lean belongs to Lean's programs"),
        ("open Lean.Elab Nat in trivial", "Lean.Elab belongs to Lean's programs"),
        ("open Nat", "open is no tactic"),
        ("open Nat in", "open is no tactic"),
        ("open Nat in sorry", "sorry gives up"),
        ("trivial\nopen Nat in trivial", "open is no tactic"),
        ("set_option maxRecDepth 99999999 in simp", "set_option is no tactic"),
        ("set_option maxRecDepth 9 in end", "end is no tactic"),
        ("run_tac IO.FS.removeFile x", "run_tac is no tactic"),
        ("exact (unsafe f)", "unsafe is no tactic"),
        ("exact IO.mkRef 0", "IO.mkRef belongs to Lean's programs"),
        ("exact Lean.Elab.x", "Lean.Elab.x belongs to Lean's programs"),
        ("trivial -- done", r"a comment \(--\)"),  # what `without_comments` left
        ("trivial /- the rest", r"a comment \(/-\)"),
        ("-/ trivial", r"a comment \(-/\)"),
        ('trace "x"', r'a string \("\)'),
        ('exact f "sorry"', "sorry gives up"),
        ('exact f "(" )', r'a string \("\)'),
        ('exact f "\\"" ) "', r'a string \("\)'),
        ('exact f s!"{x}"', r'a string \("\)'),
        ('exact f "a\n"', r'a string \("\)'),
        ('exact f \'"\' ) "x"', r'a string \("\)'),
        ("exact `h", "a quotation"),
        ("exact «sorry»", "a quoted name"),
        ("@[simp] x", "an attribute"),
        ("trivial)", r"the bracket \) closes nothing"),
        ("trivial )\ntheorem_x : False := (h", r"the bracket \) closes nothing"),
        ("exact (h", r"the bracket \( is not closed"),
        ("exact ⟨h)", r"the bracket \) closes nothing"),
        ("x\ttrivial", r"U\+0009"),
        ("x\rtrivial", r"U\+000D"),
        ("\x00", r"U\+0000"),
        ("\ud800", r"U\+D800"),
        ("tri\u200bvial", r"U\+200B"),
        ("\u202eexact h", r"U\+202E"),
        ("x" * 2001, "more than 2000 characters"),
        ("x\n" * 41, "or 40 lines"),
    ],
)
def test_what_could_cheat_is_refused_with_a_reason(tactic: str, reason: str) -> None:
    import re

    assert re.search(reason, refusal(tactic))


@pytest.mark.parametrize(
    "character", ["'('", "1'('", "x.1'('", "a⁻¹'('", "λ'('", ")'('", "'\\''", "'' '('", "h' '('"]
)
def test_a_character_cannot_hide_a_bracket(character: str) -> None:
    """In Lean these hold a character literal; the bracket that closes the proof would then be
    counted as its partner."""
    assert refusal(f"exact f {character} )") != ""


@pytest.mark.parametrize(
    ("tactic", "plain"),
    [
        ("intro h -- take it", "intro h"),
        ("-- first\nintro h  -- (\nexact h", "intro h\nexact h"),
        ("exact h", "exact h"),
        ("-- nothing else", ""),
        ("/- -- -/ exact h", "exact h"),
        ("a --- b", "a"),
        ("intro h /- ( sorry\n/- in it -/ ) -/\nexact h", "intro h\nexact h"),
        ("a -- /-\nb -/", "a\nb -/"),
        ("a /- b", "a /- b"),
        ('f "-/" /- " -/', 'f "-/"'),
    ],
)
def test_comments_are_left_out_before_anything_is_read(tactic: str, plain: str) -> None:
    assert without_comments(tactic) == plain


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_command_is_a_tactic(command: str) -> None:
    assert refusal(f"trivial\n{command} x") == f"{command} is no tactic"
    assert refusal(f"exact h.{command}") == ""


@pytest.mark.parametrize("char", ["a", "(", "'", "\n", "é", "⟨", "#", "."])
def test_a_megabyte_is_refused_at_once(char: str) -> None:
    with processor_seconds(2.0):
        assert refusal(char * 1_000_000) != ""
        assert refusal(char * 2_000) is not None
