"""The replay page: what it shows, what an address asks for, and text that wants to be more."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_run import add_steps, made_trajectory, make_run, open_writer, step_metrics
from streamlit.testing.v1 import AppTest
from tables import columns_of

from echoscope.store.records import (
    Split,
    StepMetrics,
    Trajectory,
    TrajectoryOutcome,
    Turn,
)
from echoscope.store.steer.episode_notes import AddLabel, note_episodes

OpenPage = Callable[..., AppTest]
EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>![x](http://evil.example/x.png)"
    "[a](javascript:alert(1))\u202egnp\u202c\x00\x1b[31m\u200b:smile: $x$ </div></span>"
)
FACTS = '<div class="es-facts">'
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
    """The episodes of the list: `group, sibling`, of a search `step, group, sibling`."""
    return next(iter(columns_of(page).values()))


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


@pytest.fixture
def tiny(recorded_root: Path, open_page: OpenPage) -> OpenPage:
    """Opens a recorded run."""
    return partial(open_page, "replay", recorded_root, run="tiny")


@pytest.fixture
def made(root: Path, open_page: OpenPage) -> OpenPage:
    """Opens the run of `root`."""
    return partial(open_page, "replay", root, run="made")


class TestRecordedRun:
    def test_it_opens_on_the_last_step_and_the_first_trajectory(self, tiny: OpenPage) -> None:
        page = tiny()
        assert not page.exception
        assert page.number_input(key="url_step").value == 4
        assert page.subheader[0].value.startswith("Group ")
        assert "es-board-img" in shown_html(page)

    def test_a_link_restores_trajectory_turn_and_heat(self, tiny: OpenPage) -> None:
        page = tiny(trajectory="t00000002-00003", turn="1", heat="entropy")
        assert not page.exception
        assert not page.info
        assert page.query_params["step"] == "2"
        html = shown_html(page)
        assert "Turn 1<" in html
        assert "Entropy (nats)" in html
        _, _, chosen = html.partition('class="es-turn es-now"')
        chosen, _, _ = chosen.partition('class="es-turn"')
        assert chosen.count('class="es-t ') == 10  # a token each, spelled by the run's tokenizer

    def test_all_turns_stand_in_one_scroll_and_the_newest_is_chosen(self, tiny: OpenPage) -> None:
        page = tiny(trajectory="t00000002-00003")
        html = shown_html(page)
        places = [html.index(f">Turn {n}</span>") for n in range(2)]
        assert places == sorted(places)
        assert html.count('class="es-turn es-now"') == 1
        assert html.rindex('class="es-turn"') < html.index('class="es-turn es-now"')
        assert page.button(key="replay_go_n").disabled

    def test_one_line_says_how_it_ended_and_seeds_are_folded_away(self, tiny: OpenPage) -> None:
        page = tiny(trajectory="t00000002-00003")
        lines = [e.proto.body for e in page.get("html") if e.proto.body.startswith(FACTS)]
        assert "return" in lines[0]
        assert "not trained on" in lines[0] or "advantage" in lines[0]
        assert "seed of the task" not in lines[0]
        (details,) = [box for box in page.get("popover") if box.proto.popover.label == "Details"]
        folded = "".join(e.proto.body for e in details.get("html"))
        assert "seed of the task" in folded
        assert "t00000002-00003" in folded

    @pytest.mark.parametrize("heat", ["logprob", "advantage", "ratio"])
    def test_heats_of_a_trained_step(self, heat: str, tiny: OpenPage) -> None:
        page = tiny(trajectory="t00000002-00003", heat=heat)
        assert not page.exception
        assert "es-legend" in shown_html(page)

    def test_a_heat_that_was_not_recorded_says_so(self, tiny: OpenPage) -> None:
        page = tiny(trajectory="t00000002-00003", heat="reference")
        assert "Reference gap was not recorded" in words(page)

    def test_the_prompt_can_be_spelled(self, tiny: OpenPage) -> None:
        page = tiny(trajectory="t00000002-00003", prompt="1")
        assert "Prompt, " in shown_html(page)


class TestOneSplitAtATime:
    """Training and evaluation episodes are different distributions: nobody adds them up."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        trained = [made_trajectory(0, n) for n in range(4)]
        evaluated = [replace(made_trajectory(0, n), split=Split.EVAL) for n in range(6)]
        probed = [replace(made_trajectory(0, n), split=Split.PROBE) for n in range(2)]
        commit(tmp_path / "made", [*evaluated, *probed, *trained])
        return tmp_path

    def test_it_opens_on_training(self, made: OpenPage) -> None:
        page = made()
        assert sorted(listed(page)) == ["0, 0", "0, 1", "1, 0", "1, 1"]
        assert "</span> 2 solved</span>" in shown_html(page)

    def test_evaluation_is_said_to_be_never_trained_on(self, made: OpenPage) -> None:
        page = made(split="eval")
        assert len(listed(page)) == 6
        assert "</span> 3 solved</span>" in shown_html(page)
        assert "update" not in columns_of(page)  # it would say the same of all
        assert "evaluation, never trained on" in shown_html(page)
        assert "no update has used it yet" not in shown_html(page)

    def test_a_link_to_an_evaluation_lists_evaluations(self, made: OpenPage) -> None:
        page = made(trajectory="e00000000-00003")
        assert page.selectbox(key="url_split").value == "eval"
        assert len(listed(page)) == 6

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
    turns_shown = [n for n in range(100) if f">Turn {n}<" in html]
    assert turns_shown == list(range(30, 70))
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
        """The worst comes first: both failures, then both successes."""
        assert page.subheader[0].value == "Group 0, sibling 1"
        self.press(page, "replay_go_j")
        assert page.query_params["trajectory"] == "t00000001-00003"
        self.press(page, "replay_go_k")
        assert page.query_params["trajectory"] == "t00000001-00001"
        assert page.button(key="replay_go_k").disabled

    def test_a_number_typed_goes_to_that_step(self, page: AppTest) -> None:
        page.number_input(key="url_step").set_value(0).run()
        self.press(page, "replay_go_j")
        assert page.query_params["trajectory"].startswith("t00000000-")

    def test_an_order_is_in_the_address(self, page: AppTest) -> None:
        assert listed(page) == ["0, 1", "1, 1", "0, 0", "1, 0"]
        page.selectbox(key="url_order").set_value("best").run()
        assert page.query_params["order"] == "best"
        assert listed(page)[:2] == ["0, 0", "1, 0"]

    def test_a_filter_leaves_out_and_says_how_many(self, page: AppTest) -> None:
        page.selectbox(key="url_success").set_value("failed").run()
        assert listed(page) == ["0, 1", "1, 1"]
        page.selectbox(key="url_kept").set_value("dropped").run()
        assert "No training trajectory matches." in words(page)


class TestComparison:
    """An episode beside a sibling, or beside the same prompt at another step."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Three siblings with returns 0, 1, 0.5 at step 1; two of the same prompt at step 0."""
        writer = open_writer(tmp_path / "made")
        for step, rewards in enumerate(((0.0, 1.0), (0.0, 1.0, 0.5))):
            made = []
            for n, reward in enumerate(rewards):
                plain = made_trajectory(step, 0, f"I go {n}.")
                turn = replace(plain.turns[0], reward=reward)
                changes = {"index": n, "sibling_index": n, "is_success": reward == 1.0}
                made.append(replace(plain, turns=(turn,), **changes))
            writer.commit_step(metrics=[step_metrics("made", step, {})], trajectories=made)
        writer.close(status="finished")
        return tmp_path

    def test_the_sibling_that_differs_most_is_the_first_choice(self, made: OpenPage) -> None:
        page = made(compare="1", trajectory="t00000001-00000")
        assert not page.exception
        choice = page.selectbox(key="url_beside")
        assert choice.options == [
            "sibling 1, solved, return 1", "sibling 2, failed, return 0.5",
            "step 0, failed, return 0",
        ]  # fmt: skip
        html = shown_html(page)
        assert 'class="es-left">0</span>' in html
        assert 'class="es-right">1</span>' in html

    def test_the_same_prompt_at_another_step(self, made: OpenPage) -> None:
        page = made(compare="1", trajectory="t00000001-00000")
        page.selectbox(key="url_beside").set_value("t00000000-00000").run()
        assert page.query_params["beside"] == "t00000000-00000"
        assert "Both episodes are the same." in shown_html(page)
        assert "step 0, sibling 0" in shown_html(page)

    def test_the_key_opens_and_closes_it(self, made: OpenPage) -> None:
        page = made()
        page.button(key="replay_compare").click().run()
        assert page.query_params["compare"] == "1"
        page.button(key="replay_compare").click().run()
        assert "compare" not in page.query_params

    @pytest.mark.parametrize("beside", [EVIL, "t00000000-00001", "t00000009-00000", "1" * 200])
    def test_what_did_not_answer_this_prompt_is_a_notice(self, beside: str, made: OpenPage) -> None:
        page = made(compare="1", beside=beside)
        assert not page.exception
        assert len(page.info) == 1

    def test_an_episode_alone_says_so(self, tmp_path: Path, open_page: OpenPage) -> None:
        commit(tmp_path / "one", [made_trajectory(0, 0)])
        page = open_page("replay", tmp_path, run="one", compare="1")
        assert "This episode has no sibling" in words(page)


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
    def test_what_is_found(self, params: dict[str, str], count: int, made: OpenPage) -> None:
        page = made(**params)
        assert not page.exception
        assert f"{count} trajectories" in words(page).replace("\\", "")

    def test_a_found_trajectory_shows_the_words_around(self, made: OpenPage) -> None:
        page = made(q="really")
        assert "(really)" in columns_of(page)["match"][0]

    @pytest.mark.parametrize(
        "params", [{"where": "no_such_column = 1"}, {"where": "1); DROP TABLE x"}]
    )
    def test_a_bad_question_is_explained(self, params: dict[str, str], made: OpenPage) -> None:
        page = made(**params)
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
            ("id", ["0, 0, 0", "0, 0, 1"]),
            ("newest", ["3, 0, 0", "3, 0, 1"]),
            ("worst", ["2, 38, 1", "0, 0, 1"]),  # the only one below 0
            ("best", ["3, 39, 0", "0, 0, 0"]),  # the only one above 1
            ("longest", ["1, 20, 0", "0, 0, 0"]),
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
            for index, reward in ((77, -1.0),) * (step == 2) + ((78, 2.0),) * (step == 3):
                turns = (replace(some[index].turns[0], reward=reward),)
                some[index] = replace(some[index], turns=turns)
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
        assert {name[-1] for name in listed(page)} == {"1"}
        assert "200 trajectories" in words(page)

    @pytest.mark.long
    def test_a_search_keeps_its_columns_and_marks_its_hits(self, made: OpenPage) -> None:
        page = made(q="go UP (really")
        names = list(columns_of(page))
        assert names[:4] == ["step, group, sibling", "success", "return", "match"]
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
ATTRIBUTES = {
    *("class", "title", "dir", "style", "alt", "src"),
    *("role", "aria-level", "aria-label", "tabindex"),
}
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
    def test_in_a_comparison_and_a_label_it_stays_text(
        self, tmp_path: Path, open_page: OpenPage
    ) -> None:
        commit(tmp_path / "evil", [evil_trajectory(0), evil_trajectory(1, f"{EVIL} more")])
        who = {"author": "x", "at": 1.0, "attempt": 1, "episode": "t00000000-00000"}
        label = "<img src=x onerror=1>![x](http:evil)**b**:smile:"
        note_episodes(tmp_path / "evil", AddLabel(**who, label=label))
        for params in ({"compare": "1"}, {"label": label}, {}):
            page = open_page("replay", tmp_path, run="evil", **params)
            assert not page.exception
            require_harmless(shown_html(page))
            for kind in ("markdown", "caption", "info", "subheader"):
                for element in page.get(kind):
                    assert "![x]" not in element.value

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
        assert "Choose an episode" in words(page)
