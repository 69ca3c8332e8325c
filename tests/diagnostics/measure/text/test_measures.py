"""The report: what it says about texts of known kind, and what it refuses to say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from episodes import episode, one_turn_each, text_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from echoscope.diagnostics.measure.text.measures import text_metrics
from echoscope.diagnostics.measure.text.report import METRICS
from echoscope.diagnostics.measure.text.sample import draw, evenly
from echoscope.store.records import RolloutBatch

NAMES = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"]


def report(trajectories):
    return text_metrics(trajectories, np.random.default_rng(0))


@given(st.integers(1, 300), st.integers(2, 50))
def test_steps_that_are_chosen_evenly_keep_both_ends(count, most):
    kept = evenly(range(count), most)
    assert len(kept) <= most
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert kept == sorted(set(kept))


def test_every_metric_is_a_number_or_has_a_reason():
    measured = report(one_turn_each([["a"]]))
    assert set(measured.values) == set(METRICS)
    assert {key for key, value in measured.values.items() if math.isnan(value)} == set(
        measured.reasons
    )
    assert set(measured.metrics()) == {f"text/{key}" for key in METRICS}


def test_reasoning_that_names_its_prompt_depends_on_it():
    measured = report(one_turn_each([[f"I see {name}"] * 8 for name in NAMES]))
    assert measured.values["retrieval_accuracy"] == pytest.approx(1)
    assert measured.values["dependence"] == pytest.approx(1, abs=0.01)
    assert measured.values["sibling_distance"] == pytest.approx(0)


def test_a_template_with_a_random_ending_does_not():
    rng = np.random.default_rng(3)
    text = "I should move toward the goal so I will go"
    measured = report(
        one_turn_each([[f"{text} {rng.choice(NAMES)}" for _ in range(8)] for _ in range(8)])
    )
    assert measured.values["retrieval_p_value"] > 0.05
    assert measured.values["dependence"] < 0.1
    assert measured.values["template_frac"] > 0.8
    assert measured.template.text == f"{text} ___"
    assert measured.values["template_match_frac"] == 1


@pytest.mark.parametrize(
    ("groups", "key", "reason"),
    [
        ([], "retrieval_accuracy", "no trajectories"),
        ([["", " "], ["", "\n"]], "retrieval_accuracy", "reasoning that is not empty"),
        ([["a", "b"]], "retrieval_accuracy", "same prompt"),
        ([["a", "b"]], "template_frac", "same prompt"),
        ([["a"], ["b"]], "retrieval_accuracy", "one reasoning only"),
        ([["a"], ["b"]], "sibling_distance", "one reasoning only"),
        ([["a", "a"], ["b", "b"]], "dependence", "three reasonings"),
        ([["a"], ["b"]], "echo_frac", "two turns in a row"),
        ([["a"], ["b"]], "agreement_frac", "every action is the same"),
    ],
)
def test_what_the_sample_cannot_support_is_not_a_number(groups, key, reason):
    measured = report(one_turn_each(groups))
    assert math.isnan(measured.values[key])
    assert reason in measured.reasons[key]


def test_no_reasoning_spans_is_said():
    measured = report([episode(f"p{i % 2}", [text_turn(None)], index=i) for i in range(8)])
    assert measured.reasons["dependence"] == "no trajectory has a reasoning that is not empty"


def test_identical_prompts_in_several_groups_are_one_prompt():
    batch = RolloutBatch(
        groups=tuple(
            tuple(episode("same", [text_turn(f"text {p} {g}")], index=p * 4 + g) for g in range(4))
            for p in range(3)
        )
    )
    measured = report(batch)
    assert measured.values["num_prompts"] == 1
    assert math.isnan(measured.values["dependence"])


def test_the_sample_is_stratified_and_bounded():
    groups = [["text"] * size for size in (9, 8, 3, 8, 1)]
    drawn = draw(one_turn_each(groups), _rng())
    # M = 8 keeps three prompts (24 texts), M = 3 four of them (12).
    assert (drawn.num_prompts, drawn.num_siblings, len(drawn.reasonings)) == (3, 8, 24)
    drawn = draw(one_turn_each([["text"] * 9] * 12), _rng())
    assert (drawn.num_prompts, drawn.num_siblings) == (8, 8)


def test_two_siblings_are_preferred_to_many_prompts_of_one():
    drawn = draw(one_turn_each([["a"] * 2, ["b"] * 2, *[["c"]] * 20]), _rng())
    assert (drawn.num_prompts, drawn.num_siblings) == (2, 2)


def test_the_first_turn_of_each_episode_is_read():
    turns = [text_turn(f"turn {k}", index=k) for k in range(4)]
    episodes = [episode(f"p{i % 4}", turns, index=i) for i in range(32)]
    assert {r.turn for r in draw(episodes, _rng()).reasonings} == {0}


def test_equal_seeds_give_equal_reports():
    episodes = one_turn_each([[f"{name} {k}" for k in range(12)] for name in NAMES * 2])
    first, second = report(episodes), report(episodes)
    np.testing.assert_equal(dict(first.values), dict(second.values))  # NaN equals NaN
    assert first.exemplars == second.exemplars


def test_exemplars_point_at_the_text_that_shows_the_finding():
    loop = text_turn("why " + "!" * 40, observation="o", action="up")
    again = text_turn("so I go on and on up", index=1, observation="o", action="down")
    third = text_turn("so I go on and on up", index=2, observation="o", action="up")
    broken = text_turn("never", index=3, is_closed=False, action=None)
    trajectory = episode("p", [loop, again, third, broken])
    places = report([trajectory]).exemplars
    (exemplar,) = places["loop"]
    assert (exemplar.trajectory_id, exemplar.turn, exemplar.spans) == (trajectory.id, 0, ((4, 44),))
    assert places["echo"][0].turn == 2
    assert places["disagreement"][0].turn == 1
    assert places["malformed"][0].note == "the reasoning is never closed"


def test_what_is_stored_is_json_without_responses():
    measured = report(one_turn_each([[f"{name} \ud800 and so I will go on"] * 2 for name in NAMES]))
    record = measured.record(7)
    assert (record.step, record.kind) == (7, "text")
    payload = json.loads(record.payload)
    assert payload["template"]["text"] == measured.template.text
    exemplar = payload["exemplars"]["template"][0]
    assert exemplar["trajectory_id"] == measured.exemplars["template"][0].trajectory_id
    assert payload["reasons"] == dict(measured.reasons)


def test_template_exemplars_cover_the_common_words():
    episodes = one_turn_each([[f"{name} and so I will go on"] * 2 for name in NAMES])
    exemplar = report(episodes).exemplars["template"][0]
    ((start, end),) = exemplar.spans
    (text,) = [e.turns[0].response for e in episodes if e.id == exemplar.trajectory_id]
    assert text[start:end] == "and so I will go on"


def test_template_exemplars_are_equal_texts_of_different_prompts():
    """Siblings with the highest share prove nothing: three prompts with one text do."""
    same = "i am not sure so i try left"
    groups = [[f"{same} {name}", same] for name in NAMES[:4]]
    groups[0].insert(0, f"{same} again")
    places = report(one_turn_each(groups)).exemplars["template"]
    assert len({example.trajectory_id for example in places}) == 3
    episodes = {trajectory.id: trajectory for trajectory in one_turn_each(groups)}
    assert len({episodes[example.trajectory_id].prompt_key for example in places}) == 3
    replies = [
        (episodes[example.trajectory_id].turns[0].response, example.spans) for example in places
    ]
    assert [[text[start:end] for start, end in spans] for text, spans in replies] == [[same]] * 3


def test_what_is_marked_is_what_the_shown_reasonings_share():
    """Three of eight prompts share a text: too few for a template, and marked where it is shown."""
    common = "so i go on and on to the goal"
    rare = "then it may be that i turn around at the wall"
    groups = [[f"{name} {common} {rare if n < 3 else name}"] * 2 for n, name in enumerate(NAMES)]
    episodes = {trajectory.id: trajectory for trajectory in one_turn_each(groups)}
    places = report(list(episodes.values())).exemplars["template"]
    for example in places:
        ((start, end),) = example.spans
        text = episodes[example.trajectory_id].turns[0].response
        assert text[start:end] == f"{common} {rare}"


def test_broken_replies_are_shown_of_different_prompts():
    broken = text_turn("no", is_closed=False, action=None)
    episodes = [episode(f"p{n // 4}", [broken], index=n) for n in range(8)]
    places = report(episodes).exemplars["malformed"]
    assert [example.trajectory_id for example in places] == [episodes[0].id, episodes[4].id]


def test_the_guide_names_every_metric():
    guide = (Path(__file__).parents[4] / "docs" / "text.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"`{name}`" not in guide] == []


HOSTILE = [
    "a" * 100_000,
    "<think>" * 15_000,
    "ab " * 33_000,
    "!" * 50_000 + "?" * 50_000,
    "\x00\ud800\u202e" * 10_000,
    " " * 100_000,
    "(((((" * 20_000,
]


def test_hostile_text_is_measured_like_any_other():
    groups = [[text, text, text + "x"] for text in HOSTILE]
    measured = report(one_turn_each(groups))
    assert measured.values["num_prompts"] == len(HOSTILE) - 1  # blanks are no reasoning
    assert measured.values["loop_frac"] > 0.5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.text(max_size=30), min_size=1, max_size=4), max_size=4))
def test_any_text_gives_a_report(groups):
    measured = report(one_turn_each(groups))
    assert set(measured.values) == set(METRICS)
    assert {key for key, value in measured.values.items() if math.isnan(value)} == set(
        measured.reasons
    )
    for key in ("retrieval_accuracy", "template_frac", "sibling_distance"):
        value = measured.values[key]
        assert math.isnan(value) or -1e-9 <= value <= 1 + 1e-9


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)
