"""Which tactics are sent to Lean at all.

A proof counts only if it is a proof of the stated theorem. Three things assure that:

1. Tactics stand between brackets, `theorem t : P := (by ... )`. A command (`theorem`, `axiom`,
   `macro`) cannot stand between brackets: Lean's parser refuses it, wherever it came from. To get
   out, a tactic would have to close the bracket. So its brackets must match, and whatever could
   hide a bracket from the counting (strings with more than words, characters, quoted names) is
   refused. Comments are left out before anything is read.
2. Words that give up (`sorry`), that begin commands, or that run programs inside Lean are refused.
3. `#print axioms t` has the last word: see `verdicts.py`.
"""

from __future__ import annotations

import re

from ...base import shorten

MAX_CHARS = 2_000
MAX_LINES = 40
GIVING_UP = frozenset({"sorry", "admit", "sorryAx"})
NATIVE = frozenset({"native_decide", "bv_decide", "ofReduceBool", "ofReduceNat", "trustCompiler"})
COMMANDS = frozenset({
    "theorem", "lemma", "def", "abbrev", "axiom", "opaque", "instance", "example", "structure",
    "class", "inductive", "coinductive", "namespace", "section", "end", "variable", "universe",
    "open", "import", "export", "module", "prelude", "public", "meta", "macro", "macro_rules",
    "syntax", "notation", "notation3", "infix", "infixl", "infixr", "prefix", "postfix", "elab",
    "elab_rules", "attribute", "set_option", "local", "scoped", "private", "protected",
    "noncomputable", "unsafe", "partial", "nonrec", "mutual", "deriving", "include", "omit",
    "initialize", "builtin_initialize", "declare_syntax_cat", "simproc", "dsimproc", "alias",
    "run_cmd", "run_elab", "run_meta", "run_tac", "by_elab", "unif_hint", "add_decl_doc",
    "irreducible_def", "implemented_by", "extern", "csimp", "include_str", "dbg_trace", "unseal",
    "seal", "where", "stop",
})  # fmt: skip
PROGRAMS = frozenset({"Lean", "IO", "System"})
"""Namespaces of programs and of Lean's own inside."""
_PAIRS = {")": "(", "]": "[", "}": "{", "⟩": "⟨", "⟧": "⟦", "⦄": "⦃", "⌋": "⌊", "⌉": "⌈"}
_HIDES_BRACKETS = {
    '"': "a string",
    "`": "a quotation",
    "«": "a quoted name",
    "»": "a quoted name",
    "--": "a comment",
    "/-": "a comment",
    "-/": "a comment",
}
_STRING = re.compile(r'"[A-Za-z0-9 .,:;!?+*=<>_%&-]*"')
"""A string that hides nothing: neither a bracket nor an escape. Its words are read like others."""
_SPEAKS = re.compile(r"\btrace\b")
"""A message of the tactic's own could look like one of Lean's."""
_COMMENT = re.compile(r'"[^"\n]*"|--[^\n]*|/-(?:(?!/-|-/).)*-/', re.DOTALL)
"""A string, which is kept, or an innermost comment."""
MAX_NESTED = 4
# What Lean reads as an identifier; a name that is larger here than there could hide a character.
_LETTER = r"A-Za-z_\u0391-\u039f\u03a1\u03a4-\u03ba\u03bc-\u03c9\u2100-\u214f"
_WORD = rf"[{_LETTER}][{_LETTER}0-9'!?\u2080-\u2089\u2090-\u209c]*"
_PATH = re.compile(rf"{_WORD}(?:\.{_WORD})*")
_NO_CHARACTER = re.compile(rf"{_WORD}|''")
"""Where an apostrophe is part of a name, or Mathlib's sign for the image of a set."""


_OPENER = re.compile(
    rf"(?:open(?P<names>(?:[ ]+{_PATH.pattern})+)|"
    r"set_option[ ]+(?:maxRecDepth|maxHeartbeats)[ ]+[0-9]{1,7})[ ]+in\s+"
)
"""What may stand before a tactic: other names for what is there, and more room to compute."""


def without_comments(tactic: str) -> str:
    """A tactic without its comments and empty lines.

    Lean gets the result and nothing else, so it does not matter what a comment held, or whether it
    was one: what is left is read by `refusal`.
    """
    for _ in range(MAX_NESTED):
        tactic = _COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else " ", tactic)
    lines = (line.rstrip() for line in tactic.strip().split("\n"))
    return "\n".join(line for line in lines if line.strip())


def refusal(tactic: str) -> str:
    """Why a tactic is not sent to Lean, as a clause; "" if it is.

    >>> refusal("exact h.1")
    ''
    >>> refusal("have h : False := sorry")
    'sorry gives up instead of proving'
    """
    if not tactic.strip():
        return "there is no tactic"
    if len(tactic) > MAX_CHARS or tactic.count("\n") >= MAX_LINES:
        return f"it has more than {MAX_CHARS} characters or {MAX_LINES} lines"
    for char in tactic:
        if char != "\n" and not (char.isprintable() or char == " "):
            return f"it holds the character U+{ord(char):04X}, which is not printable"
    if not _SPEAKS.search(tactic):
        tactic = _STRING.sub(lambda match: f" {match[0][1:-1]} ", tactic)
    for mark, name in _HIDES_BRACKETS.items():
        if mark in tactic:
            return f"{name} ({mark}) may not stand in a tactic"
    if "'" in _NO_CHARACTER.sub(" ", tactic):
        return "a character (') may not stand in a tactic"
    if "#" in tactic.replace("#[", ""):
        return "a command (#) may not stand in a tactic"
    if "@[" in tactic:
        return "an attribute (@[) may not stand in a tactic"
    return _word_refusal(tactic) or _bracket_refusal(tactic)


def _word_refusal(tactic: str) -> str:
    for path in _PATH.finditer(_without_openers(tactic)):
        path_words = path[0].split(".")
        for word in path_words:
            if word in GIVING_UP:
                return f"{word} gives up instead of proving"
            if word in NATIVE:
                return f"{word} trusts the compiler and not the kernel"
        if path_words[0] in COMMANDS and len(path_words) == 1:
            return f"{path_words[0]} is no tactic"
        if PROGRAMS & {*path_words}:
            return f"{shorten(path[0])} belongs to Lean's programs"
    if re.search(r"\+\s*native\b", tactic):
        return "+native trusts the compiler and not the kernel"
    return ""


def _without_openers(tactic: str) -> str:
    """A tactic without `open ... in` and such before it; the names in them stay."""
    names = []
    while opener := _OPENER.match(tactic):
        names.append(opener["names"] or "")
        tactic = tactic[opener.end() :]
    return " ".join([*names, tactic])


def _bracket_refusal(tactic: str) -> str:
    is_open: list[str] = []
    for char in tactic:
        if char in _PAIRS.values():
            is_open.append(char)
        elif char in _PAIRS and (not is_open or is_open.pop() != _PAIRS[char]):
            return f"the bracket {char} closes nothing"
    return f"the bracket {is_open[-1]} is not closed" if is_open else ""
