"""Runs in a store whose truth is known at every step, and what a page has to say of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from made_run import CONFIG, open_writer, step_metrics

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.recorder.recorder import Recorder
from echoscope.store.records import CommandAck, CommandAction, CommandOutcome, SettingsRecord
from echoscope.store.steer.commands import new_command
from echoscope.store.writer import RunWriter

SUCCESS, RETURN = "rollout/success_rate", "reward/return_mean"
EPISODES, STEPS = 64, 60
Curve = Callable[[int], float]
Signal = Callable[[int, np.random.Generator], float | None]
"""The number that is logged at a step; None where none is."""
Order = tuple[int, CommandAction, Mapping[str, float]]
"""The first step that trains after it, what was asked for, and settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A run, and the words that are true of it: patterns of regular expressions."""

    signals: Mapping[str, Signal]
    state: RunState
    colour: str
    """Of the banner."""
    says: str
    """How the first line of the banner begins."""
    tile: str
    """The words of the tile on how its number has changed."""
    never: str
    """What no page of the run may have."""
    to_do: str = ""
    """In the last line of the banner."""
    why: str = ""
    """On the page Diagnosis, where the cause is told; empty where no cause is to be checked."""
    key: str = SUCCESS
    """The metric of the tile."""
    steps: int = STEPS
    config: Mapping[str, Any] | None = None
    """Of a run that Echoscope trained; None: another trainer records it."""
    orders: Sequence[Order] = ()
    """What was asked of a run that Echoscope trained, and done."""
    end: str = "finished"
    """`finished`; `killed`: its process dies without a word; `open`: it is still written."""
    recording: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the recorder."""


def won(rate: Curve, episodes: int = EPISODES, every: int = 1) -> Signal:
    """The share of episodes that succeeded, where each does with a known probability."""
    return lambda step, rng: None if step % every else rng.binomial(episodes, rate(step)) / episodes


def near(curve: Curve, spread: float = 0.0, every: int = 1) -> Signal:
    """A number that scatters around a known curve."""
    return lambda step, rng: None if step % every else curve(step) + spread * rng.standard_normal()


def around(value: float, spread: float = 0.0) -> Signal:
    return near(lambda step: value, spread)


def ramp(start: float, end: float, first: int = 1, last: int = STEPS) -> Curve:
    """Level, then straight from one value to another, then level."""
    return lambda step: float(np.interp(step, [first, last], [start, end]))


def jump(before: float, after: float, first: int) -> Curve:
    """One value, and another from a step on."""
    return lambda step: before if step < first else after


STEADY: Mapping[str, Signal] = {
    "rollout/num_episodes": around(EPISODES),
    "policy/entropy": around(1.0, 0.02),
    "rollout/action_valid_frac": around(0.95, 0.002),
    "optim/grad_norm": around(0.5, 0.02),
}
"""What stays as it is, beside what moves."""
FAST = (1, 1, 9, 12, 10, 11, 18, 18, 17, 21)
"""Of 24 episodes of each step: from 4 to 87.5 %."""
TRAINED = {**CONFIG, "steps": STEPS, "optim": {"lr": 3e-4}}
HEALTHY, WATCH, COLLAPSED = RunState.HEALTHY, RunState.WATCH, RunState.COLLAPSED
DROPPED = r"Success dropped, starting (at about step|between steps) "
RETURN_DROPPED = (
    r"Mean return dropped, starting at about step 51\. Whether fewer tasks are solved is not "
    r"known: no success rate is logged\.$"
)
FEWER = "fewer tasks than it did|Likely cause|dropped"
"""Said of losses only."""
LENGTH_FALL, LENGTH_RISE = ramp(0.82, 0.0, 30, 40), ramp(0.6, 5.6, 30, 40)


def paid(offset: float, tile: str) -> Course:
    """A reward that falls by 98 %, with a constant added to it."""
    reward = near(lambda step: offset + jump(0.7, 0.014, 51)(step), 0.05)
    return Course(
        signals={RETURN: reward, "policy/entropy": around(1.0, 0.02)},
        steps=100,
        state=COLLAPSED,
        colour="red",
        says=RETURN_DROPPED,
        key=RETURN,
        tile=tile,
        never="Healthy|The policy solves fewer|Success dropped",
    )


COURSES: Mapping[str, Course] = {
    "flat": Course(
        signals={**STEADY, SUCCESS: won(lambda step: 0.5)},
        state=HEALTHY,
        colour="green",
        says=r"Healthy\. Training success is 49 % \(.*\), with no change beyond chance\.",
        tile=r"mean 49 % \(46 to 51\), no trend",
        never=r"\brose\b|\bfell\b|and holds",
    ),
    "rose": Course(
        signals={**STEADY, SUCCESS: won(ramp(0.1, 0.8, 1, 40))},
        state=HEALTHY,
        colour="green",
        says=r"Healthy\. Training success rose from 9 % \(.*\) to 80 % \(",
        tile="rose from 9 % to 80 %",
        never=FEWER,
    ),
    "collapsed": Course(
        signals={**STEADY, SUCCESS: won(jump(0.7, 0.02, 31))},
        state=COLLAPSED,
        colour="red",
        says=DROPPED + r"31\. The policy solves fewer tasks than it did before\.$",
        tile="fell from 72 % to 2 %",
        never=r"not yet a collapse|Watch:|\brose\b",
    ),
    "recovering": Course(
        signals={
            **STEADY,
            SUCCESS: won(lambda s: 0.8 if s <= 25 else 0.1 + 0.5 * max(s - 35, 0) / 25),
        },
        state=RunState.RECOVERING,
        colour="orange",
        says=r"Recovering\. Training success fell from 80 % \(.*\) to 8 % \(",
        tile="fell to 8 %, then rose to 51 %",
        to_do="Let the run go on and watch success: it rises again",
        never="Healthy|dropped",
    ),
    "lost_for_100_steps": Course(
        signals={**STEADY, SUCCESS: won(jump(0.7, 0.0, 41))},
        steps=140,
        state=COLLAPSED,
        colour="red",
        says=DROPPED + r"41\.",
        tile="fell from 72 % to 0 %",
        never="not yet a collapse|Watch:",
    ),
    "reward_plus_0": paid(0.0, r"fell from 0\.698 to 0\.0161"),
    "reward_plus_100": paid(100.0, r"fell from 100\.[67]\d* to 100\.0\d*"),
    "reward_means_one_thing": Course(
        signals={"reward": near(jump(0.6, -0.5, 61), 0.03), "entropy": around(1.0, 0.02)},
        steps=100,
        state=COLLAPSED,
        colour="red",
        says=r"Mean return dropped, starting at about step 61\. Whether fewer tasks are solved is ",
        key=RETURN,
        tile=r"fell from 0\.594 to -0\.503",
        never="Healthy|Training success|60 %",
    ),
    "fast_rise": Course(
        signals={
            SUCCESS: near(lambda step: FAST[step - 1] / 24),
            "rollout/num_episodes": around(24.0),
        },
        steps=len(FAST),
        state=HEALTHY,
        colour="green",
        says=r"Healthy\. Training success rose from 4 % \(1 to 14 %, steps 1 to 2\) to 71 % "
        r"\(61 to 79 %, steps 6 to 10, 120 episodes\)\.",
        tile="rose from 4 % to 71 %",
        never="from 4[5-9] %|to 49 %",
    ),
    "return_falls_success_rises": Course(
        signals={
            **STEADY,
            SUCCESS: won(ramp(0.40, 0.87)),
            RETURN: near(ramp(0.5, 0.03), 0.02),
        },
        state=HEALTHY,
        colour="green",
        says=r"Healthy\. Training success rose from 46 % \(.*\) to 88 % \(",
        tile="rose from 46 % to 88 %",
        why="The mean return fell while success did not",
        never=FEWER,
    ),
    "length_pays": Course(
        signals={
            **STEADY,
            SUCCESS: won(LENGTH_FALL),
            RETURN: near(lambda step: 3 * LENGTH_FALL(step) + LENGTH_RISE(step), 0.1),
            "reward/term/length": near(LENGTH_RISE, 0.05),
            "reward/term/task": near(lambda step: 3 * LENGTH_FALL(step), 0.05),
        },
        state=COLLAPSED,
        colour="red",
        says=r"Reward up, success down, starting .*: the policy is paid for something else than "
        r"solving tasks\.$",
        tile=r"fell from 83 % to 0\.3 %",
        to_do="with the term length taken out of the reward",
        why=r"the term length of the reward grew from 0\.607 to 5\.59 while training success fell",
        never="earn nothing|learning rate",
    ),
    "rate_set_for_two_steps": Course(
        signals={
            **STEADY,
            SUCCESS: won(lambda s: 0.85 if s < 34 else ramp(0.41, 0.75, 40, STEPS)(s), 256),
            "rollout/num_episodes": around(256.0),
        },
        config=TRAINED,
        orders=(
            (34, CommandAction.SET, {"optim.lr": 4e-3}),
            (36, CommandAction.SET, {"optim.lr": 3e-4}),
        ),
        state=RunState.RECOVERING,
        colour="orange",
        says=r"Recovering\. Training success fell from 8\d % \(.*\) to 4\d % \(",
        tile=r"fell to 4\d %, then rose to 7\d %",
        to_do="Let the run go on and watch success: it rises again",
        why=r"optim\.lr was set to 0\.004 after step 33 \(before: 0\.0003\), and set back after "
        r"step 35",
        never="too high|Healthy",
    ),
    "replies_without_prompt": Course(
        signals={
            **STEADY,
            SUCCESS: won(lambda step: 0.5),
            "text/retrieval_accuracy": around(0.125, 0.02),
            "text/retrieval_chance": around(0.125),
            "text/retrieval_p_value": around(0.5),
            "text/dependence": around(0.0),
            "text/near_duplicate_frac": around(0.0),
            "text/template_frac": around(0.1),
        },
        steps=24,
        state=WATCH,
        colour="orange",
        says=r"Watch: replies do not depend on the prompt\. From the first measured step on, ",
        tile=r"mean 51 % \(48 to 54\), no trend",
        never="No problem found|nearly the same text|no longer depend",
    ),
    "rate_decays_to_0": Course(
        signals={
            **STEADY,
            SUCCESS: won(jump(0.7, 0.05, 40)),
            "optim/lr": near(lambda step: 3e-4 * (1 - step / STEPS) + 8.3e-11),
        },
        config=TRAINED,
        state=COLLAPSED,
        colour="red",
        says=DROPPED,
        tile="fell from 70 % to 6 %",
        why=r"(?i)Likely cause:? not known\. No setting was changed while the run went on\.",
        never="too high|learning rate|continue with|e-1",
    ),
    "warm_start": Course(
        signals={**STEADY, SUCCESS: won(jump(0.7, 0.05, 40)), "optim/lr": around(1.5e-4)},
        config={**TRAINED, "optim": {"lr": 1.5e-4}, "model": {"path": "policy"}},
        state=COLLAPSED,
        colour="red",
        says=DROPPED,
        tile="fell from 73 % to 5 %",
        why=r"(?i)Likely cause:? not known\.",
        never="recipes|usual|or less",
    ),
    "verl_validation_falls": Course(
        signals={
            "critic/score/mean": near(ramp(0.3, 0.9, 1, 200), 0.02),
            "actor/entropy": around(0.5, 0.01),
            "response_length/mean": near(ramp(280, 100, 1, 200)),
            "val-core/gsm8k/acc/mean@1": won(ramp(0.45, 0.09, 1, 200), 500, every=10),
        },
        steps=200,
        state=COLLAPSED,
        colour="red",
        says=r"Reward up, success down, starting .* mean return rose while evaluation success fell",
        key="eval/gsm8k/success_rate",
        tile="fell from 40 % to 10 %",
        to_do="First read three replies with a high return",
        why=r"\(reward hacking\), or the policy overfits to the training tasks",
        never="learning rate|lower lr|Watch:",
    ),
    "trl_term_of_weight_0": Course(
        signals={
            "reward": near(ramp(0.2, 0.8, 1, 100), 0.02),
            "rewards/right/mean": near(ramp(0.2, 0.8, 1, 100), 0.02),
            "rewards/short/mean": near(ramp(0.9, -1.5, 1, 100), 0.02),
            "entropy": around(0.5, 0.01),
        },
        steps=100,
        recording={"alarms": {"actions": {"LOW_SUCCESS": "stop"}}},
        state=HEALTHY,
        colour="green",
        says=r"Healthy\. The mean return rose from 0\.245 \(.*\) to 0\.789 \(",
        key=RETURN,
        tile=r"rose from 0\.245 to 0\.789",
        never="dropped|stopped|fell",
    ),
    "three_signals": Course(
        signals={
            RETURN: around(0.81, 0.05),
            "policy/entropy": around(0.26, 0.01),
            "rollout/response_length_mean": around(296, 10),
        },
        steps=100,
        state=RunState.INSUFFICIENT,
        colour="gray",
        says=r"Too little to judge\. The mean return is 0\.798 \(.*\), with no change beyond "
        r"chance\.$",
        key=RETURN,
        tile=r"mean 0\.798 \(0\.783 to 0\.814\), no trend",
        to_do="log a success rate",
        never="Healthy|No problem found|Read failed replies",
    ),
    "crashed": Course(
        signals={**STEADY, SUCCESS: won(ramp(0.1, 0.8, 1, 40))},
        end="killed",
        state=HEALTHY,
        colour="orange",
        says="The run crashed after step 60: its process ended without closing it\\.",
        tile="rose from 18 % to 81 %",
        to_do="To go on, start the trainer from its own last checkpoint",
        never="To do: nothing|Let the run go on",
    ),
    "killed_at_10": Course(
        signals={**STEADY, SUCCESS: won(lambda step: 0.5)},
        steps=10,
        config=TRAINED,
        end="killed",
        state=HEALTHY,
        colour="orange",
        says="The run crashed after step 10 of 60: its process ended without closing it\\.",
        tile=r"mean \d\d % \(\d\d to \d\d\), no trend",
        to_do=r"Resume the run: it goes on from the beginning, because there is no checkpoint, and "
        r"plays 10 finished steps again\. echoscope train --resume .*killed_at_10",
        never="To do: nothing|Let the run go on",
    ),
    "paused": Course(
        signals={**STEADY, SUCCESS: won(lambda step: 0.5)},
        config=TRAINED,
        orders=((STEPS + 1, CommandAction.PAUSE, {}),),
        end="open",
        state=HEALTHY,
        colour="orange",
        says=r"root paused the run after step 60 \(\d{4}-\d\d-\d\d \d\d:\d\d\)\.",
        tile=r"mean \d\d % \(\d\d to \d\d\), no trend",
        to_do=r"Let the run go on; no step is lost\. Press Resume\.",
        never=r"To do: nothing|Let the run go on\.",
    ),
    "flat_for_200_steps": Course(
        signals={**STEADY, SUCCESS: won(lambda step: 0.5)},
        steps=200,
        state=HEALTHY,
        colour="green",
        says=r"Healthy\. Training success is \d\d % \(.*\), with no change beyond chance\.",
        tile=r"mean \d\d % \(\d\d to \d\d\), no trend",
        to_do="^To do: nothing",
        never="Read failed replies|reward spread",
    ),
}


def record(root: Path, name: str) -> RunWriter | None:
    """Write a run of `COURSES`; the one that is still written is handed over to be closed."""
    course, rng = COURSES[name], np.random.default_rng(list(COURSES).index(name))
    rows = [_row(course, step, rng) for step in range(1, course.steps + 1)]
    if course.config is not None:
        return _trained(root / name, course, rows)
    recorder = Recorder(root / name, **course.recording)
    for step, row in enumerate(rows, 1):
        recorder.step(step, row)
    assert recorder.flush()
    recorder.obey(len(rows))  # what an alarm asked for
    if course.end == "killed":
        os._exit(1)
    recorder.close()
    return None


def _row(course: Course, step: int, rng: np.random.Generator) -> dict[str, float]:
    drawn = {name: signal(step, rng) for name, signal in course.signals.items()}
    return {name: value for name, value in drawn.items() if value is not None}


def _trained(path: Path, course: Course, rows: Sequence[Mapping[str, float]]) -> RunWriter | None:
    assert course.config is not None
    knobs = {"optim.lr": {"type": "number", "value": course.config["optim"]["lr"]}}
    writer = open_writer(path, config=course.config, live_knobs=knobs)
    for step, row in enumerate(rows, 1):
        _obey(writer, path.name, course, step)
        metrics = [step_metrics(path.name, step, row)]
        writer.commit_step(metrics=metrics, trajectories=[], outcomes=[])
    _obey(writer, path.name, course, len(rows) + 1)
    writer.flush()
    if course.end == "killed":
        os._exit(1)
    if course.end == "open":
        return writer
    writer.close(status=course.end)
    return None


def _obey(writer: RunWriter, run_id: str, course: Course, step: int) -> None:
    """Write the orders of a step with their answers, as a trainer does."""
    for first, action, settings in course.orders:
        if first == step:
            command = new_command(run_id, action, settings=settings, issued_by="root")
            ack = CommandAck(
                command_id=command.command_id, step=step, outcome=CommandOutcome.APPLIED
            )
            is_set = action is CommandAction.SET
            values = SettingsRecord(step=step, values=settings) if is_set else None
            writer.record_acks([ack], [command], values)
