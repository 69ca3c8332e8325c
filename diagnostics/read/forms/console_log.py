"""Records of metrics in what a trainer printed: one grammar for every line.

| part of a line | such as |
| --- | --- |
| a prefix (`without_prefix`), if any | `2026-01-02 03:04:05 INFO `, `(TaskRunner pid=7) ` |
| the step, if it is said | `Step 3/400`, `step:3`, `Epoch:[2/3](7/100)` |
| pairs | `reward=0.5`, `reward: 0.5`, `{'reward': 0.5}`, `reward 0.5 \\| kl 0.1` |
| or the row of a table | `\\| reward \\| 0.5 \\|`; or a header, then rows of numbers |

Lines that say their step in the same way are one family of records, and so are dictionaries behind
`WORD N:`, whatever the word; lines of a pair each, until a name comes again, are one record of the
family `blocks`. The family that says most is the log. Only records with a name of the table count,
since console text is full of numbers. Nothing is evaluated.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..foreign_names import WORDS, is_understood, meaning_of, spelled, step_rank
from ..records import TRANSPARENT, Collector, Reading, finite_mean, to_number

MAX_PAIRS = 5_000
MAX_LINE_CHARS = 50_000
"""A longer line is no line of a log; patterns would take long on it."""
MAX_DICT_LINES = 400
MAX_OUTCOMES = 20
ENOUGH_ROWS = 8
MAX_CELLS = 60
BLOCKS = "blocks"
NUMBERED = "numbered dictionaries"

_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)%?"
    r"|[-+]?(?:nan|inf(?:inity)?)\b"
)
_WRAPPED = rf"(?:(?:np|numpy|torch|jnp)\.)?(?:float|int|tensor|array)\w*\(\[?(?:{_NUMBER})[^()]*\)"
_VALUE = rf"(?:{_WRAPPED}|{_NUMBER})"
_LIST = rf"\[\s*(?:{_VALUE}[\s,]*){{1,2000}}\]"
_WORD = r"[^\W\d_][\w/@.()*+\-]*"
_SCAN = re.compile(
    rf"""(?:(?P<quote>['"])(?P<key>[^'"]{{1,200}})(?P=quote)\s*:"""
    rf"""|(?<![\w/@.])(?P<name>{_WORD}(?: [\w/@.()+][\w/@.()+\-]*){{0,4}}?)\s*[:=])\s*"""
    rf"""(?:['"]?(?P<value>{_VALUE})(?![\w/-]|[.:,]\d)|(?P<list>{_LIST})|(?P<open>\{{))"""
    r"|(?P<start>\{)|(?P<close>\})",
    re.IGNORECASE,
)
"""A pair, or the beginning or end of a group of pairs."""
_UNSIGNED = re.compile(
    rf"(?:^|\s)(?P<name>{_WORD}(?: {_WORD}){{0,3}})\s+(?P<value>{_VALUE})\s*$", re.IGNORECASE
)
_PARTS = re.compile(r"\s*(?:[|;]|\s[-\u2013·•])\s+|\s*[|;]\s*|,(?=\s|[^\W\d])\s*|\s+/\s+|\s{2,}|\t")
_PADDED = re.compile(r"(?<=[A-Za-z_)@\d])\s{2,}(?=[-+]?\.?\d)")
_LEADERS = re.compile(
    r"\s*(?:\.{3,}|_{3,})\s*(?=[-+.\d])|(?<=[A-Za-z)\]])\s*(?:->|=>|→|⇒)\s*(?=[-+.]?\d)"
)
_UNITS = str.maketrans({"\u2212": "-", "\u00a0": " ", "\u2007": " ", "\u202f": " "})
_DICT = re.compile(r"\{\s*(?:$|['\"])")
_IN_DICT = re.compile(r"""(?:\S{1,30}:?\s+)?\s*['"}\]\d.+-]""")
_BARS = re.compile(r"[|│┃║]")
_SECTION = re.compile(r"^\s*[|│┃║]\s*(?P<name>[\w.\- ]+/)\s*[|│┃║]\s*[|│┃║]\s*$")
_SPLIT = re.compile(r"\b(train|val|valid|validation|eval|evaluation|test)\b\W*$", re.IGNORECASE)
"""Of which split the pairs behind it are: `train: loss=1 acc=0.5 | val: loss=2 acc=0.4`."""
_HEADING = re.compile(r"\W*(?P<word>[^\W\d_]+)[^\d:=]*:$")
"""Of which split the lines below it are: NeMo-RL's `Validation Results:`."""
_NUMBERED = re.compile(
    rf"(?:(?P<step>(?:\w+-)?step|train)|rollout|perf|passrate|{'|'.join(WORDS['evaluations'])})"
    r" (?P<number>\d{1,15}): (?=\{)",
    re.IGNORECASE,
)
"""slime's `rollout 3: {`, `step 3: {` and `eval 3: {`, which follow each other by turns."""

_KINDS = ("step", "iteration", "batch", "episode", "epoch", "timesteps", "progress_batch")
"""What a line may count, the surest first; the last is the state of a progress bar, which may be of
an inner loop."""
_IN_BAR = len(_KINDS) - 1
_COUNTED_BY = (
    r"global[\s_-]?step|train(?:ing)?[\s_-]?step|step",
    r"training_iteration|iteration|iter|it|update",
    r"batch|round|rollout|generation",
    r"episode|ep|game",
    r"epoch",
    r"(?:total[\s_-]?|env[\s_-]?|num[\s_-]?)?(?:time[\s_-]?step|env[\s_-]?step|frame)|t(?==)",
)
"""Words for each of `_KINDS` but the last."""
_MARKER = re.compile(
    rf"(?:^|[^\w./])(?:{'|'.join(f'({terms})' for terms in _COUNTED_BY)})s?\s*[:=#]?\s*[\[(#]?\s*"
    r"(?P<number>\d{1,15}|\d{1,3}(?:,\d{3})+)(?![\d.]*\d*%|\.\d)\b(?:/\d+)?[\])]?",
    re.IGNORECASE,
)
_EPOCH_BATCH = re.compile(
    r"epoch\s*:?\s*\[?(\d+)\s*/\s*\d+\]?[\s,:|-]*"
    r"(?:\(\s*(\d+)\s*/\s*(\d+)\s*\)|(?:step|iter(?:ation)?|batch)\s*:?\s*\[?(\d+)\s*/\s*(\d+)\]?)",
    re.IGNORECASE,
)
_NOT_COUNTED = re.compile(r"\b(?:per|last|each|over|of|every|\d+)\s+$", re.IGNORECASE)
"""`reward per episode: 5` and `last 100 episodes: 5` count nothing."""
_FRACTION = re.compile(r"\W*[\[(]\s*(\d{1,15})\s*/\s*\d+\s*[\])]|^\s*(\d{1,15})\s*/\s*\d+\b")
_BAR = re.compile(r"\|\s*(\d{1,15})/\d+ \[")
_STATEMENT = re.compile(r"(?:^|\{|\|\||&&)\s*return\s+-?\d+[\s;}]*$")
"""A line of a program, such as a traceback shows or a folder of scripts holds."""
_HAS_NUMBER = re.compile(r"\d|nan|inf", re.IGNORECASE)

Marker = tuple[int, int]
"""How sure it is that a line says its step (the place in `_KINDS`, 0 is best), and the step."""


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
_GLUE = r"(?P<glue>(?:\s+(?:[-|:·]|\u2013)(?=\s)|:(?=\s))?\s*)"
_ELEMENT = re.compile(rf"(?:{'|'.join(f'(?:{element})' for element in _ELEMENTS)}){_GLUE}")
_LOGGER = re.compile(
    rf"(?P<name>[A-Za-z_][\w.]{{0,40}})(?:\[\d+\])? (?:-|\||:) (?!\s*[-+.]?\d){_GLUE}"
)
"""The name of a logger, behind a time or a level and before a dash."""
_BULLETS = re.compile(
    r"^\s*(?:(?:[•●◦‣▪▶►→➤✓✔✅❌⚡*·»└├│╰╭╮╯─]+|[\U0001F300-\U0001FAFF\u2600-\u27BF\uFE0F\u200D]+"
    r"|-(?=\s)|>(?=\s))\s*){0,3}"
)
MAX_ELEMENTS = 8


def _logger_at(text: str, offset: int) -> re.Match[str] | None:
    match = _LOGGER.match(text, offset)
    if match is None or is_understood(match["name"]):
        return None  # the first cell of a table's header, say
    return match


def without_prefix(text: str) -> str:
    """A line from its first own word on; what is left out names no metric.

    >>> without_prefix("2026-01-02 03:04:05,678 - trainer - INFO - | step | reward |")
    '| step | reward |'
    >>> without_prefix("(TaskRunner pid=7) [GRPO] Step 3: reward 0.5")
    'Step 3: reward 0.5'
    """
    rest = text.lstrip()
    if rest[:1] in "|┃║{+":
        return text
    start = offset = len(text) - len(rest)
    is_row = text.rstrip()[-1:] in tuple("|┃│║+┓┩┘╗╣")
    for _ in range(MAX_ELEMENTS):
        is_first = offset == start
        match = _ELEMENT.match(text, offset) or (None if is_first else _logger_at(text, offset))
        if match is None:
            break
        if is_row and "|" in match["glue"] and not _ELEMENT.match(text, match.end()):
            return text[match.start("glue") :].lstrip()
        offset = match.end()
    return text if offset == start else text[offset:]


def without_bullet(text: str) -> str:
    """A line without the sign of a list before it.

    >>> without_bullet("  • Loss: 0.5"), without_bullet("- reward: -1")
    ('Loss: 0.5', 'reward: -1')
    """
    return _BULLETS.sub("", text, count=1)


def step_marker(text: str) -> Marker | None:
    """The step that a line says it is of.

    >>> step_marker("Epoch:[2/3](7/100), Reward: 0.5"), step_marker("[metrics] step 60: {")
    ((0, 107), (0, 60))
    >>> step_marker("Episode 50/400 | Reward: 22.6"), step_marker("loading shards")
    ((3, 50), None)
    """
    match = _EPOCH_BATCH.search(text)
    if match is not None:
        step_text, size = (int(group) for group in match.groups()[1:] if group)
        return 0, max(int(match[1]) - 1, 0) * size + step_text
    markers = [
        (next(kind for kind, word in enumerate(match.groups()[:_IN_BAR]) if word), match)
        for match in _MARKER.finditer(text)
        if not _NOT_COUNTED.search(text, 0, match.start() + 1)
    ]
    if markers:
        kind, match = min(markers, key=lambda marker: marker[0])
        return kind, int(match["number"].replace(",", ""))
    match = _FRACTION.match(text)
    if match is not None:
        return 2, int(match[1] or match[2])
    match = _BAR.search(text)
    return (_IN_BAR, int(match[1])) if match is not None else None


def pairs_of(text: str) -> tuple[dict[str, float], int]:
    """The pairs of a line, and how many of its signs they are; groups are joined by `/`.

    >>> pairs_of("step:3 - actor/entropy:0.5 - x:np.float64(1e-3)")[0]
    {'step': 3.0, 'actor/entropy': 0.5, 'x': 0.001}
    >>> pairs_of("{'train': {'reward': '0.5'}, 'note': 'kl: 9'}")[0]
    {'train/reward': 0.5}
    """
    pairs: dict[str, float] = {}
    groups = [""]
    num_chars, end, split = 0, 0, ""
    is_dict = _DICT.search(text) is not None
    for match in _SCAN.finditer(text):
        if len(pairs) >= MAX_PAIRS:
            break
        if match["close"] or match["start"]:
            groups = (groups[:-1] or [""]) if match["close"] else [*groups, groups[-1]]
            continue
        name = match["key"] or _said_name(match["name"])
        if match["open"]:
            is_silent = match["key"] is None or name.lower() in TRANSPARENT
            groups = [*groups, groups[-1] if is_silent else f"{groups[-1]}{name}/"]
            continue
        if is_dict and len(groups) > 1 and match["key"] is None:
            continue  # within a text
        heading = None if is_dict else _SPLIT.search(text, end, match.start())
        split = split if heading is None else ("" if heading[1].lower() == "train" else "eval/")
        pairs.setdefault(f"{groups[-1]}{split}{name}", _value_of(match))
        num_chars, end = num_chars + len(match[0]), match.end()
    is_covered = is_dict or 2 * num_chars > len(text)
    for part in () if is_covered else _PARTS.split(_PADDED.sub(" ", text)):
        unsigned = _UNSIGNED.search(part)
        if unsigned and is_understood(unsigned["name"]):
            pairs.setdefault(unsigned["name"], to_number(unsigned["value"]))
            num_chars += len(unsigned[0])
    return {name: value for name, value in pairs.items() if not math.isnan(value)}, num_chars


def _value_of(match: re.Match[str]) -> float:
    """The number of a pair; of a list of numbers their mean."""
    if match["list"] is None:
        return to_number(match["value"])
    numbers = re.finditer(_VALUE, match["list"], re.IGNORECASE)
    return finite_mean(to_number(number[0]) for number in numbers)


@functools.lru_cache(maxsize=4096)
def _said_name(label: str) -> str:
    """A name in a line of text, without the words of the sentence before it.

    >>> _said_name("Step 3 reward"), _said_name("Rover episodic returns"), _said_name("val cost")
    ('reward', 'episodic returns', 'val cost')
    """
    marker = _MARKER.match(label)
    name = label[marker.end() :].lstrip(" :|,;-") if marker else label
    if not name or is_understood(label) or is_understood(name):
        return name or label
    parts = name.split(" ")
    ends = (" ".join(parts[start:]) for start in range(1, len(parts)))
    return next((end for end in ends if _is_outcome(end)), name)


def _is_step_name(name: str) -> bool:
    return step_rank(name) is not None


def _is_outcome(name: str) -> bool:
    meaning = meaning_of(name)
    return meaning is not None and meaning.key.endswith(("success_rate", "return_mean"))


@dataclass(slots=True)
class ConsoleLog:
    """Reads a log line by line."""

    reading: Reading
    kind: str = "log"
    collectors: dict[str, Collector] = field(default_factory=dict)
    """The records of each family."""
    _block: dict[str, float] = field(default_factory=dict)
    """Pairs of lines that follow each other, until one of them comes again."""
    _block_marker: Marker | None = None
    _section: str = ""
    """Of a table with a pair a row: what stands before the names that follow."""
    _header: list[str] = field(default_factory=list)
    _dict: list[str] = field(default_factory=list)
    """Lines of a dictionary whose braces are still open."""
    _depth: int = 0
    """How many braces these are."""
    _last_marker: Marker | None = None
    """Of the line before: a step may go over two lines."""
    _split: str = ""
    """What stands before the names of the lines below a heading."""
    _rollout: int | None = None
    """The number of the last `rollout N: {`."""
    _outcomes: dict[str, set[float]] = field(default_factory=dict)
    """Family -> the steps at which it says a reward or success."""

    def feed(self, lines: Iterable[str]) -> None:
        """Raises MetricsFileError where the file cannot hold the metrics of a run."""
        for line in lines:
            if len(line) > MAX_LINE_CHARS:
                continue
            text = without_prefix(COLOUR.sub("", line).translate(_UNITS).rstrip())
            self._line(_LEADERS.sub(": ", text))

    def best(self) -> Collector | None:
        """The collector of the family that says most; None where no family has a record."""
        self.close_open()
        return self.collectors.get(self.leader())

    def close_open(self) -> None:
        """What was read of a block is all of it."""
        self._add(BLOCKS, self._block, self._block_marker)
        self._block, self._block_marker = {}, None

    def leader(self) -> str:
        """The family that says most, closed blocks alone; "" where no family has a record."""

        def says(family: str) -> tuple[bool, int, int]:
            """Enough rows to be judged, then how much they say of how many steps."""
            collector = self.collectors[family]
            rows = collector.num_records
            # Lines about one and the same step are no rows of a run.
            steps = min(rows, len(self._outcomes.get(family, ())) or rows, MAX_OUTCOMES)
            num_known = len(collector.known_keys) + bool(self._outcomes.get(family))
            has_step = any(_is_step_name(name) for name in collector.names)
            return rows >= ENOUGH_ROWS, num_known**2 * steps * (1 + has_step), rows

        filled = [name for name, collector in self.collectors.items() if collector.num_records]
        ordered = sorted(filled, key=says, reverse=True)
        others = [family for family in ordered if family != BLOCKS]
        if not others or ordered[0] != BLOCKS:
            return ordered[0] if ordered else ""
        # Blocks take in whatever stands between two steps: only where they say more.
        best = others[0]
        more = self.collectors[BLOCKS].known_keys - self.collectors[best].known_keys - _SETTINGS
        return best if says(best)[0] == says(BLOCKS)[0] and not more else BLOCKS

    def _add(self, family: str, record: Mapping[str, float], marker: Marker | None = None) -> None:
        if not record:
            return
        if family not in self.collectors:
            self.collectors[family] = Collector(self.reading, self.kind, needs_known=True)
        collector = self.collectors[family]
        record = _with_step(record, marker)
        collector.add(record)
        if any(map(_is_outcome, record)):
            steps = self._outcomes.setdefault(family, set())
            if len(steps) < MAX_OUTCOMES:
                counted = [value for name, value in record.items() if _is_step_name(name)]
                steps.add(counted[0] if counted else float(collector.num_records))

    def _line(self, text: str) -> None:
        if not text.strip() or _STATEMENT.search(text):
            self._split = ""
            return
        whole = self._whole(text)
        if whole is None or self._is_of_table(whole):
            return
        if not _HAS_NUMBER.search(whole):  # most lines of most files: nothing to take from them
            self._last_marker = None
            if heading := _HEADING.match(whole):
                is_evaluation = heading["word"].lower() in WORDS["evaluations"]
                self._split = "eval/" if is_evaluation else ""
            return
        text = without_bullet(whole)
        pairs, num_chars = pairs_of(text)
        start = _DICT.search(text)
        marker = step_marker(text[: start.start()] if start else text)
        if marker is not None or start:  # a dictionary's names say it themselves
            self._split = ""
        if self._split:
            pairs = {f"{self._split}{name}": value for name, value in pairs.items()}
        metrics = {name: value for name, value in pairs.items() if not _is_step_name(name)}
        if numbered := _NUMBERED.match(text):
            self._add(NUMBERED, metrics, (0, self._number(numbered)))
        elif metrics and (len(metrics) > 1 or marker is not None or len(pairs) > 1 or start):
            self._add_line(pairs, marker, is_dict=start is not None)
        self._last_marker = marker
        if not start:
            self._add_to_block(text, marker, metrics, num_chars)

    def _number(self, numbered: re.Match[str]) -> int:
        """The step of a numbered dictionary.

        slime counts rollouts, and steps of the optimizer, of which a rollout may have several:
        these are the rollout's.
        """
        number = int(numbered["number"])
        if numbered["step"] is not None:
            return min(number, self._rollout) if self._rollout is not None else number
        if numbered[0].lower().startswith("rollout"):
            self._rollout = number
        return number

    def _add_line(
        self, pairs: Mapping[str, float], marker: Marker | None, *, is_dict: bool
    ) -> None:
        family, step = "", marker
        if marker is not None:
            family = _KINDS[marker[0]]
        elif self._last_marker is not None and not (is_dict and self._last_marker[0] == _IN_BAR):
            family, step = f"after {_KINDS[self._last_marker[0]]}", self._last_marker
        self._add(f"dictionaries {family}" if is_dict else f"pairs {family}", pairs, step)

    def _whole(self, text: str) -> str | None:
        """The lines of a dictionary as one, when its braces are closed; None while they are not."""
        if self._dict and not _IN_DICT.match(text):
            self._dict = []
        if not self._dict and not _DICT.search(text):
            return text
        self._depth = self._depth * bool(self._dict) + text.count("{") - text.count("}")
        self._dict.append(text)
        if self._depth <= 0:
            whole, self._dict = " ".join(self._dict), []
            return whole
        if len(self._dict) >= MAX_DICT_LINES:
            self._dict = []
        return None

    # --- tables

    def _is_of_table(self, text: str) -> bool:
        section = _SECTION.match(text)
        if section:
            self._section = section["name"].strip()
            return True
        cells = _cells(text)
        if len(cells) < 2:
            return False
        is_row = self._is_grid_row(cells)
        pairs = _pairs_of_row(text, cells)
        if pairs and not (len(self._header) == len(cells) and is_row):
            if not re.match(r"^\s*[|│┃║]\s{3,}", text):
                self._section = ""
            self._extend({f"{self._section}{name}": value for name, value in pairs.items()})
            return True
        if is_row:
            named = zip(self._header, map(to_number, cells[-len(self._header) :]), strict=True)
            self._add("columns", {name: value for name, value in named if not math.isnan(value)})
            return True
        if _is_header(text, cells):
            self._header = cells
            return True
        return False

    def _is_grid_row(self, cells: list[str]) -> bool:
        if not self._header or len(cells) - len(self._header) not in (0, 1):
            return False
        if len(cells) > len(self._header) and not cells[0].isdigit():
            return False  # pandas prints its index without a name
        is_number = [not math.isnan(to_number(cell)) for cell in cells]
        own = zip(self._header, is_number[-len(self._header) :], strict=True)
        has_step = is_number[0] or any(is_n and _is_step_name(name) for name, is_n in own)
        return has_step and sum(is_number) >= max(1, len(cells) // 2)

    # --- blocks

    def _add_to_block(
        self, text: str, marker: Marker | None, metrics: Mapping[str, float], num_chars: int
    ) -> None:
        """`num_chars`: how much of the line its pairs are."""
        before = self._block_marker
        if (
            marker
            and before is None
            and any(map(_is_outcome, self._block))
            and re.search(r"\w\s*[:=]\s*\d+\s*$", text)
        ):
            self._block_marker = marker  # the step stands at the end of what it counts
            self.close_open()
            return
        if marker and marker[0] < _IN_BAR and (not before or marker[0] <= before[0]):
            if marker != before:
                self.close_open()
            self._block_marker = marker
        is_pairs = num_chars >= 0.6 * len(re.sub(r"[\W_]", "", text))
        if is_pairs or len(metrics) == 1 == len(re.findall(r"[:=]\s*\S", text)):
            self._extend(metrics)

    def _extend(self, pairs: Mapping[str, float]) -> None:
        """Add pairs to the block; a name that comes again begins another of the same step."""
        if not self._block.keys().isdisjoint(pairs):
            marker = self._block_marker
            self.close_open()
            self._block_marker = marker
        self._block.update(pairs)


def _with_step(record: Mapping[str, float], marker: Marker | None) -> dict[str, float]:
    """A record with the step that its line says, where none of its names counts the same."""
    if marker is None or any(_counts_like(name, marker) for name in record):
        return dict(record)
    return {_KINDS[marker[0]]: float(marker[1]), **record}


def _counts_like(name: str, marker: Marker) -> bool:
    """Does the name count steps, and not only the epochs that steps are parts of?"""
    is_epoch = spelled(name).endswith(("epoch", "epochs"))
    return _is_step_name(name) and (not is_epoch or _KINDS[marker[0]] == "epoch")


_SETTINGS = frozenset({"optim/lr", "loss/total", "loss/policy", "loss/value"})
"""Keys that no rule judges by themselves."""


def _is_header(text: str, cells: list[str]) -> bool:
    is_said = re.search(r"[:=]\s*\S*\d", text) is not None or step_marker(text) is not None
    if is_said or any(not math.isnan(to_number(cell)) for cell in cells):
        return False
    num_known = sum(map(is_understood, cells))
    return num_known >= 2 or (num_known == 1 and len(cells) == 2) or _is_step_name(cells[0])


def _pairs_of_row(text: str, cells: list[str]) -> dict[str, float]:
    """The pairs of `| name | 0.5 |`, also several in a row; empty where it is no such row."""
    if len(cells) % 2 or text.strip()[0] not in "|│┃║":
        return {}
    pairs = dict(zip(cells[::2], map(to_number, cells[1::2]), strict=True))
    is_row = all(re.match(r"[^\W\d_]|%", n) and not math.isnan(v) for n, v in pairs.items())
    return pairs if is_row else {}


def _cells(text: str) -> list[str]:
    """Cells of a table's row: between bars, or else between tabs or wide spaces."""
    if _BARS.search(text):
        parts = _BARS.split(text.strip().strip("|│┃║"))
        return [part.strip() for part in parts] if len(parts) > 1 else []
    parts = re.split(r"\t|\s{2,}", text.strip())
    columns = text.split()
    is_plain = all(re.fullmatch(_VALUE, word, re.IGNORECASE) for word in columns)
    if is_plain or (len(columns) <= MAX_CELLS and _is_step_name(columns[0]) and len(parts) < 2):
        return columns
    return [part.strip() for part in parts] if len(parts) > 1 else []
