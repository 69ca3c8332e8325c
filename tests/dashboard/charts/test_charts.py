"""Curves, axes, marks and the figure that is made of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from alarm_events import alarm_event

from echoscope.dashboard.charts import charts, theme
from echoscope.dashboard.charts.compare import curves_spec
from echoscope.dashboard.charts.marks import (
    MARK_AXIS,
    Mark,
    MarkKind,
    alarm_marks,
    command_marks,
    rewind_marks,
)
from echoscope.dashboard.charts.parts import figure_text
from echoscope.dashboard.data.curves import Curve, curve, describe, step_axis
from echoscope.dashboard.live.cursor import checked_zoom, read_zoom
from echoscope.dashboard.live.figures import export_config
from echoscope.store.reader import CommandState
from echoscope.store.records import (
    Alarm,
    AlarmSeverity,
    AlarmState,
    Command,
    CommandAck,
    CommandAction,
    CommandOutcome,
)


def line_chart(*given: Any, **options: Any) -> go.Figure:
    """A chart as plotly checks it."""
    return go.Figure(charts.line_spec(*given, **options))


def table_of_steps(**columns: Any) -> pd.DataFrame:
    """Three steps, one a second apart, of 100 tokens each."""
    fields: dict[str, Any] = {
        "step": [1, 2, 3],
        "attempt": [1, 1, 1],
        "wall_time": [1000.0, 1001.0, 1002.0],
        "step_s": [1.0, 1.0, 1.0],
        "num_sampled_tokens": [100, 100, 100],
    }
    return pd.DataFrame(fields | columns)


def long_table(**values: list[float]) -> pd.DataFrame:
    """Each key over steps 1, 2, ...: columns step, key, value."""
    rows = [
        {"step": step, "key": key.replace("__", "/"), "value": value}
        for key, numbers in values.items()
        for step, value in enumerate(numbers, start=1)
    ]
    return pd.DataFrame(rows, columns=["step", "key", "value"])


def one_curve(values: list[float], **changes: Any) -> Curve:
    fields: dict[str, Any] = {
        "key": "policy/entropy",
        "name": "Policy entropy",
        "steps": np.arange(1, len(values) + 1),
        "values": np.array(values),
    }
    return Curve(**(fields | changes))


def mark(text: str = "said", **changes: Any) -> Mark:
    fields: dict[str, Any] = {
        "kind": MarkKind.ALARM,
        "step": 2.0,
        "text": text,
        "color": "#c62828",
        "symbol": "diamond",
    }
    return Mark(**(fields | changes))


def traces(figure: go.Figure, **having: Any) -> list[Any]:
    return [t for t in figure.data if all(getattr(t, k) == v for k, v in having.items())]


STEP_AXIS = step_axis(table_of_steps())


# Axes


def test_positions_by_step_by_time_and_by_tokens() -> None:
    steps = table_of_steps()
    assert step_axis(steps, "step").positions.tolist() == [1, 2, 3]
    assert step_axis(steps, "time").positions.tolist() == [1, 2, 3]
    assert step_axis(steps, "tokens").positions.tolist() == [100, 200, 300]


@pytest.mark.parametrize(
    ("last", "title", "position"),
    [(1100.0, "time (s)", 101), (1600.0, "time (min)", 601 / 60), (10_000.0, "time (h)", 2.50028)],
)
def test_time_is_told_in_a_unit_that_fits(last: float, title: str, position: float) -> None:
    axis = step_axis(table_of_steps(wall_time=[1000.0, 1001.0, last]), "time")
    assert axis.title == title
    assert axis.positions[-1] == pytest.approx(position, rel=1e-4)


def test_a_step_between_known_ones_lies_between_them() -> None:
    axis = step_axis(table_of_steps(), "tokens")
    assert axis.at([1.5, 9]).tolist() == [150, 300]


def test_an_empty_run_has_an_axis_too() -> None:
    axis = step_axis(table_of_steps().iloc[:0], "tokens")
    assert axis.at([3]).tolist() == [3]
    assert axis.clock([3]) == [""]


def test_the_clock_is_this_machine_s() -> None:
    assert STEP_AXIS.clock([2]) == [time.strftime("%H:%M:%S", time.localtime(1001.0))]


# Curves


def test_a_curve_has_the_interval_that_the_run_stored() -> None:
    data = long_table(a__x=[1.0, 2.0], a__x_low=[0.5, np.nan], a__x_high=[1.5, np.nan])
    drawn = curve(data, "a/x", has_interval=True)
    assert drawn.values.tolist() == [1.0, 2.0]
    assert drawn.low is not None
    assert drawn.high is not None
    assert (drawn.low[0], drawn.high[0]) == (0.5, 1.5)
    assert np.isnan(drawn.low[1])


def test_a_curve_without_a_stored_interval_has_none() -> None:
    assert curve(long_table(a__x=[1.0]), "a/x", has_interval=True).low is None


def test_a_metric_that_was_never_logged_is_an_empty_curve() -> None:
    assert len(curve(long_table(a__x=[1.0]), "b/y").steps) == 0


def test_a_chart_is_described_for_those_who_cannot_see_it() -> None:
    drawn = one_curve([0.5, 0.1, 0.3], unit="nats")
    expected = "Policy entropy: 0.3 nats at step 3, from 0.5 (lowest 0.1, highest 0.5)"
    assert describe([drawn]) == expected
    assert describe([]) == "nothing measured yet"


# Figures


def test_a_nan_breaks_the_line() -> None:
    figure = line_chart([one_curve([1.0, np.nan, 3.0])], STEP_AXIS)
    (line,) = traces(figure, name="Policy entropy")
    assert np.isnan(line.y[1])
    assert line.connectgaps is False


def test_smoothing_shows_the_raw_curve_faintly_behind() -> None:
    options = charts.LineOptions(smooth=0.5)
    figure = line_chart([one_curve([2.0, 4.0, 8.0])], STEP_AXIS, options=options)
    raw, line = figure.data
    assert list(raw.y) == [2.0, 4.0, 8.0]
    assert raw.opacity < 0.5
    assert list(line.y) == pytest.approx([2.0, 10 / 3, 6.0])
    assert line.customdata[:, 1].tolist() == [2.0, 4.0, 8.0]  # hovering tells both


def test_an_interval_is_one_band_for_each_stretch() -> None:
    nan = np.nan
    low, high = np.array([0.0, 1.0, nan, 3.0, 4.0]), np.array([2.0, 3.0, nan, 5.0, 6.0])
    drawn = one_curve([1.0, 2.0, nan, 4.0, 5.0], low=low, high=high)
    (band,) = traces(line_chart([drawn], STEP_AXIS), fill="toself")
    assert np.nan_to_num(band.y, nan=-1).tolist() == [0, 1, 3, 2, -1, 3, 4, 6, 5, -1]
    assert np.nan_to_num(band.x, nan=-1).tolist() == [1, 2, 2, 1, -1, 4, 5, 5, 4, -1]


def test_a_logarithmic_scale_has_gaps_where_there_is_no_logarithm() -> None:
    options = charts.LineOptions(log_y=True)
    figure = line_chart([one_curve([0.0, 1.0, 10.0])], STEP_AXIS, options=options)
    assert figure.layout.yaxis.type == "log"
    assert np.isnan(figure.data[0].y[0])


def test_shares_are_percentages_and_other_units_are_named() -> None:
    share = line_chart([one_curve([0.5], unit="share")], STEP_AXIS, title="Success")
    assert share.layout.yaxis.tickformat == ".2~%"
    nats = line_chart([one_curve([0.5], unit="nats")], STEP_AXIS, title="Entropy")
    assert "nats" in nats.layout.annotations[0].text


def test_hovering_is_one_line_a_curve() -> None:
    """Time, value and interval; the title's help has the key."""
    drawn = one_curve([0.5], low=np.array([0.4]), high=np.array([0.6]))
    line = line_chart([drawn], STEP_AXIS).data[-1]
    for part in ("%{y:", "%{text}", "%{customdata[2]:"):
        assert part in line.hovertemplate
    assert "<br>" not in line.hovertemplate
    titled = line_chart([drawn], STEP_AXIS, title="Entropy")
    assert "policy/entropy" in titled.layout.annotations[0].hovertext
    assert export_config("x")["modeBarButtons"] == [["toImage"]]  # more cover the title
    assert list(line.text) == STEP_AXIS.clock([1])
    assert line.customdata.tolist() == [[1.0, 0.5, 0.4, 0.6]]


def test_a_long_curve_is_drawn_as_means_in_the_range_of_its_steps() -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    figure = line_chart([one_curve(values.tolist())], step_axis(table_of_steps()))
    band, line = figure.data
    assert len(line.y) == charts.MAX_POINTS // 2
    assert (line.y[0], line.y[-1]) == (values[0], values[-1])
    assert np.abs(line.y[1:-1]).max() < 0.5
    assert (np.nanmin(band.y), np.nanmax(band.y)) == (values.min(), values.max())


def test_zooming_into_a_long_curve_shows_each_of_its_steps() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    options = charts.LineOptions(zoom=(500.0, 600.0))
    axis = step_axis(table_of_steps())
    (line,) = line_chart([one_curve(values.tolist())], axis, options=options).data
    assert line.x[1:-1].tolist() == list(range(500, 601))  # and one on each side
    np.testing.assert_array_equal(line.y, values[498:601])


def spiky() -> Curve:
    values = np.random.default_rng(1).normal(1.0, 0.1, 300)
    values[40], values[200] = 250.0, 90.0
    return one_curve(values.tolist(), key="optim/grad_norm")


def test_a_spike_is_cut_off_and_an_arrow_says_how_far_it_goes() -> None:
    figure = line_chart([spiky()], STEP_AXIS)
    assert figure.layout.yaxis.range[1] < 2.0
    (arrows,) = traces(figure, name="outside")
    assert arrows.x.tolist() == [41, 201]
    assert arrows.marker.symbol == "arrow-up"
    assert list(arrows.text) == ["250", ""]  # the furthest; the others say it under the mouse
    assert "90 at step 201" in arrows.hovertext[1]
    (line,) = traces(figure, mode="lines")
    assert line.y.max() == 250.0  # it still leads there


def test_a_chart_without_outliers_has_no_arrows() -> None:
    assert not traces(line_chart([one_curve([1.0, 2.0, 4.0])], STEP_AXIS), name="outside")


def names_at_ends(figure: go.Figure) -> dict[str, Any]:
    return {a.text: a for a in figure.layout.annotations if a.x == 1 and a.xref == "paper"}


def test_few_curves_are_named_at_their_ends_in_their_colours() -> None:
    curves = [one_curve([1.0, 2.0], name="up"), one_curve([2.0, 1.0], name="down", color="#d55e00")]
    figure = line_chart(curves, STEP_AXIS)
    labels = names_at_ends(figure)
    assert {text: (a.y, a.font.color) for text, a in labels.items()} == {
        "<b>up</b>": (2.0, curves[0].color),
        "<b>down</b>": (1.0, "#d55e00"),
    }
    assert not figure.layout.showlegend
    assert figure.layout.margin.r > line_chart(curves[:1], STEP_AXIS).layout.margin.l / 2


def test_names_of_curves_that_end_together_do_not_lie_on_each_other() -> None:
    curves = [one_curve([float(n), 3.0], name=f"curve {n}") for n in range(3)]
    shifts = [a.yshift for a in names_at_ends(line_chart(curves, STEP_AXIS)).values()]
    assert np.diff(sorted(shifts)).min() >= 12


def test_without_a_value_the_chart_says_what_is_missing() -> None:
    figure = line_chart(
        [one_curve([np.nan])],
        STEP_AXIS,
        [mark()],
        charts.LineOptions(onset=(1, 2)),
    )
    assert "No value was measured." in [note.text for note in figure.layout.annotations]
    assert not figure.data
    assert not figure.layout.shapes


def test_zooming_in_shows_what_lies_there_at_full_height() -> None:
    options = charts.LineOptions(zoom=(1.5, 3.5))
    layout = line_chart([one_curve([90.0, 1.0, 2.0, 70.0])], STEP_AXIS, options=options).layout
    assert layout.xaxis.range == (1.5, 3.5)
    assert layout.yaxis.range == pytest.approx((0.95, 2.05))


@pytest.mark.parametrize(
    ("sent", "zoom"),
    [
        ([1, 2.5], (1.0, 2.5)),
        (None, None),
        ([2, 1], None),
        ([1], None),
        (["a", "b"], None),
        ([float("nan"), 1], None),
        ([0, float("inf")], None),
        ({"a": 1, "b": 2}, None),
    ],
)
def test_a_zoom_from_the_browser_is_two_numbers_or_nothing(sent: object, zoom: object) -> None:
    assert checked_zoom(sent) == zoom


@pytest.mark.parametrize(
    ("text", "zoom"),
    [
        ("1,2.5", (1.0, 2.5)),
        ("-3,1e4", (-3.0, 10_000.0)),
        ("", None),
        ("2,1", None),
        ("nan,1", None),
        ("0,inf", None),
        ("1,2,3", None),
        ("<b>,2", None),
        ("1" * 200 + ",2", None),
    ],
)
def test_a_zoom_in_the_address_is_a_range_or_nothing(text: str, zoom: object) -> None:
    assert read_zoom(text) == zoom


def test_the_toolbar_saves_svg_under_a_harmless_name() -> None:
    image = export_config("../../x y\n<b>")["toImageButtonOptions"]
    assert image == {"format": "svg", "filename": ".._.._x_y_b_"}


# Hostile text


@pytest.mark.parametrize(
    ("text", "drawn_text"),
    [
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ('<a href="javascript:x">', '&lt;a href="javascript:x"&gt;'),
        ("%{customdata[0]}", "% {customdata[0]}"),
        ("$x^2$", "&#36;x^2&#36;"),
        ("a\x1b[31m\u202eb", "a[ESC][31m[RIGHT-TO-LEFT OVERRIDE]b"),
        ("a\nb", "a b"),
        ("", ""),
    ],
)
def test_foreign_text_does_nothing_in_a_figure(text: str, drawn_text: str) -> None:
    assert figure_text(text) == drawn_text


def test_long_foreign_text_is_cut_and_broken_into_lines() -> None:
    cut = figure_text("ab " * 10_000, width=20, limit=100)
    assert len(cut) < 200
    assert cut.count("<br>") >= 4
    assert cut.endswith("...")


def test_hostile_keys_names_and_marks_stay_text() -> None:
    evil = "<img src=x onerror=alert(1)>%{z}"
    drawn = one_curve([1.0], key=evil, name=evil, unit=evil)
    figure = line_chart([drawn], STEP_AXIS, [mark(evil)], title=evil, help=evil)
    assert "<img" not in figure.to_json()
    assert "%{z}" not in figure.to_json()


# Marks


def alarm(state: AlarmState, severity: AlarmSeverity = AlarmSeverity.WARNING) -> Alarm:
    return alarm_event(
        "a",
        7,
        severity,
        rule="ECHO_TRAP",
        state=state,
        onset_step=5,
        value=1.0,
        threshold=2.0,
        window=5,
        message="reward std fell",
    )


def test_severity_shows_in_shape_and_colour_and_an_end_is_open() -> None:
    marks = alarm_marks(
        [alarm(AlarmState.RAISED, severity) for severity in AlarmSeverity]
        + [alarm(AlarmState.CLEARED)]
    )
    assert [m.symbol for m in marks] == ["circle", "triangle-up", "diamond", "triangle-up-open"]
    assert len({m.color for m in marks}) == 3
    assert marks[1].text == "warning, raised after step 7: reward std fell"


def answered(outcome: CommandOutcome = CommandOutcome.APPLIED, **changes: Any) -> CommandState:
    fields: dict[str, Any] = {
        "command_id": "c",
        "run_id": "r",
        "issued_at": 1.0,
        "issued_by": "ann",
        "action": CommandAction.SET,
        "settings": {"optim.lr": 1e-4},
        "reason": "too slow",
    }
    ack = CommandAck(command_id="c", step=4, outcome=outcome, detail="optim.lr 0.1 -> 0.0001")
    return CommandState(command=Command(**(fields | changes)), ack=ack, attempt=1)


def test_a_command_says_who_what_and_why() -> None:
    (sign,) = command_marks([answered()])
    assert (sign.step, sign.symbol) == (3, "square")  # step 4 is the first that it holds for
    assert sign.text == (
        "ann: set optim.lr = 0.0001 because: too slow "
        "(applied after step 3: optim.lr 0.1 -> 0.0001)"
    )


def test_a_refused_command_is_an_open_square_and_a_pending_one_has_no_place_yet() -> None:
    (refused,) = command_marks([answered(CommandOutcome.REJECTED, issued_by="", reason="")])
    assert refused.symbol == "square-open"
    assert refused.text.startswith("somebody: set optim.lr = 0.0001 (rejected after step 3")
    pending = CommandState(command=answered().command, ack=None)
    assert command_marks([pending]) == []


def test_an_alarm_its_pause_and_a_checkpoint_name_the_same_step() -> None:
    """What is raised after step 37 is answered at the boundary before step 38."""
    (raised,) = alarm_marks([replace(alarm(AlarmState.RAISED), step=37)])
    pause = answered(issued_by="alarm ECHO_TRAP", action=CommandAction.PAUSE, settings={})
    assert pause.ack is not None
    (paused,) = command_marks([replace(pause, ack=replace(pause.ack, step=38, detail="paused"))])
    assert raised.step == paused.step == 37
    assert "raised after step 37" in raised.text
    assert paused.text.endswith("(applied after step 37: paused)")


def test_commands_at_one_step_are_one_mark_that_names_them_all() -> None:
    texts = ["alarm: pause", "root: checkpoint", "judge: set", "root: resume"]
    marks = [mark(text, kind=MarkKind.COMMAND, symbol="square", step=2.0) for text in texts]
    marks.append(mark("<b>later</b>", kind=MarkKind.COMMAND, symbol="square-open", step=3.0))
    figure = line_chart([one_curve([5.0, 6.0, 7.0])], STEP_AXIS, marks)
    (sign,) = traces(figure, yaxis=MARK_AXIS, mode="markers")
    assert list(sign.text) == ["<br>".join(texts), "&lt;b&gt;later&lt;/b&gt;"]
    assert list(sign.x) == [2.0, 3.0]


def test_of_many_at_one_step_the_first_are_named_and_the_worst_gives_the_sign() -> None:
    marks = [mark(f"alarm {n}", symbol="triangle-up-open") for n in range(11)]
    marks.append(mark("worst", symbol="diamond"))
    (sign,) = traces(line_chart([one_curve([5.0, 6.0, 7.0])], STEP_AXIS, marks), yaxis=MARK_AXIS)
    assert sign.text[0].endswith("alarm 7<br>and 4 more")
    assert list(sign.marker.symbol) == ["diamond"]


@pytest.mark.parametrize(
    ("key", "steps", "is_sparse"),
    [
        ("eval/all/success_rate", [1, 2, 3], True),  # fixed tasks, however often
        ("probe/all/success_rate", [0, 5], True),
        ("gradient/policy/all/norm", [25, 50, 75], True),
        ("text/dependence", [1, 4], True),
        ("policy/entropy", [1, 2, 4, 5], False),
        ("policy/entropy", [7], False),
        ("policy/entropy", list(range(0, 100_000, 50)), False),  # thinned: a line by now
    ],
)
def test_which_curves_are_points(key: str, steps: list[int], is_sparse: bool) -> None:
    drawn = one_curve([0.5] * len(steps), key=key, steps=np.array(steps))
    assert drawn.is_sparse is is_sparse


@pytest.mark.parametrize("smooth", [0.0, 0.5, 0.9])
def test_evaluations_are_drawn_where_they_were_whatever_the_smoothing(smooth: float) -> None:
    true = np.array([0.35, 0.815, 0.574])
    drawn = one_curve(
        true.tolist(),
        key="eval/all/success_rate",
        steps=np.array([0, 20, 40]),
        low=true - 0.06,
        high=true + 0.05,
    )
    figure = line_chart([drawn], STEP_AXIS, options=charts.LineOptions(smooth=smooth))
    (dots,) = figure.data
    assert (dots.mode, dots.fill) == ("markers", None)
    np.testing.assert_array_equal(dots.y, true)
    np.testing.assert_allclose(dots.error_y.array, 0.05)
    np.testing.assert_allclose(dots.error_y.arrayminus, 0.06)
    assert "smoothing" not in dots.hovertemplate


def test_rounding_errors_do_not_fill_a_chart() -> None:
    noise = one_curve([1e-14, -3e-14, 2e-14], key="policy/mismatch_kl")
    assert line_chart([noise], STEP_AXIS).layout.yaxis.range == (-1e-4, 1e-4)
    small = one_curve([1e-14, -3e-14, 2e-14], key="optim/lr")
    assert line_chart([small], STEP_AXIS).layout.yaxis.range[1] < 1e-12


def test_a_long_name_stands_in_a_legend_and_the_name_of_the_metric_nowhere() -> None:
    part = one_curve([1.0, 2.0], key="optim/grad_norm", name="whole gradient, all terms")
    assert line_chart([part], STEP_AXIS).layout.showlegend
    alone = line_chart([one_curve([1.0, 2.0])], STEP_AXIS)
    assert not alone.layout.showlegend
    assert not names_at_ends(alone)


def test_a_legend_that_takes_several_rows_leaves_them_free_below_the_title() -> None:
    """Seen in Chromium at 1,280 pixels: each name gets the room of the widest."""
    names = ("all solved", "all failed", "with signal: rewards differ")
    three = [one_curve([1.0, 2.0], name=name) for name in names]
    assert line_chart(three, STEP_AXIS).layout.margin.t == theme.TITLE_ROW_PX + 3 * 20
    assert line_chart(three[1:], STEP_AXIS).layout.margin.t == theme.TITLE_ROW_PX + 2 * 20


def test_a_legend_says_from_which_width_on_it_takes_fewer_rows() -> None:
    """Of five names two fit beside each other on a telephone, and all five in a wide chart."""
    names = ("all terms", "policy", "entropy", "KL", "value")
    five = [one_curve([1.0, 2.0], name=name) for name in names]
    layout = line_chart(five, STEP_AXIS, title="Norm").layout
    assert layout.margin.t == theme.TITLE_ROW_PX + 3 * 20
    widths = [48 + 6 * len(name) for name in names]
    assert layout.meta["legend"] == {"row": 20, "wide": [sum(widths), 3 * max(widths)]}
    (alone,) = [one_curve([1.0, 2.0], name="a name as long as a telephone is wide, and then more")]
    assert line_chart([alone], STEP_AXIS, title="T").layout.meta["legend"]["wide"] == []


def test_a_resumed_run_is_marked_where_the_new_attempt_begins() -> None:
    (sign,) = rewind_marks(table_of_steps(attempt=[1, 2, 2]))
    assert (sign.step, sign.kind) == (2.0, MarkKind.REWIND)
    assert "attempt 2" in sign.text


def test_marks_lie_on_an_axis_of_their_own_and_commands_have_lines() -> None:
    marks = [mark("why", kind=MarkKind.COMMAND, step=2.0)]
    figure = line_chart([one_curve([5.0, 6.0, 7.0])], STEP_AXIS, marks)
    line, sign = traces(figure, yaxis=MARK_AXIS)
    assert np.nan_to_num(line.x, nan=-1).tolist() == [2, 2, -1]
    assert np.nan_to_num(line.y, nan=-1).tolist() == [0, 1, -1]
    assert list(sign.text) == ["why"]


def test_the_onset_is_a_stretch_behind_the_curves() -> None:
    steps = pd.DataFrame({"step": [1, 2, 3], "wall_time": [0.0, 1.0, 2.0], "step_s": [1.0] * 3})
    spec = charts.line_spec(
        [one_curve([1.0, 2.0, 3.0])],
        step_axis(steps),
        options=charts.LineOptions(onset=(2, 3)),
    )
    (stretch,) = spec["layout"]["shapes"]
    assert (stretch["x0"], stretch["x1"], stretch["layer"]) == (2.0, 3.0, "below")


def test_a_chart_whose_curves_are_still_read_does_not_say_that_nothing_was_measured() -> None:
    looks = {"title": "Success", "help": "", "height": 300}
    assert charts.NOTHING in str(curves_spec([], **looks))
    assert charts.NOTHING not in str(curves_spec([], **looks, is_complete=False))


@pytest.mark.parametrize("num_curves", [2, 12])
def test_hovering_over_curves_of_many_runs_says_no_time_of_day(num_curves: int) -> None:
    """Runs have a step in common, no clock. A box of one curve alone says the step itself."""
    spec = curves_spec([one_curve([0.5])] * num_curves, title="", help="", height=200)
    templates = [trace["hovertemplate"] for trace in spec["data"] if "customdata" in trace]
    assert len(templates) == num_curves
    assert "%{text}" not in str(templates)
    assert [", step %{customdata[0]:d}" in text for text in templates] == [
        num_curves > 8
    ] * num_curves
