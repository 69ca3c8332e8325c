"""Which files a look looks at."""

from __future__ import annotations

from pathlib import Path

from echoscope.watch.files.rota import LIVELY_S, MAX_CALM, NUM_KEPT, TURN_S, Rota

LOOK_S = 0.2


def files(count: int) -> list[Path]:
    return [Path(f"{number}.jsonl") for number in range(count)]


def never(path: Path) -> bool:
    return False


def test_new_files_and_those_that_changed_lately_are_looked_at_each_time() -> None:
    rota = Rota(LOOK_S)
    rota.enter(files(1000), 0.0)
    assert len(rota.due(0.0, never)) == 1000
    assert len(rota.due(LIVELY_S, never)) == 1000


def test_calm_files_are_looked_at_in_turn_and_the_last_changed_each_time() -> None:
    rota, log = Rota(LOOK_S), Path("train.log")
    rota.enter([log, *files(1000)], 0.0)
    rota.changed(log, 5.0)
    now = 10 * LIVELY_S
    looks = [rota.due(now + number * LOOK_S, never) for number in range(round(TURN_S / LOOK_S))]
    assert all(log in look for look in looks)
    assert max(map(len, looks)) == NUM_KEPT + 94  # a tenth of those that are calm
    assert {path for look in looks for path in look} == {log, *files(1000)}


def test_a_calm_file_that_changes_is_looked_at_each_time_again() -> None:
    rota = Rota(LOOK_S)
    rota.enter(files(1000), 0.0)
    now = 10 * LIVELY_S
    first = rota.due(now, never)
    calm = next(path for path in files(1000) if path not in first)
    rota.changed(calm, now)
    assert all(calm in rota.due(now + number, never) for number in range(20))
    assert sorted(rota.files) == sorted(files(1000))


def test_a_look_takes_so_many_calm_files_at_most() -> None:
    rota = Rota(LOOK_S)
    rota.enter(files(100_000), 0.0)
    assert len(rota.due(10 * LIVELY_S, never)) == NUM_KEPT + MAX_CALM


def test_what_is_not_read_yet_waits_for_no_turn() -> None:
    rota = Rota(LOOK_S)
    rota.enter(files(1000), 0.0)
    unread = set(files(200))
    assert unread <= set(rota.due(10 * LIVELY_S, unread.__contains__))


def test_a_file_that_is_gone_is_not_looked_at() -> None:
    rota = Rota(LOOK_S)
    rota.enter(files(1000), 0.0)
    rota.due(10 * LIVELY_S, never)
    rota.enter(files(10), 11 * LIVELY_S)
    assert sorted(rota.files) == sorted(files(10))
    looks = [rota.due(12 * LIVELY_S + number, never) for number in range(10)]
    assert {path for look in looks for path in look} == set(files(10))
