"""What is no run, or a bad one, or hostile: a sentence each, bounded, and nothing acts."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path

import pytest
from made_run import add_steps, make_run, open_writer

import echoscope
from echoscope import Run
from echoscope.diagnostics.read.names import MetricNameError
from echoscope.notebook import tables
from echoscope.notebook.tables import LimitWarning
from echoscope.store.errors import NotARunError, QueryError, StoreError
from echoscope.store.importers.importing import ImportingError
from echoscope.store.records import Turn

from .conftest import write_run

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\" onmouseover='alert(3)' "
    "</div></td>&lt;b&gt;\x1b[31mred\x1b]8;;http://x\x07\u202e\x00 ${7*7} {{7*7}}"
)


# --- what is no run


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotARunError, match="nothing: no such file or folder"):
        Run(tmp_path / "nothing")


def test_a_run_that_is_named_without_its_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "runs" / "demo", 1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotARunError, match="did you mean `runs/demo`"):
        Run("demo")


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "demo", 1)
    with pytest.raises(NotARunError, match=r"holds runs \(demo\). Name one"):
        Run(tmp_path / "runs")


def test_a_folder_of_documents_is_not_read_for_the_log_of_an_example_in_it() -> None:
    docs = Path(echoscope.__file__).resolve().parent / "docs"
    with pytest.raises(NotARunError, match=r"documents or code.*such as Run\('.*train.log'\)"):
        Run(docs)
    assert len(Run(docs / "examples" / "verl.log").metrics())


def test_files_that_nothing_reads_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises((ImportingError, ValueError, OSError)) as raised:
        Run(tmp_path / "notes.txt")
    assert "\n" not in str(raised.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImportingError, match="is empty"):
        Run(tmp_path / "empty")


def test_an_incomplete_address_of_wandb_is_an_error_in_one_line() -> None:
    with pytest.raises(ImportingError, match=r"wandb:lab/project.*ENTITY/PROJECT/RUN"):
        Run("wandb:lab/project")


@pytest.mark.parametrize("path", [None, 3, b"runs/demo", ["runs/demo"]])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(TypeError, match="is named by its path"):
        Run(path)


# --- runs that lack something


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "a", 0, status="failed"))
    assert "No step yet." in repr(run)
    assert "No step yet." in run._repr_html_()
    assert run.metrics().empty
    assert run.trajectories().empty
    assert run.turns("success").empty
    assert run.plots() == []
    assert run.diagnose().state == "insufficient evidence"
    assert run.alarms().empty
    assert run.last_step == -1
    with pytest.raises(QueryError, match="no figure yet"):
        run.plot()


def test_a_live_run_is_as_new_as_its_last_step(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    run = Run(tmp_path / "a")
    assert run.status == "waiting"
    add_steps(writer, "a", range(1))
    assert run.status == "live"
    assert len(run.trajectories()) == 4
    add_steps(writer, "a", range(1, 2))
    assert len(run.trajectories()) == 8
    assert "live, step 1 of 100" in repr(run.refresh())
    writer.close(status="finished")
    assert run.status == "finished"


def test_a_damaged_file_is_left_out_and_named(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", 3)
    damaged = sorted((path / "seg" / "turns").iterdir())[1]
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    run = Run(path)
    assert run.turns()["step"].unique().tolist() == [0, 2]
    assert damaged.name in " ".join(run.warnings)
    assert damaged.name in run._repr_html_()
    assert damaged.name in repr(run)


def test_a_run_that_cannot_be_read_is_an_error_in_one_line(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", 3)
    for name in ("run.json", "journal.ndjson"):
        (path / name).write_bytes(b"\x00" * 100)
    with pytest.raises(StoreError) as raised:
        Run(path)
    assert "\n" not in str(raised.value)


def test_a_run_without_success_shows_its_return(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", range(3), lambda step: {"reward/return_mean": step / 4})
    run = Run(path)
    assert "Mean reward" in run._repr_html_()
    assert "success" not in run.plots()
    assert "return" in run.plots()


def test_an_import_without_rewards_has_no_made_up_ones(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n'
    )
    run = Run(tmp_path / "x.jsonl")
    row = run.trajectories().to_dict("records")[0]
    assert row["episode_return"] != row["episode_return"]
    assert run.trajectories("episode_return > 0").empty
    assert run._repr_html_()
    assert "group_map" not in run.plots()
    assert "nan" not in run.episode(row["id"])._repr_html_()


# --- huge ones


def test_more_rows_than_fit_are_left_out_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_ROWS", 10)
    run = Run(make_run(tmp_path / "a", 5))
    with pytest.warns(LimitWarning, match="a: 20 trajectories match, and the first 10 are given"):
        rows = run.trajectories()
    assert rows["step"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert len(run.trajectories(limit=20)) == 20
    assert len(run.trajectories("step = 3")) == 4


def test_too_many_metrics_at_once_are_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echoscope.notebook.tables.MAX_VALUES", 5)
    run = Run(make_run(tmp_path / "a", 3, values=lambda _: {"a": 1.0, "b": 2.0}))
    with pytest.raises(QueryError, match="2 metrics over 3 steps are more than 5 numbers; name"):
        run.metrics()
    assert len(run.metrics("a")) == 3


@pytest.mark.long
def test_a_card_does_not_read_thousands_of_turns(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echoscope.notebook.run.MOST_TO_READ", 10)
    run = Run(demo)
    assert "No verdict yet: .diagnose() reads the episodes first" in repr(run)
    assert "No verdict yet" in run._repr_html_()
    assert run.diagnose().sentence in repr(run)


# --- conditions


@pytest.mark.parametrize(
    "where",
    [
        "1; DROP TABLE steps",
        "step IN (SELECT 1 FROM read_csv('/etc/passwd'))",
        "(SELECT content FROM read_text('/etc/passwd')) = ''",
        "EXISTS (FROM '/etc/passwd')",
        "COPY steps TO '/tmp/x'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "true) UNION SELECT * FROM read_parquet('/etc/passwd') WHERE (true",
        "sleep_ms(1000)",
        "count(*) > 1",
        "$1 > 2",
        "step > 'abc'",
        "*",
    ],
)
def test_a_condition_can_only_read_the_run(demo: Path, where: str) -> None:
    run = Run(demo)
    with pytest.raises(QueryError) as raised:
        run.trajectories(where)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("sql", ["DROP TABLE steps", "SELECT 1; SELECT 2", "FROM read_csv('x')"])
def test_a_query_can_only_read_the_run(demo: Path, sql: str) -> None:
    with pytest.raises(QueryError):
        Run(demo).query(sql)


def test_bad_arguments_are_named(demo: Path) -> None:
    run = Run(demo)
    with pytest.raises(TypeError, match="where is a text"):
        run.trajectories(lambda row: row.is_success)
    with pytest.raises(ValueError, match="limit is -1"):
        run.trajectories(limit=-1)
    with pytest.raises(QueryError, match="no column 'stepp'; did you mean 'step'"):
        run.trajectories(columns=["id", "stepp"])
    with pytest.raises(QueryError, match="names no column"):
        run.trajectories(columns=[])
    with pytest.raises(TypeError, match="is named by its id"):
        run.episode(3)
    assert run.trajectories(limit=0).empty


@pytest.mark.parametrize(
    ("trajectory_id", "there"),
    [
        ("t99", "t00000000-00000 to t00000029-00003"),
        ("", "t00000000-00000 to t00000029-00003"),
        ("t00000099-00000", "t00000000-00000 to t00000029-00003"),
    ],
)
def test_an_episode_that_is_not_there_is_answered_with_those_that_are(
    demo: Path, trajectory_id: str, there: str
) -> None:
    with pytest.raises(QueryError) as raised:
        Run(demo).episode(trajectory_id)
    assert str(raised.value) == (
        f"demo: no episode {trajectory_id!r}; there are {there}. trajectories() lists them"
    )


@pytest.mark.parametrize("step", [30, 99, -1])
def test_settings_of_a_step_that_is_not_there_are_refused(demo: Path, step: int) -> None:
    with pytest.raises(QueryError) as raised:
        Run(demo).settings(step)
    assert str(raised.value).startswith(f"demo: has no step {step}; its last one is 29")
    assert Run(demo).settings(29).equals(Run(demo).settings())


def test_a_run_without_a_step_or_an_episode_says_so(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "a", 0, status="failed"))
    with pytest.raises(QueryError, match="a: no episode 't00000000-00000'; the run has none"):
        run.episode("t00000000-00000")
    with pytest.raises(QueryError, match="a: has no step 0; its last one is -1"):
        run.settings(0)


# --- what the arguments of Run cannot be


def test_a_column_of_an_unknown_name_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,foo\n" + "".join(f"{i},{i / 40}\n" for i in range(40)))
    assert "no success rate and no reward was recognised" in Run(path).warnings
    run = Run(path, names={"foo": "rollout/success_rate"})
    assert run.metrics("rollout/success_rate").iloc[-1, 0] == 39 / 40
    with pytest.raises(MetricNameError) as raised:
        Run(path, names={"foo": "rollout/success_rat"})
    assert str(raised.value) == (
        'names={"foo": "rollout/success_rat"}: no rule reads \'rollout/success_rat\'; did you mean '
        "'rollout/success_rate'?"
    )


# --- hostile texts


class Elements(html.parser.HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.depth += tag not in ("img", "br", "polyline")

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag not in ("img", "br", "polyline")


def elements(text: str) -> Elements:
    page = Elements()
    page.feed(text)
    return page


OURS = {
    *("style", "div", "span", "b", "p", "code", "pre", "ul", "li", "i", "br"),
    *("details", "summary", "svg", "polyline", "table", "thead", "tbody", "tr", "th", "td"),
    *("dl", "dt", "dd", "img", "figure", "figcaption"),
}
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]")


def assert_harmless(card_html: str, text: str) -> None:
    page = elements(card_html)
    assert page.tags <= OURS
    assert not {name for name in page.attributes if name.startswith("on")}
    assert page.depth == 0
    assert not UNSEEN.search(card_html)
    assert not UNSEEN.search(text)


def test_hostile_texts_of_a_run_are_shown_and_do_nothing(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "_").replace("\x00", "")[:60]
    path = tmp_path / name
    path = make_run(
        path,
        9,
        base_model=HOSTILE,
        config={HOSTILE: HOSTILE, "imported": {"trainer": HOSTILE}},
        values=lambda step: {f"eval/{HOSTILE}/success_rate": 0.5, HOSTILE: 1.0},
        tags=(),
    )
    run = Run(path)
    assert_harmless(run._repr_html_(), repr(run))
    assert_harmless(run.diagnose()._repr_html_(), repr(run.diagnose()))
    for name in (*run.plots(), *run.metrics().columns):
        assert "<script" not in run.plot(name).to_json().replace("\\u003c", "<")


def test_hostile_texts_of_an_episode_are_shown_and_do_nothing(one_episode) -> None:
    turn = Turn(
        index=0,
        observation=HOSTILE,
        response=HOSTILE,
        actions=(HOSTILE,),
        info={HOSTILE: 1.0},
        shaping={HOSTILE: 1.0},
        frame=HOSTILE,
    )
    run = Run(one_episode(turn, tag=HOSTILE, env_id=HOSTILE, final_observation=HOSTILE))
    episode = run.episode("t00000001-00000")
    assert_harmless(episode._repr_html_(), repr(episode))
    assert "&lt;script&gt;" in episode._repr_html_()
