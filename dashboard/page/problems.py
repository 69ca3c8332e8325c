"""What cannot be shown, in words, and the way out: pages draw it instead of a traceback."""

from __future__ import annotations


class Problem(Exception):  # noqa: N818 -- it is what a person has, not what a program did
    """Something cannot be shown.

    Args:
        text: What is the matter, in one sentence. May quote file names and messages: hostile text.
        advice: What to do about it; a command where one helps.
    """

    def __init__(self, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.advice = advice
