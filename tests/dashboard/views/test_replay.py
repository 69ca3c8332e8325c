"""The replay page: what it shows, what an address asks for, and text that wants to be more."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_run import add_steps, made_trajectory, make_run, open_writer
from streamlit.testing.v1 import AppTest
from tables import columns_of

from echoscope.store.records import (
    Split,
    StepMetrics,
    Trajectory,
    TrajectoryOutcome,
    Turn,
)

OpenPage = Callable[..., AppTest]
EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>![x](http://evil.example/x.png)"
    "[a](javascript:alert(1))\u202egnp\u202c\x00\x1b[31m\u200b:smile: $x$ </div></span>"
)
FRAME = '{"cells":["_G"],"kind":"grid","legend":{"G":"goal","_":"ice"},"overlays":[],"size":[1,2]}'


def shown_html(page: AppTest) -> str:
    return "".join(element.proto.body for element in page.get("html"))


def words(page: AppTest) -> str:
    kinds = ("text", "markdown", "caption", "code", "info", "subheader")
    return "\n".join(str(element.value) for kind in kinds for element in page.get(kind))


def read(page: AppTest) -> str:
    """The words as a person reads them: without what keeps Markdown from acting."""
    return words(page).replace("\\", "").replace("\u2060", "")


def listed(page: AppTest) -> list[str]:
    return columns_of(page)["id"]


def commit(path: Path, trajectories: list[Trajectory], **what: object) -> Path:
    """A run of one step that holds these trajectories."""
    writer = open_writer(path)
    metrics = StepMetrics(
        run_id=path.name, step=0, phase="train", policy_version=0, wall_time=1.0, values={}
    )
    writer.commit_step(
        **({"metrics": [metrics], "trajectories": trajectories, "outcomes": []} | what)
    )
    writer.close(status="finished")
    return path


class TestRecordedRun:
    def test_it_opens_on_the_last_step_and_the_first_trajectory(
        self, recorded_root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", recorded_root, run="tiny")
        assert not page.exception
        assert page.subheader[0].value.startswith("t00000004\\-")
        assert "es-board-img" in shown_html(page)

    def test_a_link_restores_trajectory_turn_and_heat(
        self, recorded_root: Path, open_page: OpenPage
    ) -> None:
        page = open_page(
            "replay",
            recorded_root,
            run="tiny",
            trajectory="t00000002-00003",
            turn="1",
            heat="entropy",
        )
        assert not page.exception
        assert not page.info
        assert page.query_params["step"] == "2"
        html = shown_html(page)
        assert "Observation of turn 1" in html
        assert "Entropy (nats)" in html
        _, _, chosen = html.partition('class="es-turn es-now"')
        chosen, _, _ = chosen.partition('class="es-turn"')
        assert chosen.count('class="es-t ') == 10  # a token each, spelled by the run's tokenizer

    def test_all_turns_stand_in_one_scroll_and_the_newest_is_chosen(
        self, recorded_root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", recorded_root, run="tiny", trajectory="t00000002-00003")
        html = shown_html(page)
        places = [html.index(f"Observation of turn {n}<") for n in range(2)]
        assert places == sorted(places)
        assert html.count('class="es-turn es-now"') == 1
        assert html.rindex('class="es-turn"') < html.index('class="es-turn es-now"')
        assert page.button(key="replay_n").disabled

    def test_one_line_says_how_it_ended_and_seeds_are_folded_away(
        self, recorded_root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", recorded_root, run="tiny", trajectory="t00000002-00003")
        lines = [e.proto.body for e in page.get("html") if "es-facts" in e.proto.body]
        assert "return" in lines[0]
        assert "advantage" in lines[0]
        assert "seed of the task" not in lines[0]
        (details,) = [box for box in page.get("popover") if box.proto.popover.label == "Details"]
        assert any("seed of the task" in e.proto.body for e in details.get("html"))

    @pytest.mark.parametrize("heat", ["logprob", "advantage", "ratio"])
    def test_heats_of_a_trained_step(
        self, heat: str, recorded_root: Path, open_page: OpenPage
    ) -> None:
        page = open_page(
            "replay", recorded_root, run="tiny", trajectory="t00000002-00003", heat=heat
        )
        assert not page.exception
        assert "es-legend" in shown_html(page)

    def test_a_heat_that_was_not_recorded_says_so(
        self, recorded_root: Path, open_page: OpenPage
    ) -> None:
        page = open_page(
            "replay", recorded_root, run="tiny", trajectory="t00000002-00003", heat="reference"
        )
        assert "Reference gap was not recorded" in words(page)

    def test_the_prompt_can_be_spelled(self, recorded_root: Path, open_page: OpenPage) -> None:
        page = open_page(
            "replay", recorded_root, run="tiny", trajectory="t00000002-00003", prompt="1"
        )
        assert "Prompt, " in shown_html(page)

    def test_a_link_lists_the_siblings_and_another_the_whole_step(
        self, recorded_root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", recorded_root, run="tiny", trajectory="t00000002-00005")
        next(button for button in page.button if button.label == "Siblings").click().run()
        assert "4 trajectories" in words(page)
        assert page.query_params["where"] == "step = 2 AND group_index = 1"
        assert page.query_params["trajectory"] == "t00000002-00005"
        next(button for button in page.button if button.label == "Whole step").click().run()
        assert "where" not in page.query_params


class TestOneSplitAtATime:
    """Training and evaluation episodes are different distributions: nobody adds them up."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        trained = [made_trajectory(0, n) for n in range(4)]
        evaluated = [replace(made_trajectory(0, n), split=Split.EVAL) for n in range(6)]
        probed = [replace(made_trajectory(0, n), split=Split.PROBE) for n in range(2)]
        commit(tmp_path / "made", [*evaluated, *probed, *trained])
        return tmp_path

    def test_it_opens_on_training(self, root: Path, open_page: OpenPage) -> None:
        page = open_page("replay", root, run="made")
        assert listed(page) == [f"t00000000-0000{n}" for n in range(4)]
        assert "4 trajectories: 2 solved of 4" in read(page)

    def test_evaluation_is_said_to_be_never_trained_on(
        self, root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", root, run="made", split="eval")
        assert listed(page) == [f"e00000000-0000{n}" for n in range(6)]
        assert "6 trajectories: 3 solved of 6, mean return 0.5, never trained on" in read(page)
        assert set(columns_of(page)["update"]) == {"never trained on"}
        assert "evaluation, never trained on" in shown_html(page)
        assert "no update has used it yet" not in shown_html(page)

    def test_a_link_to_an_evaluation_lists_evaluations(
        self, root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", root, run="made", trajectory="e00000000-00003")
        assert listed(page)[0] == "e00000000-00000"

    def test_a_step_without_the_split_names_the_steps_that_have_it(
        self, tmp_path: Path, open_page: OpenPage
    ) -> None:
        writer = open_writer(tmp_path / "made")
        add_steps(writer, "made", range(0, 3))
        evaluated = replace(made_trajectory(3, 0), split=Split.EVAL)
        metrics = StepMetrics(
            run_id="made", step=3, phase="train", policy_version=3, wall_time=1.0, values={}
        )
        writer.commit_step(metrics=[metrics], trajectories=[evaluated], outcomes=[])
        writer.close(status="finished")
        page = open_page("replay", tmp_path, run="made", step="1", split="eval")
        assert "Step 1 has no evaluation trajectories. Steps that have some: 3." in words(page)


def test_a_long_conversation_is_shown_around_the_chosen_turn(
    tmp_path: Path, open_page: OpenPage
) -> None:
    turns = tuple(Turn(index=n, observation=f"o{n}", response="r" * 9_000) for n in range(100))
    commit(tmp_path / "long", [replace(made_trajectory(0, 0), turns=turns)])
    html = shown_html(open_page("replay", tmp_path, run="long", turn="50"))
    shown = [n for n in range(100) if f"Observation of turn {n}<" in html]
    assert shown == list(range(30, 70))
    assert "30 earlier turns" in html
    assert "30 later turns" in html
    assert html.count("r" * 9_000) == 1  # the chosen turn; the others are cut


class TestNavigation:
    @pytest.fixture
    def page(self, tmp_path: Path, open_page: OpenPage) -> AppTest:
        make_run(tmp_path / "made")
        return open_page("replay", tmp_path, run="made", step="1")

    def press(self, page: AppTest, key: str) -> AppTest:
        return page.button(key=key).click().run()

    def test_next_and_previous_walk_the_list(self, page: AppTest) -> None:
        assert page.subheader[0].value == "t00000001\\-00000"
        self.press(page, "replay_j")
        assert page.query_params["trajectory"] == "t00000001-00001"
        self.press(page, "replay_k")
        assert page.query_params["trajectory"] == "t00000001-00000"
        assert page.button(key="replay_k").disabled

    def test_a_number_typed_goes_to_that_step(self, page: AppTest) -> None:
        page.number_input(key="url_step").set_value(0).run()
        assert listed(page)[0] == "t00000000-00000"

    def test_an_order_is_in_the_address(self, page: AppTest) -> None:
        page.selectbox(key="url_order").set_value("worst").run()
        assert page.query_params["order"] == "worst"
        assert listed(page)[:2] == ["t00000001-00001", "t00000001-00003"]

    def test_a_filter_leaves_out_and_says_how_many(self, page: AppTest) -> None:
        page.selectbox(key="url_success").set_value("failed").run()
        assert listed(page) == ["t00000001-00001", "t00000001-00003"]
        page.selectbox(key="url_kept").set_value("dropped").run()
        assert "No training trajectory matches." in words(page)


class TestSearch:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        writer = open_writer(tmp_path / "made")
        add_steps(writer, "made", range(0, 5), text="I go UP (really).")
        add_steps(writer, "made", range(5, 30), text="Hm.")
        writer.close(status="finished")
        return tmp_path

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("params", "count"),
        [
            ({"q": "go up (REALLY"}, 20),
            ({"q": "prompt 1"}, 60),  # observations, too
            ({"q": "prompt 1", "where": "step >= 29"}, 2),
            ({"where": "is_success AND step < 3"}, 6),
            ({"q": "nowhere"}, 0),
        ],
    )
    def test_what_is_found(
        self, params: dict[str, str], count: int, root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", root, run="made", **params)
        assert not page.exception
        assert f"{count} trajectories" in words(page).replace("\\", "")

    def test_a_found_trajectory_shows_the_words_around(
        self, root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", root, run="made", q="really")
        assert "(really)" in columns_of(page)["match"][0]

    @pytest.mark.parametrize(
        "params", [{"where": "no_such_column = 1"}, {"where": "1); DROP TABLE x"}]
    )
    def test_a_bad_question_is_explained(
        self, params: dict[str, str], root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", root, run="made", **params)
        assert not page.exception
        assert page.text

    def test_too_many_hits_are_cut_and_said(self, tmp_path: Path, open_page: OpenPage) -> None:
        writer = open_writer(tmp_path / "many")
        add_steps(writer, "many", range(0, 4), num_trajectories=80)
        writer.close(status="finished")
        page = open_page("replay", tmp_path, run="many", q="go up")
        assert "200 of 320 matches" in words(page)

    @pytest.mark.parametrize(
        ("order", "first"),
        [
            ("id", ["t00000000-00000", "t00000000-00001"]),
            ("newest", ["t00000003-00000", "t00000003-00001"]),
            ("worst", ["t00000002-00077", "t00000000-00001"]),  # the only one below 0
            ("best", ["t00000003-00078", "t00000000-00000"]),  # the only one above 1
            ("longest", ["t00000001-00040", "t00000000-00000"]),
        ],
    )
    @pytest.mark.parametrize("search", [{"q": "go up"}, {"where": "num_turns = 1"}])
    def test_the_first_in_order_of_all_matches_not_of_the_first_200(
        self,
        order: str,
        first: list[str],
        search: dict[str, str],
        tmp_path: Path,
        open_page: OpenPage,
    ) -> None:
        writer = open_writer(tmp_path / "many")
        for step in range(4):
            some = [made_trajectory(step, n, "I go up.") for n in range(80)]
            some += [made_trajectory(step, n, "I go up.") for n in range(80, 90, 2)]
            for place, reward in ((77, -1.0),) * (step == 2) + ((78, 2.0),) * (step == 3):
                turns = (replace(some[place].turns[0], reward=reward),)
                some[place] = replace(some[place], turns=turns)
            if step == 1:
                tokens = {"prompt_tokens": np.array([1]), "response_tokens": np.zeros(9, np.int32)}
                some[40] = replace(some[40], turns=(replace(some[40].turns[0], **tokens),))
            metrics = StepMetrics(
                run_id="many", step=step, phase="train", policy_version=0, wall_time=1.0, values={}
            )
            writer.commit_step(metrics=[metrics], trajectories=some, outcomes=[])
        writer.close(status="finished")
        page = open_page("replay", tmp_path, run="many", order=order, **search)
        assert not page.exception
        assert listed(page)[:2] == first
        assert "200 of 340 matches" in words(page)

    def test_filters_choose_among_all_matches(self, tmp_path: Path, open_page: OpenPage) -> None:
        writer = open_writer(tmp_path / "many")
        add_steps(writer, "many", range(0, 8), num_trajectories=80)
        writer.close(status="finished")
        page = open_page("replay", tmp_path, run="many", q="go up", success="failed", order="id")
        assert {name[-1] for name in listed(page)} <= set("13579")
        assert "200 trajectories" in words(page)

    @pytest.mark.long
    def test_a_search_keeps_its_columns_and_marks_its_hits(
        self, root: Path, open_page: OpenPage
    ) -> None:
        page = open_page("replay", root, run="made", q="go UP (really")
        names = list(columns_of(page))
        assert names[:4] == ["id", "return", "success", "match"]
        assert '<span class="es-hit">go UP (really</span>' in shown_html(page)


@pytest.mark.parametrize(
    "params",
    [
        {"trajectory": "nope"},
        {"trajectory": "t00000001-09999"},
        {"trajectory": EVIL},
        {"turn": "-3"},
        {"turn": "1e9"},
        {"step": "99999"},
        {"heat": EVIL},
        {"order": "x"},
        {"success": "x"},
        {"q": "x" * 5000},
        {"where": "x" * 5000},
    ],
    ids=lambda params: next(iter(params)),
)
def test_a_malformed_address_is_a_notice_and_the_default(
    params: dict[str, str], tmp_path: Path, open_page: OpenPage
) -> None:
    run = make_run(tmp_path / "made")
    page = open_page("replay", run.parent, run="made", **params)
    assert not page.exception
    assert len(page.info) == 1
    assert page.subheader


class Elements(HTMLParser):
    """What a browser would make of it: every element with its attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


HARMLESS = {"style", "div", "span", "b", "i", "figure", "figcaption", "img"}
ATTRIBUTES = {"class", "title", "dir", "style", "alt", "src"}
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069]")


def require_harmless(html: str) -> None:
    parser = Elements()
    parser.feed(html)
    for tag, attributes in parser.found:
        assert tag in HARMLESS, tag
        assert set(attributes) <= ATTRIBUTES, attributes
        source = attributes.get("src")
        if source is not None:
            assert source.startswith("data:image/svg+xml;base64,")
            drawn = base64.b64decode(source.partition(",")[2]).decode()
            assert "<script" not in drawn
            assert "<img" not in drawn
            assert not UNSEEN.search(drawn)
    assert not UNSEEN.search(html)


def evil_trajectory(index: int = 0, text: str = EVIL) -> Trajectory:
    turn = Turn(
        index=0,
        observation=text,
        response=text,
        reasoning_chars=(0, 20),
        answer_chars=(25, 40),
        actions=(text, text),
        frame=text,
        info={text: 1.0},
        shaping={text: 0.5},
        prompt_tokens=np.array([1]),
        response_tokens=np.array([1, 2]),
        logprobs=np.array([-1.0, -np.inf]),
        entropies=np.array([np.nan, np.inf]),
    )
    return replace(
        made_trajectory(0, index),
        turns=(turn,),
        tag=text,
        env_id=text,
        final_observation=text,
        final_frame=text,
        source=text,
        extra=text,
        is_success=None,
    )


class TestHostileText:
    @pytest.mark.parametrize("heat", ["none", "logprob", "entropy"])
    def test_in_every_field_it_stays_text(
        self, heat: str, tmp_path: Path, open_page: OpenPage
    ) -> None:
        some = [evil_trajectory(0), evil_trajectory(1)]
        outcome = TrajectoryOutcome(
            trajectory_id=some[0].id, advantage=None, kept=False, drop_reason=EVIL
        )
        commit(tmp_path / "evil", some, outcomes=[outcome])
        page = open_page("replay", tmp_path, run="evil", heat=heat, prompt="1")
        assert not page.exception
        require_harmless(shown_html(page))
        for kind in ("markdown", "caption", "info", "subheader"):
            for element in page.get(kind):
                assert "<img" not in element.value.replace("\\<", "")
                assert "![x]" not in element.value
                assert "[a](" not in element.value
                assert not re.search("[\u202a-\u202e\x00\x1b]", element.value)

    def test_a_frame_that_is_a_board_with_hostile_names(
        self, tmp_path: Path, open_page: OpenPage
    ) -> None:
        frame = FRAME.replace('"ice"', '"<img src=x onerror=1>\\u202e"')
        turn = Turn(index=0, observation="o", response="r", frame=frame)
        commit(tmp_path / "r", [replace(made_trajectory(0, 0), turns=(turn,))])
        page = open_page("replay", tmp_path, run="r")
        assert not page.exception
        require_harmless(shown_html(page))

    def test_a_search_for_it_finds_it_as_text(self, tmp_path: Path, open_page: OpenPage) -> None:
        commit(tmp_path / "evil", [evil_trajectory()])
        page = open_page("replay", tmp_path, run="evil", q="onerror=alert")
        assert not page.exception
        require_harmless(shown_html(page))
        assert not UNSEEN.search(columns_of(page)["match"][0])

    def test_a_text_of_five_million_characters_is_cut(
        self, tmp_path: Path, open_page: OpenPage
    ) -> None:
        turn = Turn(index=0, observation="o" * 5_000_000, response="r\u202e" * 2_500_000)
        commit(tmp_path / "long", [replace(made_trajectory(0, 0), turns=(turn,))])
        page = open_page("replay", tmp_path, run="long")
        assert not page.exception
        html = shown_html(page)
        require_harmless(html)
        assert len(html) < 2_000_000
        assert "4,980,000 more characters are not shown" in html

    def test_a_turn_of_a_hundred_thousand_tokens_is_cut(
        self, tmp_path: Path, open_page: OpenPage
    ) -> None:
        turn = Turn(
            index=0,
            observation="o",
            response="r" * 100_000,
            prompt_tokens=np.array([1]),
            response_tokens=np.zeros(100_000),
            entropies=np.ones(100_000),
        )
        commit(tmp_path / "long", [replace(made_trajectory(0, 0), turns=(turn,))])
        page = open_page("replay", tmp_path, run="long", heat="entropy")
        assert not page.exception
        assert "the first 2,000 tokens of 100,000" in shown_html(page)
        assert "no tokenizer.json" in shown_html(page)


class TestOddTrajectories:
    def test_one_without_turns(self, tmp_path: Path, open_page: OpenPage) -> None:
        empty = replace(made_trajectory(0, 0), turns=(), final_observation="It broke.")
        commit(tmp_path / "r", [empty])
        page = open_page("replay", tmp_path, run="r")
        assert not page.exception
        assert "No turn was played" in words(page)
        assert "It broke." in shown_html(page)

    def test_a_step_without_trajectories(self, tmp_path: Path, open_page: OpenPage) -> None:
        writer = open_writer(tmp_path / "r")
        add_steps(writer, "r", range(0, 2), num_trajectories=0)
        writer.close(status="finished")
        page = open_page("replay", tmp_path, run="r")
        assert not page.exception
        assert "has no training trajectories" in words(page)
        assert "Choose a trajectory" in words(page)
