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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .foreign_names import Meaning, step_rank
from .json_records import table_lines
from .names import meaning_of
from .records import Collector, to_number

MAX_PAIRS = 5_000
MAX_TABLE_LINES = 200_000
MAX_DICT_LINES = 400
"""Lines over which a printed dictionary may go."""
MAX_OUTCOMES = 20
MIN_UNNAMED = 8
"""Fewer lines that repeat the same unknown names are no log of a run."""
MAX_UNNAMED = 64

_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_PREFIXES = re.compile(
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|\[?\b\d{1,3}:\d\d(?::\d\d)?(?:[.,]\d+)?\b\]?(?:<[\d:?]+)?"  # time of day
    r"|\[?\b[\w/.-]+\.py:\d+\b\]?:?"
    r"|\[(?:rank|Rank|RANK)[ :]?\d+\]:?"
    r"|\b(?:INFO|DEBUG|WARNING)\b:?"
)
_RAY = re.compile(r"^\s*(?:\(\w[\w.]*\s+pid=\d+[^)]*\)\s?|\[rank\s?\d+\]:?\s?|\d{1,3}:\s(?=\{))")
"""Who of several processes printed a line."""
_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)%?"
    r"|[-+]?(?:nan|inf(?:inity)?)\b"
)
_WRAPPED = rf"(?:(?:np|numpy|torch|jnp)\.)?(?:float|int|tensor|array)\w*\(\[?(?:{_NUMBER})[^()]*\)"
_VALUE = rf"(?:{_WRAPPED}|{_NUMBER})"
_WORD = r"[^\W\d_][\w/@.()*+\-]*"
_END = r"(?![\w/-]|[.:,]\d)"
_PAIR = re.compile(
    rf"(?<![\w/@.])(?P<name>{_WORD}(?: [\w/@.()+\-]+){{0,4}}?)\s*[:=]\s*(?P<value>{_VALUE}){_END}",
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
_PARTS = re.compile(r"\s*[|;]\s*|,\s+|\s+/\s+|\s{2,}|\t")
_COUNTED = re.compile(
    r"^(?:(?:(?:global|train|training)[ _-])?(?:step|epoch|iteration|iter|update|episode|batch)s?"
    r"\s*#?\d+(?:/\d+)?:?\s+)+",
    re.IGNORECASE,
)
"""A step that stands before a name: `Step 1/100 reward`."""
_QUOTED = re.compile(
    rf"""(?P<quote>['"])(?P<name>[^'"]{{1,200}})(?P=quote)\s*:\s*['"]?(?P<value>{_VALUE})""",
    re.IGNORECASE,
)
_DASHED = re.compile(r"\bstep:\s*(\d{1,15})\s+-\s+(?=[^\s:]+:)")
_ROW = re.compile(
    rf"^\s*[|│┃║]\s*(?P<name>[^|│┃║]+?)\s*[|│┃║]\s*(?P<value>{_VALUE})\s*[|│┃║]\s*$", re.IGNORECASE
)
_SECTION = re.compile(r"^\s*[|│┃║]\s*(?P<name>[\w.\- ]+/)\s*[|│┃║]\s*[|│┃║]\s*$")
_EPOCH_BATCH = re.compile(
    r"epoch\s*:?\s*\[?(\d+)\s*/\s*\d+\]?[\s,:|-]*"
    r"(?:\(\s*(\d+)\s*/\s*(\d+)\s*\)|(?:step|iter(?:ation)?|batch)\s*:?\s*\[?(\d+)\s*/\s*(\d+)\]?)",
    re.IGNORECASE,
)
_MARKERS = tuple(
    re.compile(
        rf"(?:^|[^\w./])(?:{words})s?\s*[:=#]?\s*[\[(]?\s*(\d{{1,15}})(?![\d.]*\d*%|\.\d)\b",
        re.IGNORECASE,
    )
    for words in (
        r"global[\s_-]?step|train(?:ing)?[\s_-]?step|step",
        r"iteration|iter|update",
        r"batch|round",
        r"episode|ep",
        r"epoch",
    )
)
"""How a line says which step it is of, the surest first."""


def parse_log_line(line: str) -> tuple[int, dict[str, float]] | None:
    """The step and numbers of one line as verl and RAGEN print it, or None.

    >>> parse_log_line("(TaskRunner pid=7) step:3 - actor/entropy:0.5 - x:np.float64(1e-3)")
    (3, {'actor/entropy': 0.5, 'x': 0.001})
    """
    text = _COLOUR.sub("", line)
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
        match = marker.search(text)
        if match is not None:
            return rank, int(match[1])
    return None


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
    kind: str = "log"
    _collectors: dict[str, Collector] = field(default_factory=dict)
    _block: _Block = field(default_factory=_Block)
    _rows: _Block = field(default_factory=_Block)
    _header: list[str] = field(default_factory=list)
    _dict: list[str] = field(default_factory=list)
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
            text = _RAY.sub("", _COLOUR.sub("", line).rstrip())
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
        self._close_block()
        self._close_rows()
        filled = [name for name, c in self._collectors.items() if c.num_records]

        def says(grammar: str) -> tuple[bool, int, int]:
            """Enough rows to be judged, then how much they say of how many steps."""
            collector = self._collectors[grammar]
            rows = collector.num_records
            # Lines about one and the same step are no rows of a run.
            steps = min(rows, len(self._outcomes.get(grammar, ())) or rows)
            return rows >= 8, len(collector.known) ** 2 * min(steps, 20), rows

        best = max(filled, key=says, default=None)
        return self._collectors[best] if best is not None else self._of_unnamed()

    def _of_unnamed(self) -> Collector | None:
        """The table of the names that most lines repeat, where no name is of the catalogue."""
        rows = max(self._unnamed.values(), key=len, default=[])
        if len(rows) < MIN_UNNAMED:
            return None
        collector = Collector(path=self.path, kind=self.kind, mapping=self.mapping)
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
                path=self.path, kind=self.kind, mapping=self.mapping, needs_known=True
            )
            self._collectors[grammar] = collector
        if marker is not None and not any(is_step_name(name) for name in record):
            record = {_MARKED[marker[0]]: marker[1], **record}
        collector.add(record)
        if any(is_outcome(name) for name in record):
            steps = self._outcomes.setdefault(grammar, set())
            if len(steps) < MAX_OUTCOMES:
                counted = [value for name, value in record.items() if is_step_name(name)]
                steps.add(counted[0] if counted else float(collector.num_records))

    def _line(self, text: str) -> None:
        if not text.strip():
            return
        dashed = parse_log_line(text)
        if dashed is not None:
            self._add("dashes", {"step": dashed[0], **dashed[1]})
            return
        if self._is_of_dict(text) or self._is_of_table(text):
            return
        self._pairs(_PREFIXES.sub(" ", text))

    # --- dictionaries

    def _is_of_dict(self, text: str) -> bool:
        if self._dict:
            if not re.match(r"""(?:\S{1,30}:?\s+)?\s*['"}\]]""", text):
                self._dict = []
                return False
            self._dict.append(text)
        else:
            start = text.find("{")
            if start < 0 or not re.match(r"\{\s*(?:$|['\"])", text[start:]):
                return False
            self._dict = [text]
        if "}" not in text:
            if len(self._dict) >= MAX_DICT_LINES:
                self._dict = []
            return True
        whole, self._dict = " ".join(self._dict), []
        head, _, rest = whole.partition("{")
        for part in re.split(r"\}\s*\{", rest):
            pairs = {m["name"]: to_number(m["value"]) for m in _QUOTED.finditer(part)}
            self._add("dictionaries", pairs, step_marker(_PREFIXES.sub(" ", head)))
        return True

    # --- tables

    def _is_of_table(self, text: str) -> bool:
        section = _SECTION.match(text)
        if section:
            self._rows.section = section["name"].strip()
            return True
        row = _ROW.match(text)
        if row and not (len(self._header) == 2 and self._is_grid_row(text)):
            self._row(row["name"], to_number(row["value"]), text)
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
        if num_numbers == 0 and not re.search(r"[:=]\s*\S*\d", text):
            known = [c for c in cells if meaning_of(c) is not None or is_step_name(c)]
            if len(known) >= 2 or (known and len(cells) == 2) or is_step_name(cells[0]):
                self._header = cells
                return True
            return False
        if self._is_grid_row(text):
            named = dict(zip(self._header, cells, strict=True))
            values = {n: to_number(c) for n, c in named.items() if c}
            self._add("columns", values)
            if not any(meaning_of(name) for name in values):
                self._add_unnamed(values, None)
            return True
        return False

    def _is_grid_row(self, text: str) -> bool:
        cells = _cells(text)
        if not self._header or len(cells) != len(self._header):
            return False
        numbers = sum(not math.isnan(to_number(cell)) for cell in cells)
        return numbers >= max(1, len(cells) // 2) and not math.isnan(to_number(cells[0]))

    # --- pairs

    def _pairs(self, text: str) -> None:
        pairs: dict[str, float] = {}
        for match in _PAIR.finditer(text):
            if len(pairs) >= MAX_PAIRS:
                break
            pairs[_said_name(match["name"])] = to_number(match["value"])
        for part in _PARTS.split(text):
            said = _UNSIGNED.fullmatch(_COUNTED.sub("", part))
            if said and (meaning_of(said["name"]) or is_step_name(said["name"])):
                pairs.setdefault(said["name"], to_number(said["value"]))
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
        is_of_block = self._block.marker is None or (
            marker is not None and marker[0] <= self._block.marker[0]
        )
        if marker is not None and len(metrics) <= 1 and is_of_block:
            if marker != self._block.marker:
                self._close_block()
                self._close_rows()
            self._block.marker = self._rows.marker = marker
        alone = _ALONE.fullmatch(" ".join(text.split())) if len(metrics) == 1 else None
        if alone is not None:
            name = _said_name(alone["name"])
            if name in self._block.values:
                self._close_block(self._block.marker)
            self._block.values[name] = to_number(alone["value"])

    def _close_block(self, marker: tuple[int, int] | None = None) -> None:
        self._add("blocks", self._block.values, self._block.marker)
        self._block = _Block(marker=marker)


@functools.lru_cache(maxsize=4096)
def _said_name(words: str) -> str:
    """A name in a line of text, without the words of the sentence before it.

    >>> _said_name("Step 3 reward"), _said_name("DQN episodic returns"), _said_name("val cost")
    ('reward', 'episodic returns', 'val cost')
    """
    name = _COUNTED.sub("", words)
    if meaning_of(name) is not None or is_step_name(name):
        return name
    parts = name.split(" ")
    ends = (" ".join(parts[start:]) for start in range(1, len(parts)))
    return next((end for end in ends if is_outcome(end)), name)


_MARKED = ("step", "iteration", "batch", "episode", "epoch")
"""What a marker of each rank counts."""


def is_step_name(name: str) -> bool:
    return step_rank(name) is not None


@functools.lru_cache(maxsize=4096)
def is_outcome(name: str) -> bool:
    meaning = meaning_of(name)
    return meaning is not None and meaning.key.endswith(("success_rate", "return_mean"))


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
