"""SQL that is short to write and takes without end: time, memory, or the depth of a stack."""

from __future__ import annotations


def _doubling(levels: int, columns: str, end: str) -> str:
    """A CTE per level that joins the one before with itself."""
    first = "WITH x0 AS (SELECT 1 z)"
    more = "".join(
        f", x{n} AS (SELECT {columns} FROM x{n - 1} a, x{n - 1} b)" for n in range(1, levels + 1)
    )
    return f"{first}{more} SELECT {end} FROM x{levels}"


def _nested(call: str, depth: int) -> str:
    text = "1"
    for _ in range(depth):
        text = call.format(text)
    return f"SELECT {text}"


BOMBS: dict[str, str] = {
    # Rows without end.
    "a count of a million million": "SELECT count(*) FROM range(1000000000000) t(x) WHERE x%7=3",
    "a cross join": "SELECT count(*) FROM range(10000000) a(x), range(10000000) b(y) WHERE x*y%7=3",
    "a recursion": (
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t"
    ),
    "a recursion that doubles": (
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + v FROM t, (VALUES (0), (1)) w(v)) "
        "SELECT count(*) FROM t"
    ),
    "a recursion of growing text": (
        "WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) "
        "SELECT max(length(s)) FROM t"
    ),
    "a window over a cross join": (
        "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY x * y) r "
        "FROM range(1000000) a(x), range(1000000) b(y))"
    ),
    "a sort without end": "SELECT x FROM range(10000000000) t(x) ORDER BY hash(x)",
    "distinct without end": "SELECT count(DISTINCT hash(x)) FROM range(100000000000) t(x)",
    "an ASOF join": (
        "SELECT count(*) FROM range(3000000000) a(x) ASOF JOIN range(3000000000) b(y) ON x >= y"
    ),
    "a join of unequals": (
        "SELECT count(*) FROM range(30000000) a(x) JOIN range(30000000) b(y) ON x < y"
    ),
    "a correlated subquery": (
        "SELECT sum((SELECT count(*) FROM range(1000000) b(y) WHERE y < x)) "
        "FROM range(1000000) a(x)"
    ),
    "a grouping by many sets": (
        "SELECT count(*) FROM (SELECT 1 FROM (SELECT x a, x b, x c, x d, x e, x f, x g, x h, x i, "
        "x j, x k, x l FROM range(1000000) t(x)) GROUP BY CUBE (a, b, c, d, e, f, g, h, i, j, k, "
        "l))"
    ),
    # Values without end.
    "a long text": "SELECT repeat('x', 1000000000)",
    "long texts": "SELECT max(length(repeat('x', 100000000) || x)) FROM range(1000) t(x)",
    "a list without end": "SELECT unnest(range(1000000000000))",
    "a list of all": "SELECT list(x) FROM range(10000000000) t(x)",
    "one text of all": "SELECT string_agg(repeat('x', 1000), '') FROM range(100000000) t(x)",
    "a list of lists": (
        "SELECT len(list_transform(range(1000000), lambda x: list_transform(range(1000000), "
        "lambda y: x * y)))"
    ),
    "a reduction": "SELECT list_reduce(range(100000000), lambda a, b: a * 7 % 1000003 + b)",
    "padding": "SELECT lpad('x', 2000000000, 'y')",
    "a chain of replacements": (
        "SELECT length(replace(replace(replace(repeat('x', 10000), 'x', repeat('y', 10000)), 'y', "
        "repeat('z', 10000)), 'z', repeat('w', 1000)))"
    ),
    "a map of all": "SELECT map(range(300000000), range(300000000))",
    "a wide number": "SELECT factorial(33) FROM range(100000000000) ORDER BY 1 DESC",
    "a time series": (
        "SELECT count(*) FROM generate_series(timestamp '0001-01-01', timestamp '9999-01-01', "
        "INTERVAL 1 microsecond) t(x)"
    ),
    "many expressions": (
        "SELECT count(*) FROM range(1000000000) t(x) WHERE regexp_matches(repeat(x::text, 100), "
        "'(.*1){50}$')"
    ),
    # Plans without end: nothing runs yet.
    "columns that double": _doubling(22, "*", "count(*)"),
    "columns that double, all of them": _doubling(14, "*", "*"),
    "macros that double": _nested("nullif({}, 2)", 28),
    "many unions": " UNION ALL ".join(["SELECT count(*) FROM range(3)"] * 4000),
    "20,000 ORs": "SELECT 1 WHERE " + " OR ".join(f"{n}=1" for n in range(20_000)),
    "brackets in brackets": "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "selects in selects": "SELECT * FROM (" * 2_000 + "SELECT 1" + ")" * 2_000,
    "lists in lists": "SELECT " + "[" * 20_000 + "1" + "]" * 20_000,
    "a minus of a minus": "SELECT " + "- " * 50_000 + "1",
    "a wide join": "SELECT count(*) FROM " + ", ".join(f"range(3) t{n}" for n in range(40)),
    "a large IN": "SELECT 1 IN (" + ", ".join(map(str, range(200_000))) + ")",
}
