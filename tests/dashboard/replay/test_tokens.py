"""Tokens and their numbers as colours; regions of a response; all of it escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import make_trajectory

from echoscope.dashboard.replay.heat import (
    HEATS,
    LEVELS,
    HeatScale,
    available,
    scale_of,
    trajectory_scale,
)
from echoscope.dashboard.replay.tokens import heat_html, legend_html, text_html
from echoscope.store.records import Trajectory, TrajectoryOutcome, Turn

RESPONSE = "go<b></think><answer>up</answer>"
PIECES = ["go", "<b>", "</think>", "<answer>", "up", "</answer>", "<|end|>"]


def a_turn(response: str = RESPONSE, **fields: object) -> Turn:
    size = len(PIECES)
    defaults = {
        "prompt_tokens": np.array([1]),
        "response_tokens": np.arange(size),
        "logprobs": np.full(size, -1.0),
        "entropies": np.zeros(size),
        "reasoning_chars": (0, 5),
        "answer_chars": (21, 23),
    }
    return Turn(index=0, observation="", response=response, **(defaults | fields))


def an_outcome(**arrays: list[float]) -> TrajectoryOutcome:
    given = {name: (np.array(values, dtype=np.float32),) for name, values in arrays.items()}
    return TrajectoryOutcome(trajectory_id="t00000000-00000", advantage=1.0, kept=True, **given)


def a_trajectory(*turns: Turn) -> Trajectory:
    return make_trajectory(*turns, step=0, env_id="e", tag="t", prompt_key="k")


def parse(html: str) -> ET.Element:
    root = ET.fromstring(f"<root>{html.replace('&ge;', '>=').replace('&le;', '&#60;=')}</root>")
    for element in root.iter():
        assert element.tag in ("root", "div", "span", "b")
        assert set(element.attrib) <= {"class", "title", "dir"}
    return root


class TestNumbers:
    def test_the_ratio_is_the_exponent_of_the_gap_between_trainer_and_sampler(self) -> None:
        outcome = an_outcome(trainer_logprobs=[-1.0, -0.5, -200.0, -1, -1, -1, -1])
        ratios = HEATS["ratio"].read(a_turn(), outcome)
        assert ratios is not None
        np.testing.assert_allclose(ratios[:2], [1.0, np.exp(0.5)], rtol=1e-6)
        assert 0 < ratios[2] < 1e-20

    def test_the_reference_gap_prefers_the_trainers_log_probs(self) -> None:
        turn = a_turn()
        ours = an_outcome(ref_logprobs=[-3.0] * 7)
        both = an_outcome(ref_logprobs=[-3.0] * 7, trainer_logprobs=[-2.0] * 7)
        np.testing.assert_allclose(HEATS["reference"].read(turn, ours), 2.0)
        np.testing.assert_allclose(HEATS["reference"].read(turn, both), 1.0)

    def test_what_does_not_align_with_the_tokens_is_absent(self) -> None:
        assert HEATS["advantage"].read(a_turn(), None) is None
        assert HEATS["advantage"].read(a_turn(), an_outcome(advantages=[1.0])) is None
        without = a_turn(prompt_tokens=None, response_tokens=None, logprobs=None, entropies=None)
        assert HEATS["logprob"].read(without, None) is None
        assert available(a_trajectory(without), None) == []

    def test_available_names_what_some_turn_has(self) -> None:
        heats = available(a_trajectory(a_turn()), an_outcome(information=[0.0] * 7))
        assert heats == ["logprob", "entropy", "information"]


class TestScale:
    def test_the_scale_ends_near_the_largest_value_at_a_round_number(self) -> None:
        scale = scale_of(HEATS["advantage"], [np.array([-0.5, 0.0, 3.7])])
        assert (scale.reach, scale.has_below, scale.has_above) == (4.0, True, True)

    def test_one_outlier_of_a_hundred_does_not_wash_out_the_rest(self) -> None:
        values = np.array([1.0] * 199 + [1000.0])
        assert scale_of(HEATS["advantage"], [values]).reach == 1.0

    def test_rounding_errors_are_no_finding(self) -> None:
        scale = scale_of(HEATS["ratio"], [np.array([1.0, 1.0 + 1e-6])])
        assert scale.levels(np.array([1.0 + 1e-6])).tolist() == [0]

    def test_levels_go_from_far_below_to_far_above(self) -> None:
        scale = HeatScale(neutral=0.0, reach=10.0, has_below=True, has_above=True)
        values = np.array([-np.inf, -10.0, -2.0, 0.0, np.nan, 0.9, 1.1, 99.0])
        assert scale.levels(values).tolist() == [-LEVELS, -LEVELS, -1, 0, 0, 0, 1, LEVELS]

    def test_nothing_measured_has_a_scale_all_the_same(self) -> None:
        assert scale_of(HEATS["advantage"], [None, np.array([np.nan])]).reach == 0.01

    def test_a_colour_means_the_same_in_a_collapsed_and_a_healthy_run(self) -> None:
        # Words of a healthy run carry 0.6 nats and more; a collapsed run has noise.
        healthy, collapsed = np.array([0.62, 1.4, 0.0]), np.array([0.05, 0.03, -0.04])
        heat = HEATS["information"]
        assert scale_of(heat, [healthy]).reach == scale_of(heat, [collapsed]).reach == 1.0
        assert scale_of(heat, [collapsed]).levels(collapsed).tolist() == [0, 0, 0]
        assert scale_of(heat, [healthy]).levels(healthy).tolist() == [3, 5, 0]


class TestHeat:
    def draw(self, pieces: list[str] | None, **where: int) -> str:
        turn, heat = a_turn(entropies=[0, 1, 2, 0, 0, 0, np.nan]), HEATS["entropy"]
        values = heat.read(turn, None)
        assert values is not None
        scale = trajectory_scale(heat, a_trajectory(turn), None)
        return heat_html(turn, heat, values, scale, pieces=pieces, **where)

    def test_each_token_has_its_colour_its_number_and_its_region(self) -> None:
        tokens = parse(self.draw(PIECES)).findall(".//span[@title]")
        assert [t.text for t in tokens] == PIECES
        assert [t.attrib["class"].split() for t in tokens[:3]] == [
            ["es-t"],
            ["es-t", "es-p2"],  # 1 of 2 nats: between the second and the third of five steps
            ["es-t", "es-p5", "es-outside"],
        ]
        assert tokens[4].attrib["class"].split() == ["es-t", "es-answer"]
        assert tokens[2].attrib["title"] == "token 2: 2 nats"
        assert tokens[6].attrib["title"] == "token 6: not measured"

    def test_without_a_tokenizer_it_is_a_strip_of_cells(self) -> None:
        cells = parse(self.draw(None)).findall(".//span")
        assert len(cells) == 7
        assert {cell.text for cell in cells} == {None}

    def test_the_first_tokens_are_shown_and_the_rest_is_counted(self) -> None:
        html = self.draw(PIECES[:3], size=3)
        assert "token 2:" in html
        assert "token 3:" not in html
        assert "the first 3 tokens of 7" in html

    def test_a_character_of_several_tokens_stands_in_the_last_of_them(self) -> None:
        html = self.draw(["", "\u00e9", *PIECES[2:]])
        assert "part of the next character" in html

    def test_newlines_are_seen_and_kept(self) -> None:
        assert "&#8629;</span>\n" in self.draw(["a\n", *PIECES[1:]])

    def test_the_legend_has_numbers_and_a_meaning(self) -> None:
        scale = HeatScale(neutral=0.0, reach=2.0, has_below=True, has_above=True)
        root = parse(legend_html(HEATS["advantage"], scale))
        keys = [key.text for key in root.findall(".//span[@class]") if "es-key" in key.get("class")]
        assert keys[0] == "<=-2"
        assert keys[5] == "0"
        assert keys[-1] == ">=2"


class TestText:
    def test_reasoning_and_answer_are_marked_and_their_tags_left_out(self) -> None:
        root = parse(text_html(a_turn()))
        spans = {span.get("class"): span.text for span in root.findall(".//span")}
        assert spans["es-reasoning"] == "go<b>"
        assert spans["es-answer"] == "up"
        assert "es-tag" not in spans

    def test_tags_beside_other_words_stay(self) -> None:
        """Whoever looks for a broken format must see them."""
        root = parse(text_html(a_turn(response=f"{RESPONSE} so</answer>")))
        (tag,) = root.findall(".//span[@class='es-tag']")
        assert tag.text == "</answer>"
        only_tags = a_turn(response="</think>", reasoning_chars=None, answer_chars=None)
        assert "</think>" in "".join(parse(text_html(only_tags)).itertext())

    def test_words_after_the_reasoning_are_the_reply_where_no_answer_is_marked(self) -> None:
        turn = a_turn(response="hm</think>\n\nIt is 4.", reasoning_chars=(0, 2), answer_chars=None)
        spans = parse(text_html(turn)).findall(".//span")
        assert [span.text for span in spans] == ["reasoning", "hm", "reply", "It is 4."]

    def test_fenced_code_has_letters_of_one_width(self) -> None:
        text = "So:\n```python\nx = '<b>'\n```\nDone. ```open"
        turn = a_turn(response=text, reasoning_chars=(0, len(text)), answer_chars=None)
        (code,) = parse(text_html(turn)).findall(".//span[@class='es-code']")
        assert code.text == "```python\nx = '<b>'\n```"

    @pytest.mark.parametrize("region", ["outside", "reasoning", "answer"])
    def test_markup_is_text_in_every_region(self, region: str) -> None:
        text = "<script>1</script>&lt;"
        spans = {
            f"{name}_chars": (0, len(text)) if name == region else None
            for name in ("reasoning", "answer")
        }
        root = parse(text_html(a_turn(response=text, **spans), hits=["script"]))
        (span,) = root.findall(f".//span[@class='es-{region}']") or root.findall("./div")
        assert "".join(span.itertext()) == text

    def test_a_long_response_is_cut_and_says_the_rest(self) -> None:
        assert "25 more characters are not shown" in text_html(a_turn(), size=7)

    def test_overlapping_spans_of_a_broken_file_show_nothing_twice(self) -> None:
        turn = a_turn(response="abcdef", reasoning_chars=(0, 4), answer_chars=(2, 6))
        text = re.sub(r"<span class=\"es-name\">.*?</span>|<[^>]*>", "", text_html(turn))
        assert text == "abcdef"

    def test_an_empty_response_says_so(self) -> None:
        turn = a_turn(response="", reasoning_chars=None, answer_chars=None)
        assert "empty response" in text_html(turn)


@given(
    pieces=st.lists(
        st.text(alphabet=st.characters(codec=None), max_size=8), min_size=7, max_size=7
    ),
    values=st.lists(st.floats(width=32), min_size=7, max_size=7),
)
def test_any_pieces_and_any_numbers_make_well_formed_html(
    pieces: list[str], values: list[float]
) -> None:
    heat, turn = HEATS["advantage"], a_turn()
    array = np.array(values, dtype=np.float64)
    root = parse(heat_html(turn, heat, array, scale_of(heat, [array]), pieces=pieces))
    assert len(root.findall(".//span[@title]")) >= 7
    parse(legend_html(heat, scale_of(heat, [array])))


@given(st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P", "S"])))
def test_all_of_a_response_is_shown_as_it_is(text: str) -> None:
    html = text_html(a_turn(response=text, reasoning_chars=(0, len(text) // 2), answer_chars=None))
    plain_text = unescape(re.sub(r"<span class=\"es-name\">.*?</span>|<[^>]*>", "", html))
    assert plain_text == (text or "empty response")
