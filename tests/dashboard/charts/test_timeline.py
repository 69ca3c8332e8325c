"""What was set and when: which settings stand on the line, with which values over which steps."""

from __future__ import annotations

from dataclasses import replace

from echoscope.dashboard.charts.marks import Mark, MarkKind
from echoscope.dashboard.charts.timeline import MAX_SETTINGS, settings_held, timeline
from echoscope.diagnostics.judge.advice.actions import Action
from echoscope.diagnostics.judge.advice.situation import SettingsChange, Situation
from echoscope.diagnostics.judge.verdict import Diagnosis

CONFIG = {
    "optim": {"lr": 3e-4},
    "envs": {"train": [{"params": {"slip": 0.9}}]},
    "recipe": {"name": "healthy", "values": {"envs.train.0.params.slip": 0}},
}
CHANGES = (
    SettingsChange(step=10, values={"optim.lr": (3e-4, 5e-4)}),
    SettingsChange(step=20, values={"optim.lr": (5e-4, 1e-4)}),
)
SITUATION = Situation(kind="ended", config=CONFIG, changes=CHANGES)


def held(situation: Situation) -> dict[str, list[tuple[int, int, str, bool]]]:
    values_held = settings_held(situation, None, 40)
    return {
        key: [(value.first, value.last, value.text, value.is_changed) for value in values]
        for key, values in values_held.items()
    }


def test_changed_settings_come_first_then_what_the_recipe_has_otherwise() -> None:
    assert held(SITUATION) == {
        "optim.lr": [
            (0, 10, "0.0003", False),
            (10, 20, "0.0005", True),
            (20, 40, "0.0001", True),
        ],
        "envs.train.0.params.slip": [(0, 40, "0.9 (healthy has 0)", True)],
    }


def test_what_advice_would_change_stands_on_the_line_as_it_is() -> None:
    action = Action(text="Lower it.", settings={"optim.lr": 1e-5})
    verdict = replace(Diagnosis().verdict(), actions=(action,))
    values_held = settings_held(Situation(kind="ended", config=CONFIG), verdict, 40)
    assert values_held["optim.lr"][0].text == "0.0003"


def test_a_run_of_another_trainer_has_the_marks_alone() -> None:
    mark = Mark(kind=MarkKind.ALARM, step=3, text="<b>fell</b>", color="red", symbol="diamond")
    assert timeline({}, [], None, 40) is None
    figure = timeline({}, [mark], None, 40)
    assert figure is not None
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["Alarms"]
    assert figure["data"][0]["text"] == ["&lt;b&gt;fell&lt;/b&gt;"]


def test_the_line_has_a_bound() -> None:
    many = {f"a.{n}": (0, 1) for n in range(50)}
    situation = Situation(kind="ended", changes=(SettingsChange(step=5, values=many),))
    assert len(settings_held(situation, None, 9)) == MAX_SETTINGS


def test_the_onset_is_shaded_over_all_rows() -> None:
    verdict = replace(Diagnosis().verdict(), onset_step=12, onset_interval=(10, 14))
    figure = timeline(settings_held(SITUATION, None, 40), [], verdict, 40)
    assert figure is not None
    (shape,) = figure["layout"]["shapes"]
    assert (shape["x0"], shape["x1"], shape["yref"]) == (10, 14, "paper")
