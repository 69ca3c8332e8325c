"""Records of metrics in what a trainer printed.

Several grammars are tried on every line, each with a collector of its own; the one whose records
say most is the log. Only records with a metric of the catalogue count, since console text is full
of numbers. Nothing is evaluated.

| grammar | as printed by |
| --- | --- |
| `step:12 - key:value - key:value`, also one pair a line | verl, RAGEN, rLLM, verl-agent |
| `{'loss': 0.1, 'reward': 0.6}` | TRL, Unsloth, open-r1, prime-rl |
| `loss=1.9, reward=0.5, step=0` and `Reward: 0.5, KL: 0.1` | progress bars, minimind, scripts |
| `Avg Reward: 0.5` or a table row, one pair a line | NeMo-RL, stable-baselines |
| a header and rows | markdown, notebooks, pandas |
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..foreign_names import STEP_NAMES, Meaning, step_rank
from ..name_words import in_english
from ..names import meaning_of
from ..records import TRANSPARENT, Collector, to_number
from ..table import TableBuilder
from .json_records import table_lines
from .line_prefix import COLOUR, without_bullet, without_prefix

MAX_PAIRS = 5_000
MAX_LINE_CHARS = 50_000
"""A longer line is no line of a log; patterns would take long on it."""
MAX_TABLE_LINES = 200_000
MAX_DICT_LINES = 400
"""Lines over which a printed dictionary may go."""
MAX_OUTCOMES = 20
MIN_UNNAMED = 8
"""Fewer lines that repeat the same unknown names are no log of a run."""
MAX_UNNAMED = 64

_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)%?"
    r"|[-+]?(?:nan|inf(?:inity)?)\b"
)
_WRAPPED = rf"(?:(?:np|numpy|torch|jnp)\.)?(?:float|int|tensor|array)\w*\(\[?(?:{_NUMBER})[^()]*\)"
_VALUE = rf"(?:{_WRAPPED}|{_NUMBER})"
_LIST = rf"\[\s*(?:{_VALUE}[\s,]*){{1,2000}}\]"
_WORD = r"[^\W\d_][\w/@.()*+\-]*"
_END = r"(?![\w/-]|[.:,]\d)"
_PAIR = re.compile(
    rf"(?<![\w/@.])(?P<name>{_WORD}(?: [\w/@.()+\-]+){{0,4}}?)\s*[:=]\s*['\"]?"
    rf"(?:(?P<value>{_VALUE}){_END}|(?P<list>{_LIST}))",
    re.IGNORECASE,
)
_ALONE = re.compile(
    rf"\W*(?P<name>{_WORD}(?: [\w/@.()+\-]+){{0,4}}?)\s*[:=]\s*(?P<value>{_VALUE})"
    r"(?:\s*\S{1,12})?\W*",
    re.IGNORECASE,
)
"""A line that says nothing else."""
_UNSIGNED = re.compile(
    rf"(?P<name>{_WORD}(?: {_WORD}){{0,3}})\s+(?P<value>{_VALUE})", re.IGNORECASE
)
_PARTS = re.compile(r"\s*(?:[|;]|\s[-\u2013·•])\s+|\s*[|;]\s*|,(?=\s|[^\W\d])\s*|\s+/\s+|\s{2,}|\t")
_COUNTED = re.compile(
    r"^(?:[\[(]?(?:(?:(?:global|train|training|total|env)[ _-])?(?:step|epoch|iteration|iter|it|"
    r"update|episode|ep|batch|round|rollout|generation|timestep|game|t)s?\s*[:=#]?\s*)?"
    r"[\[(]?#?\d+(?:/\d+)?[\])]?\s*[-:|,;]?\s+)+",
    re.IGNORECASE,
)
"""A step that stands before a name: `Step 1/100 reward`."""
_IN_DICT = re.compile(
    rf"""(?P<quote>['"])(?P<name>[^'"]{{1,200}})(?P=quote)\s*:\s*"""
    rf"""(?:['"]?(?P<value>{_VALUE})|(?P<list>{_LIST})|(?P<open>\{{))|(?P<close>\}})|(?P<start>\{{)""",
    re.IGNORECASE,
)
_LEADERS = re.compile(r"\s*(?:\.{3,}|_{3,})\s*(?=[-+.\d])")
_PADDED = re.compile(
    r"(?:(?<=[A-Za-z_)@])|(?<=[A-Za-z_@]\d)|(?<=[A-Za-z_]\d\d)|(?<=[A-Za-z_]\d\d\d))"
    r"\s{2,}(?=[-+]?\.?\d)"
)
_ARROW = re.compile(r"(?<=[A-Za-z)\]])\s*(?:->|=>|→|⇒)\s*(?=[-+.]?\d)")
_UNITS = str.maketrans({"\u2212": "-", "\u00a0": " ", "\u2007": " ", "\u202f": " "})
_DASHED = re.compile(r"\bstep:\s*(\d{1,15})\s+-\s+(?=[^\s:]+:)")
_NAME_CELL = re.compile(r"[^\W\d_].*|%.*", re.IGNORECASE)
_SECTION = re.compile(r"^\s*[|│┃║]\s*(?P<name>[\w.\- ]+/)\s*[|│┃║]\s*[|│┃║]\s*$")
_EPOCH_BATCH = re.compile(
    r"epoch\s*:?\s*\[?(\d+)\s*/\s*\d+\]?[\s,:|-]*"
    r"(?:\(\s*(\d+)\s*/\s*(\d+)\s*\)|(?:step|iter(?:ation)?|batch)\s*:?\s*\[?(\d+)\s*/\s*(\d+)\]?)",
    re.IGNORECASE,
)
_MARKERS = tuple(
    re.compile(
        rf"(?:^|[^\w./])(?:{words})s?\s*[:=#]?\s*[\[(#]?\s*(\d{{1,15}}|\d{{1,3}}(?:,\d{{3}})+)"
        r"(?![\d.]*\d*%|\.\d)\b",
        re.IGNORECASE,
    )
    for words in (
        r"global[\s_-]?step|train(?:ing)?[\s_-]?step|step",
        r"iteration|iter|it|update|training_iteration",
        r"batch|round|rollout|generation",
        r"episode|ep|game",
        r"epoch",
        r"(?:total[\s_-]?|env[\s_-]?|num[\s_-]?)?(?:time[\s_-]?step|env[\s_-]?step|frame)|t(?==)",
    )
)
"""How a line says which step it is of, the surest first."""
_IS_PAIR = re.compile(r"\w\s*[:=]\s*\d+\s*$")
_GROUP = re.compile(r"\b(train|val|valid|validation|eval|evaluation|test)\b\W*$", re.IGNORECASE)
"""Of which split the pairs behind it are: `train: loss=1 acc=0.5 | val: loss=2 acc=0.4`."""
_BETWEEN_STATES = re.compile(
    r"\b(?:step|iter|iteration|update|epoch|episode)s?\s*[:=#]?\s*\d|\d+%\|", re.IGNORECASE
)
_NOT_COUNTED = re.compile(r"\b(?:per|last|each|over|of|every|\d+)\s+$", re.IGNORECASE)
"""`reward per episode: 5` and `last 100 episodes: 5` count nothing."""
_FRACTION = re.compile(r"\W*[\[(]\s*(\d{1,15})\s*/\s*\d+\s*[\])]|^\s*(\d{1,15})\s*/\s*\d+\b")
_BAR = re.compile(r"\|\s*(\d{1,15})/\d+ \[")
_STATEMENT = re.compile(r"\s*return\s+-?\d+\s*;?\s*")
"""A line of a program, such as a traceback shows or a folder of scripts holds."""
_HAS_NUMBER = re.compile(r"\d|nan|inf", re.IGNORECASE)
_IN_BAR = 6
"""The rank of a step that a progress bar shows: it may be one of an inner loop."""


def parse_log_line(line: str) -> tuple[int, dict[str, float]] | None:
    """The step and numbers of one line as verl and RAGEN print it, or None.

    >>> parse_log_line("(TaskRunner pid=7) step:3 - actor/entropy:0.5 - x:np.float64(1e-3)")
    (3, {'actor/entropy': 0.5, 'x': 0.001})
    """
    text = COLOUR.sub("", line)
    match = _DASHED.search(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for part in text[match.end() :].strip().split(" - ")[:MAX_PAIRS]:
        name, colon, written = part.rpartition(":")
        number = to_number(written)
        if colon and name.strip() and not math.isnan(number):
            values[name.strip()] = number
    return int(match[1]), values


def step_marker(text: str) -> tuple[int, int] | None:
    """The step that a line says it is of, behind how sure that is: 0 is best.

    >>> step_marker("Epoch:[2/3](7/100), Reward: 0.5"), step_marker("[metrics] step 60: {")
    ((0, 107), (0, 60))
    >>> step_marker("Episode 50/400 | Reward: 22.6"), step_marker("loading shards")
    ((3, 50), None)
    """
    match = _EPOCH_BATCH.search(text)
    if match is not None:
        place, size = (int(group) for group in match.groups()[1:] if group)
        return 0, max(int(match[1]) - 1, 0) * size + place
    for rank, marker in enumerate(_MARKERS):
        for match in marker.finditer(text):
            if not _NOT_COUNTED.search(text, 0, match.start() + 1):
                return rank, int(match[1].replace(",", ""))
    match = _FRACTION.match(text)
    if match is not None:
        return 2, int(match[1] or match[2])
    match = _BAR.search(text)
    return (_IN_BAR, int(match[1])) if match is not None else None


@dataclass(slots=True)
class _Block:
    """Pairs of lines that follow each other, until one of them comes again."""

    marker: tuple[int, int] | None = None
    """See `step_marker`."""
    values: dict[str, float] = field(default_factory=dict)
    section: str = ""
    """Of a table: what stands before the names of its rows."""


@dataclass(slots=True)
class ConsoleLog:
    """Reads a log line by line."""

    path: str
    mapping: Mapping[str, Meaning] = field(default_factory=dict)
    run: str = ""
    kind: str = "log"
    make_builder: Callable[[], TableBuilder] = TableBuilder
    _collectors: dict[str, Collector] = field(default_factory=dict)
    _block: _Block = field(default_factory=_Block)
    _rows: _Block = field(default_factory=_Block)
    _header: list[str] = field(default_factory=list)
    _dict: list[str] = field(default_factory=list)
    _depth: int = 0
    """Braces of the dictionary that are still open."""
    _html: list[str] = field(default_factory=list)
    _last_marker: tuple[int, int] | None = None
    """Of the line before: a step may go over two lines."""
    _outcomes: dict[str, set[float]] = field(default_factory=dict)
    """Grammar -> the steps at which it says a reward or success."""
    _unnamed: dict[tuple[str, ...], list[dict[str, float]]] = field(default_factory=dict)
    """Lines that say the same names, none of them of the catalogue: by these names."""

    def feed(self, lines: Iterable[str]) -> None:
        """Raises MetricsFileError where the file cannot hold the metrics of a run."""
        for line in lines:
            if len(line) > MAX_LINE_CHARS:
                continue
            text = without_prefix(in_english(COLOUR.sub("", line).translate(_UNITS)).rstrip())
            text = _ARROW.sub(": ", _LEADERS.sub(": ", text))
            if "<table" in text or self._html:
                self._html.append(text)
                if "</table" in text or len(self._html) > MAX_TABLE_LINES:
                    html, self._html = "\n".join(self._html), []
                    for row in table_lines(html):
                        self._line(row)
                continue
            self._line(text)

    def best(self) -> Collector | None:
        """The collector of the grammar that says most; None where no grammar has a record."""
        self.close_open()
        grammar = self.leader()
        return self._of_unnamed() if grammar is None else self._collectors[grammar]

    def close_open(self) -> None:
        """What was read of a block or table is all of it."""
        self._close_block()
        self._close_rows()

    def collector(self, grammar: str) -> Collector | None:
        """The records of one grammar."""
        return self._collectors.get(grammar)

    def leader(self) -> str | None:
        """The grammar that says most, closed blocks alone; None where no grammar has a record."""
        filled = [name for name, c in self._collectors.items() if c.num_records]

        def says(grammar: str) -> tuple[bool, int, int]:
            """Enough rows to be judged, then how much they say of how many steps."""
            collector = self._collectors[grammar]
            rows = collector.num_records
            # Lines about one and the same step are no rows of a run.
            steps = min(rows, len(self._outcomes.get(grammar, ())) or rows)
            num_known = len(collector.known) + bool(self._outcomes.get(grammar))
            has_step = any(is_step_name(name) for name in collector.names)
            return rows >= 8, num_known**2 * min(steps, 20) * (1 + has_step), rows

        ordered = sorted(filled, key=says, reverse=True)
        if not ordered:
            return None
        best = next((grammar for grammar in ordered if grammar != "blocks"), ordered[0])
        if ordered[0] == "blocks":
            # Blocks take in whatever stands between two steps: only where they say more.
            more = self._collectors["blocks"].known - self._collectors[best].known - _SETTINGS
            is_enough = says(best)[0] == says("blocks")[0]
            best = best if is_enough and not more else "blocks"
        return best

    def _of_unnamed(self) -> Collector | None:
        """The table of the names that most lines repeat, where no name is of the catalogue."""
        rows = max(self._unnamed.values(), key=len, default=[])
        if len(rows) < MIN_UNNAMED:
            return None
        collector = Collector(path=self.path, kind=self.kind, mapping=self.mapping, run=self.run)
        for row in rows:
            collector.add(row)
        return collector

    def _add_unnamed(self, record: Mapping[str, float], marker: tuple[int, int] | None) -> None:
        """Keeps a line whose names nobody knows: a `--map` may say what they are."""
        row = dict(record)
        if marker is not None:
            row = {_MARKED[marker[0]]: float(marker[1]), **row}
        names = tuple(row)
        if len(names) < 2:
            return
        if names not in self._unnamed and len(self._unnamed) >= MAX_UNNAMED:
            return
        rows = self._unnamed.setdefault(names, [])
        if len(rows) < MAX_PAIRS:
            rows.append(row)

    def _add(
        self, grammar: str, record: Mapping[str, float], marker: tuple[int, int] | None = None
    ) -> None:
        if not record:
            return
        collector = self._collectors.get(grammar)
        if collector is None:
            collector = Collector(
                path=self.path,
                kind=self.kind,
                mapping=self.mapping,
                run=self.run,
                needs_known=True,
                make_builder=self.make_builder,
            )
            self._collectors[grammar] = collector
        if marker is not None and not any(_counts_like(name, marker) for name in record):
            record = {_MARKED[marker[0]]: marker[1], **record}
        collector.add(record)
        if any(is_outcome(name) for name in record):
            steps = self._outcomes.setdefault(grammar, set())
            if len(steps) < MAX_OUTCOMES:
                counted = [value for name, value in record.items() if is_step_name(name)]
                steps.add(counted[0] if counted else float(collector.num_records))

    def _line(self, text: str) -> None:
        if not text.strip() or _STATEMENT.fullmatch(text):
            return
        dashed = parse_log_line(text)
        if dashed is not None:
            self._add("dashes", {"step": dashed[0], **dashed[1]})
            return
        if self._is_of_dict(text) or self._is_of_table(text):
            return
        self._pairs(without_bullet(text))

    # --- dictionaries

    def _is_of_dict(self, text: str) -> bool:
        if self._dict:
            if not re.match(r"""(?:\S{1,30}:?\s+)?\s*['"}\]\d.+-]""", text):
                self._dict, self._depth = [], 0
                return False
            self._dict.append(text)
        else:
            start = text.find("{")
            if start < 0 or not re.match(r"\{\s*(?:$|['\"])", text[start:]):
                return False
            self._dict, self._depth = [text], 0
        self._depth += text.count("{") - text.count("}")
        if self._depth > 0 and "}" not in text.rstrip()[-1:]:
            if len(self._dict) >= MAX_DICT_LINES:
                self._dict = []
            return True
        if self._depth > 0:
            return True
        whole, self._dict = " ".join(self._dict), []
        head, _, rest = whole.partition("{")
        marker = step_marker(head)
        if marker is None and not head.strip() and self._last_marker is not None:
            marker = self._last_marker if self._last_marker[0] < _IN_BAR else None
        for pairs in _dictionaries_in(rest):
            self._add("dictionaries", pairs, marker)
        self._last_marker = None
        return True

    # --- tables

    def _is_of_table(self, text: str) -> bool:
        section = _SECTION.match(text)
        if section:
            self._rows.section = section["name"].strip()
            return True
        pairs = _pairs_of_row(text)
        if pairs and not (len(self._header) == 2 * len(pairs) and self._is_grid_row(text)):
            for name, value in pairs:
                self._row(name, value, text)
            return True
        return self._is_of_grid(text)

    def _row(self, name: str, value: float, text: str) -> None:
        inside = re.match(r"^\s*[|│┃║]\s{3,}", text)
        full = f"{self._rows.section}{name.strip()}" if inside else name.strip()
        if not inside:
            self._rows.section = ""
        if full in self._rows.values:
            self._close_rows()
        self._rows.values[full] = value

    def _close_rows(self) -> None:
        self._add("rows", self._rows.values, self._rows.marker)
        self._rows = _Block(section=self._rows.section)

    def _is_of_grid(self, text: str) -> bool:
        cells = _cells(text)
        if len(cells) < 2:
            return False
        numbers = [to_number(cell) for cell in cells]
        num_numbers = sum(not math.isnan(number) for number in numbers)
        is_said = re.search(r"[:=]\s*\S*\d", text) or step_marker(text) is not None
        if num_numbers == 0 and not is_said:
            known = [c for c in cells if meaning_of(c) is not None or is_step_name(c)]
            if len(known) >= 2 or (known and len(cells) == 2) or is_step_name(cells[0]):
                self._header = cells
                return True
            return False
        if self._is_grid_row(text):
            named = dict(zip(self._header, cells[-len(self._header) :], strict=True))
            parsed = {name: to_number(cell) for name, cell in named.items()}
            values = {name: v for name, v in parsed.items() if not math.isnan(v)}
            self._add("columns", values)
            if not any(meaning_of(name) for name in values):
                self._add_unnamed(values, None)
            return True
        return False

    def _is_grid_row(self, text: str) -> bool:
        cells = _cells(text)
        if not self._header or len(cells) - len(self._header) not in (0, 1):
            return False
        if len(cells) > len(self._header) and not cells[0].isdigit():
            return False  # pandas prints its index without a name
        numbers = sum(not math.isnan(to_number(cell)) for cell in cells)
        own = zip(self._header, cells[-len(self._header) :], strict=True)
        has_step = any(is_step_name(name) and not math.isnan(to_number(c)) for name, c in own)
        return numbers >= max(1, len(cells) // 2) and (
            has_step or not math.isnan(to_number(cells[0]))
        )

    # --- pairs

    def _pairs(self, text: str) -> None:
        if not _HAS_NUMBER.search(text):  # most lines of most files: nothing to take from them
            self._last_marker = None
            return
        pairs: dict[str, float] = {}
        num_chars, end, group = 0, 0, ""
        for match in _PAIR.finditer(text):
            if len(pairs) >= MAX_PAIRS:
                break
            said = _GROUP.search(text, end, match.start())
            group = group if said is None else ("" if said[1].lower() == "train" else "eval/")
            name = _said_name(match["name"])
            if f"{group}{name}" in pairs:
                # Several states of a progress bar without a line break between them.
                cut = _BETWEEN_STATES.search(text, end, match.end())
                if cut is not None:
                    self._pairs(text[: cut.start()])
                    self._pairs(text[cut.start() :])
                    return
            pairs.setdefault(f"{group}{name}", _value_of(match))
            num_chars, end = num_chars + len(match[0]), match.end()
        for part in _PARTS.split(_PADDED.sub(" ", text)):
            said = _UNSIGNED.fullmatch(_COUNTED.sub("", part))
            if said and (meaning_of(said["name"]) or is_step_name(said["name"])):
                pairs.setdefault(said["name"], to_number(said["value"]))
                num_chars += len(said[0])
        marker = step_marker(text)
        metrics = [name for name in pairs if not is_step_name(name)]
        if metrics and (len(metrics) > 1 or marker is not None or len(pairs) > 1):
            kind = "" if marker is None else _MARKED[marker[0]]
            if marker is None and self._last_marker is not None:
                kind = f"after {_MARKED[self._last_marker[0]]}"
            self._add(f"pairs {kind}", pairs, marker or self._last_marker)
            if not any(meaning_of(name) for name in metrics):
                self._add_unnamed({name: pairs[name] for name in metrics}, marker)
        self._last_marker = marker
        self._add_to_block(text, marker, {name: pairs[name] for name in metrics}, num_chars)

    def _add_to_block(
        self,
        text: str,
        marker: tuple[int, int] | None,
        metrics: Mapping[str, float],
        num_chars: int,
    ) -> None:
        """`num_chars`: how much of the line its pairs are."""
        block = self._block
        has_outcome = any(is_outcome(name) for name in block.values)
        if marker and block.marker is None and has_outcome and _IS_PAIR.search(text):
            block.marker = marker  # the step stands at the end of what it counts
            self._close_block()
            return
        is_of_block = block.marker is None or (marker is not None and marker[0] <= block.marker[0])
        if marker is not None and is_of_block and marker[0] < _IN_BAR:
            if marker != block.marker:
                self._close_block()
                self._close_rows()
            self._block.marker = self._rows.marker = marker
        is_alone = len(metrics) == 1 and _ALONE.fullmatch(" ".join(text.split())) is not None
        num_words = len(re.sub(r"[\W_]", "", text))
        if not metrics or not (is_alone or num_chars >= 0.6 * num_words):
            return
        if any(name in self._block.values for name in metrics):
            self._close_block(self._block.marker)
        self._block.values.update(metrics)

    def _close_block(self, marker: tuple[int, int] | None = None) -> None:
        self._add("blocks", self._block.values, self._block.marker)
        self._block = _Block(marker=marker)


@functools.lru_cache(maxsize=4096)
def _said_name(words: str) -> str:
    """A name in a line of text, without the words of the sentence before it.

    >>> _said_name("Step 3 reward"), _said_name("Rover episodic returns"), _said_name("val cost")
    ('reward', 'episodic returns', 'val cost')
    """
    name = _COUNTED.sub("", words)
    meaning = meaning_of(name)
    if (meaning is not None and not meaning.is_guess) or is_step_name(name):
        return name
    parts = name.split(" ")
    ends = (" ".join(parts[start:]) for start in range(1, len(parts)))
    return next((end for end in ends if is_outcome(end)), name)


_MARKED = ("step", "iteration", "batch", "episode", "epoch", "timesteps", "progress_batch")
"""What a marker of each rank counts."""


def is_step_name(name: str) -> bool:
    return step_rank(name) is not None


def _counts_like(name: str, marker: tuple[int, int]) -> bool:
    """Does the name count steps, and not only the epochs that steps are parts of?"""
    rank = step_rank(name)
    is_epoch = rank is not None and STEP_NAMES[rank].startswith("epoch")
    return rank is not None and (not is_epoch or _MARKED[marker[0]] == "epoch")


_SETTINGS = frozenset({"optim/lr", "loss/total", "loss/policy", "loss/value"})
"""Keys that no rule judges by themselves."""


def _value_of(match: re.Match[str]) -> float:
    """The number of a pair; of a list of numbers their mean."""
    if match["list"] is None:
        return to_number(match["value"])
    numbers = [to_number(m[0]) for m in re.finditer(_VALUE, match["list"], re.IGNORECASE)]
    finite = [number for number in numbers if math.isfinite(number)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def _dictionaries_in(text: str) -> Iterator[dict[str, float]]:
    """The dictionaries of a text that begins behind an opening brace; groups joined by `/`."""
    groups: list[str] = [""]
    pairs: dict[str, float] = {}
    for match in _IN_DICT.finditer(text):
        if match["close"]:
            groups = groups[:-1]
            if not groups:
                yield pairs
                pairs = {}
        elif match["start"]:
            groups.append(groups[-1] if groups else "")
        elif match["open"]:
            name = match["name"]
            own = "" if name.lower() in TRANSPARENT else f"{name}/"
            groups.append(f"{groups[-1] if groups else ''}{own}")
        else:
            pairs[f"{groups[-1] if groups else ''}{match['name']}"] = _value_of(match)
    if pairs:
        yield pairs


def _pairs_of_row(text: str) -> list[tuple[str, float]]:
    """The pairs of `| name | 0.5 |`, also several in a row; empty where it is no such row."""
    cells = _cells(text) if _BARS.search(text) else []
    if len(cells) < 2 or len(cells) % 2 or text.strip()[0] not in "|│┃║":
        return []
    pairs = list(zip(cells[::2], map(to_number, cells[1::2]), strict=True))
    is_row = all(_NAME_CELL.fullmatch(name) and not math.isnan(value) for name, value in pairs)
    return pairs if is_row else []


@functools.lru_cache(maxsize=4096)
def is_outcome(name: str) -> bool:
    meaning = meaning_of(name)
    if meaning is None or meaning.is_guess:
        return False
    return meaning.key.endswith(("success_rate", "return_mean"))


_BARS = re.compile(r"[|│┃║]")


def _cells(text: str) -> list[str]:
    """Cells of a table's row: between bars, or else between tabs or wide spaces."""
    if _BARS.search(text):
        parts = _BARS.split(text.strip().strip("|│┃║"))
        return [part.strip() for part in parts] if len(parts) > 1 else []
    parts = re.split(r"\t|\s{2,}", text.strip())
    words = text.split()
    is_plain = all(re.fullmatch(_VALUE, word, re.IGNORECASE) for word in words)
    if is_plain or (len(words) <= 60 and is_step_name(words[0]) and len(parts) < 2):
        return words
    return [part.strip() for part in parts] if len(parts) > 1 else []


def chunks_of(lines: Iterable[str]) -> Iterator[str]:
    """Lines, and parts of lines between which a progress bar went back to the start."""
    for line in lines:
        yield from (part for part in re.split(r"[\r\n]+", line) if part)
