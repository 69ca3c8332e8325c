"""What stands before the words of a line: times, levels, loggers, ranks, bullets.

>>> without_prefix("2026-01-02 03:04:05,678 - trainer - INFO - | step | reward |")
'| step | reward |'
>>> without_prefix("(TaskRunner pid=7) [GRPO] Step 3: reward 0.5")
'Step 3: reward 0.5'
"""

from __future__ import annotations

import re

from ..foreign_names import meaning_of, step_rank

COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|SUCCESS|CRITICAL|DBG|INF|WRN)"
_TIME = r"\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?"
_DATE = r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[/.-]\d\d[/.-]\d{2,4}|\d{1,2}-[A-Z][a-z]{2}-\d{2,4})"
_ELEMENTS = (
    rf"\[?{_DATE}(?:[T _,-]+{_TIME})?(?:Z|[+-]\d\d:?\d\d)?(?: ?[AP]M| UTC)?\]?",
    rf"[\[(]?{_TIME}(?: ?[AP]M)?[\])]?(?=[\s\-|:\]])(?!\s*[</])",
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d+ "
    rf"{_TIME} \d{{4}}",
    r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+:\d+\]",  # glog
    rf"{_LEVEL}:[\w.]+:",
    rf"[\[(<]?\b{_LEVEL}\b[\])>]?:?",
    r"\(\w[\w.]*\s+pid=\d+[^)]*\)",  # Ray
    r"\[?\b(?:[Rr]ank|RANK)[ :=]?\d+\]?:",
    r"\[(?:[Rr]ank|RANK)[ :=]?\d+(?:/\d+)?\]:?",
    r"\d{1,3}:(?= [^\d\s])",  # srun
    r"\d{1,3}: (?=\{)",
    r"[\w.-]*[A-Za-z][\w.-]*-\d+\s+\|(?=\s)",  # docker compose
    r"wandb:",
    r"[\w./\\-]+\.py:\d+(?:\]|:)?",
    r"\[[\w./\\-]+\.py:\d+[^\]]*\]:?",
    r"[\w.]+:[\w<>.]+:\d+(?= - )",  # loguru
    r"\[(?!(?:[A-Za-z]*[Ss]tep|[Ii]ter|[Ee]p|[Uu]pdate|[Bb]atch|[Rr]ound|[Ee]poch|[Gg]en)\b)"
    r"[A-Za-z][A-Za-z_./ -]{0,30}\]:?(?=\s)",  # [GRPO]
    r">{2,}(?=\s)",
)
_AFTER = r"(?:\s+(?:[-|:·]|\u2013)(?=\s)|:(?=\s))?\s*"
_ELEMENT = re.compile("|".join(f"(?:{element})" for element in _ELEMENTS))
_GLUE = re.compile(_AFTER)
_LOGGER = re.compile(r"(?P<name>[A-Za-z_][\w.]{0,40})(?:\[\d+\])? (?:-|\||:) (?!\s*[-+.]?\d)")
"""The name of a logger, behind a time or a level and before a dash."""
_BULLET = re.compile(
    r"(?:[•●◦‣▪▶►→➤✓✔✅❌⚡*·»└├│╰╭╮╯─]+|[\U0001F300-\U0001FAFF\u2600-\u27BF\uFE0F\u200D]+"
    r"|-(?=\s)|>(?=\s))\s*"
)
MAX_ELEMENTS = 8


def _logger_at(text: str, offset: int) -> re.Match[str] | None:
    match = _LOGGER.match(text, offset)
    if match is None or step_rank(match["name"]) is not None or meaning_of(match["name"]):
        return None  # the first cell of a table's header, say
    return match


def without_prefix(text: str) -> str:
    """A line from its first own word on; what is left out names no metric."""
    offset, num_found = 0, 0
    rest = text.lstrip()
    if rest[:1] in "|┃║{+":
        return text
    offset = len(text) - len(rest)
    is_row = text.rstrip()[-1:] in tuple("|┃│║+┓┩┘╗╣")
    while num_found < MAX_ELEMENTS:
        match = _ELEMENT.match(text, offset) or (_logger_at(text, offset) if num_found else None)
        if match is None or match.end() == offset:
            break
        offset = match.end()
        num_found += 1
        glue = _GLUE.match(text, offset)
        if glue is None or (is_row and "|" in glue[0] and not _ELEMENT.match(text, glue.end())):
            offset += len(text[offset:]) - len(text[offset:].lstrip())
            break
        offset = glue.end()
    return text[offset:] if num_found else text


def without_bullet(text: str) -> str:
    """A line without the sign of a list before it.

    >>> without_bullet("  • Loss: 0.5"), without_bullet("- reward: -1")
    ('Loss: 0.5', 'reward: -1')
    """
    offset = len(text) - len(text.lstrip())
    for _ in range(3):
        match = _BULLET.match(text, offset)
        if match is None or match.end() == offset:
            break
        offset = match.end()
    return text[offset:]
