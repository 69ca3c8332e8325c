"""How a verdict is put into words, in four parts: what and since when, the evidence, the causes,
what to do. What could not be checked comes last."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from echoscope.text.amounts import counted, listed, step_words
from echoscope.text.sentences import capitalised, in_sentence, parts_of_list

from ..catalogue import metric
from .advice.actions import Action
from .advice.causes import NOTES, Cause, unknown_words
from .advice.situation import Situation
from .alarms import RULES_BY_NAME, AlarmEngine, Blindness, EndedAlarm, OpenAlarm, RunState
from .claims import Change
from .courses.outcome import LEAN_SIGMAS, NEAR_BEST, Outcome
from .courses.series import Stretch
from .courses.sets import moves_of_sets, of_sets, set_words, unsolved_sets
from .courses.turns import LEVEL_Z
from .regimes import Regime
from .rules.base import (
    MOST_SETS,
    SUCCESS,
    View,
    describe,
    level_words,
)
from .rules.meanwhile import Surroundings
from .rules.metrics_needed import mapping_words, wanting_words
from .rules.task import fallen_success

Onset = tuple[int | None, tuple[int, int] | None]

NOTHING_READ = "nothing"
"""Stands for the metric of a verdict where no alarm reads anything that is logged."""
FILE = "RUN"
"""How a source is named that is no folder of a run: its columns can be mapped."""
MAX_EVIDENCE = 4
MAX_CAUSES = 3
MAX_UNSEEN = 2
STARTING = ", starting "
"""Between the title of a collapse and when it began."""
NEAREST = "Nearest to an alarm"
"""How the sentence begins that names them."""
FAR_APART = 0.2
"""Success in training above that on the evaluation tasks, from which both are told."""
GAINED_SHARE = 0.25
"""Part of what was gained in training that the evaluation gained at most, for that to be said."""
PROBABLE_SIGMAS = 4.0
"""Standard errors at which two levels side by side most likely differ: a turn, which is looked for
in every row, takes more."""
CAME_BACK = " Since then it rose to "
MAX_EARLIER = 3
"""Alarms that are over and are named."""
MAX_SPIKES = 3
"""Steps of single far values that are named."""
MAX_NEAREST = 2
"""Signals that a healthy verdict names as being half way to an alarm."""
TITLES = (
    "Evidence",
    "Meanwhile",
    "Also",
    "Earlier",
    "Likely cause",
    "Likely causes",
    "What to do",
    "Also seen, and no problem by itself",
    "Not checked",
    "Not yet confirmed",
    "Cannot be confirmed",
)
"""How the parts of a verdict begin, after the first one, which has no title."""
_CONFIRMED_BY_RETURN = ("TEMPLATE_COLLAPSE", "LOW_ENTROPY_COLLAPSE")
"""Rules that become critical when any measure of success declines, be it the mean return."""
_REASONING = {
    Regime.DIVERSE: "Reasoning still varies and depends on the prompt.",
    Regime.COMPRESSED: "Reasoning varies little and still depends on the prompt.",
}
"""Said of a healthy run only: a verdict tells one story."""


def verdict_text(
    engine: AlarmEngine,
    *,
    state: RunState,
    needed: tuple[str, int, int],
    num_measured: int,
    onset: Onset,
    nearest: Sequence[str],
    regime: Regime,
    template: str,
    causes: Sequence[Cause],
    actions: Sequence[Action],
    unseen: Sequence[Blindness],
) -> str:
    """One paragraph a part, the most important first.

    Args:
        needed: Of the metric that is nearest to a verdict: its key, its steps, and the steps that
            a verdict needs. No key: no rule reads anything that is logged.
        num_measured: Metrics that were judged.
        nearest: Signals that are half way to an alarm, by their label.
    """
    open_alarms, view, situation = engine.open_alarms, engine.view(), engine.situation
    if state is RunState.INSUFFICIENT:
        parts = [_too_little(engine.num_rows, *needed)]
        if needed[0] != NOTHING_READ and needed[1] >= needed[2]:
            course = "No success rate and no return is logged."
            if view.success is not None:
                course = outcome_words(view)
                course += "" if view.has_success_rate else f" {_NO_RATE}"
            parts = [f"Too little to judge. {course}"]
    elif state in (RunState.HEALTHY, RunState.RECOVERING):
        reasoning = "" if nearest or state is RunState.RECOVERING else _REASONING.get(regime, "")
        parts = [" ".join([_healthy(state, num_measured, view, nearest), reasoning]).strip()]
        notes = [f"{RULES_BY_NAME[a.rule].title} ({a.words})" for a in open_alarms]
        parts += [f"Also seen, and no problem by itself: {'; '.join(notes)}."] if notes else []
        parts += _cause_part(causes) if state is RunState.RECOVERING else []
    else:
        parts = _alarm_parts(
            state, open_alarms, onset, view, engine.beside, template, situation.has_ended
        )
        is_note = all(alarm.rule in NOTES for alarm in open_alarms)
        unknown = [] if is_note else [f"Likely cause: {unknown_words(situation)}"]
        parts += _cause_part(causes) or unknown
    parts += _earlier_part(engine.ended, parts[0])
    if situation.fate is not None:
        parts[0] = f"{situation.fate.words} {parts[0]}"
    if situation.fate is not None or state not in (RunState.INSUFFICIENT, RunState.HEALTHY):
        parts += [_advice_part(action) for action in actions[:1]]
    open_rules = {alarm.rule for alarm in open_alarms}
    return "\n".join([*parts, *_unseen_words(unseen, view, open_rules, situation)])


def _too_little(num_rows: int, key: str, count: int, needed: int) -> str:
    """How many steps there are, and how many with which metric a verdict needs.

    >>> _too_little(5, "", 5, 8)
    'Too early to tell: a verdict needs 8 steps, and there are 5.'
    >>> _too_little(30, "reward/return_mean", 1, 20)
    'Too early to tell: a verdict needs 20 steps with the mean return, and there is 1.'
    """
    number = "is 1" if count == 1 else f"are {count}"
    if key == NOTHING_READ:
        steps = "1 step holds" if num_rows == 1 else f"{num_rows} steps hold"
        start = "Too early to tell, or too little is" if num_rows < needed else "Too little is"
        return f"{start} logged: {steps} no metric that an alarm reads."
    of = f" with the {metric(key).in_sentence}" if key else ""
    return f"Too early to tell: a verdict needs {needed} steps{of}, and there {number}."


OF_REPLIES = (
    ("Reasoning still varies and depends on", "The replies still vary and depend on"),
    ("Reasoning varies little and still depends on", "The replies vary little and still depend on"),
    ("easoning does not depend", "eplies do not depend"),
    ("The reasoning no longer depends", "The replies no longer depend"),
    (
        "The reasoning depends much less on the prompt than it did: the right prompt is seldom "
        "recognised from it.",
        "The replies depend much less on the prompt than they did: the right "
        "prompt is seldom recognised from them.",
    ),
    ("the reasoning of three prompts", "the replies to three prompts"),
    ("of the reasonings of the first turns share", "of the replies of the first turns share"),
    ("from the reasoning", "from the replies"),
    ("between prompt and reasoning", "between prompt and reply"),
)
"""Of the reasoning, and of replies that mark none: those are judged as a whole."""
AT_THE_END = (
    (", and still falls", ", and still fell at the end"),
    (", and still rises", ", and still rose at the end"),
)
"""Of what goes on, and of a run that has ended."""


def in_other_words(text: str, phrases: Sequence[tuple[str, str]]) -> str:
    """A text with the first phrase of each pair exchanged for the second.

    >>> in_other_words("prompts identified from the reasoning, 40 points", OF_REPLIES)
    'prompts identified from the replies, 40 points'
    >>> in_other_words("40 % of the reasonings of the first turns share one template", OF_REPLIES)
    '40 % of the replies of the first turns share one template'
    """
    for phrase, instead in phrases:
        text = text.replace(phrase, instead)
    return text


def verdict_parts(text: str) -> list[tuple[str, str]]:
    """(title, words) of each part of a verdict's text; the title of the first is empty.

    >>> verdict_parts("Echo trap. It repeats.\\nEvidence: 3 %.\\nWhat to do: Stop.\\n  echoscope x")
    [('', 'Echo trap. It repeats.'), ('Evidence', '3 %.'), ('What to do', 'Stop.\\n  echoscope x')]
    """
    parts: list[tuple[str, str]] = []
    for line in text.strip().split("\n"):
        title, colon, part_text = line.partition(": ")
        if colon and title in TITLES:
            parts.append((title, part_text))
        elif parts:
            parts[-1] = (parts[-1][0], f"{parts[-1][1]}\n{line}")
        else:
            parts.append(("", line))
    return parts


def nearest_words(nearest: Sequence[str]) -> str:
    """The nearest signals by name, in an order that does not change from step to step.

    >>> nearest_words(["valid actions", "mean return", "entropy per token"])
    'mean return; valid actions'
    """
    return "; ".join(sorted(nearest[:MAX_NEAREST]))


_NO_RATE = (
    "Whether tasks are solved is not known: log a success rate, or import the rollouts with their "
    "text."
)


def _healthy(state: RunState, num_measured: int, view: View, nearest: Sequence[str]) -> str:
    """What holds, by the measure that decides."""
    near = nearest_words(nearest)
    rest = f" {NEAREST}: {near}." if near and state is RunState.HEALTHY else ""
    checked = counted(num_measured, "signal")
    course, gap, success = outcome_words(view), _unlearned_words(view), view.success
    end = f" No problem found ({checked} checked)."
    before = None if success is None else success.before_now
    is_falling = (
        success is not None
        and before is not None
        and before.mean > success.now.mean
        and _sigmas_from(before, success) >= PROBABLE_SIGMAS
    )
    end = "" if state is RunState.RECOVERING or is_falling else gap or end
    return f"{capitalised(state.value)}.{f' {course}' if course else ''}{end}{rest}"


def outcome_words(view: View) -> str:
    """What the best measure of success does, and the return where it goes the other way."""
    success = view.success
    if success is None:
        return ""
    text = course_words(success)
    moves = moves_of_sets(success)
    if moves and (not success.shows_turn or moves[0].direction == "fall"):
        text += f" By set: {listed([set_words(each) for each in moves], MOST_SETS)}."
    text += "".join(f" No task of `{tag}` was ever solved." for tag in unsolved_sets(success))
    train, reward = view.training, view.outcomes["reward"]
    is_told_below = train is reward and reward.has_fallen
    if train is not success and not is_told_below and _tells_more(train, success):
        text += f" {course_words(train)}"
    elif success.is_rate and reward.has_fallen and not success.has_fallen:
        what, look = "fell while success did not", f" {_LOOK_AT_REWARD}"
        if not view.is_seen_by([success], reward):
            what, look = "fell, and the fixed tasks were not played since", ""
        elif success.may_be_down or view.outcomes["success_train"].leans:
            what, look = "fell", ""
        text += f" The mean return {what}: {describe(reward)}.{look}"
    elif reward.shows_turn and success.is_rate and not (success.shows_turn or train.shows_turn):
        text += f" {course_words(reward)}"
    return text


def _tells_more(train: Outcome, success: Outcome) -> bool:
    """Does training move where the success that decides does not, or much further?"""
    if not train.was_ready or not train.shows_turn:
        return False
    if not success.shows_turn or success.is_below_best != train.is_below_best:
        return True
    return train.is_rate and success.is_rate and train.level - success.level >= FAR_APART


def _unlearned_words(view: View) -> str:
    """Training success rose far, and the fixed tasks gained hardly anything from it."""
    train, fixed = view.training, view.success
    if fixed is None or not (fixed.spec.is_fixed and fixed.is_rate and train.is_rate):
        return ""
    if fixed.shows_turn or not train.shows_turn or train.has_fallen:
        return ""
    rise = train.last_change
    before, after = (fixed.between(*level.steps) for level in (rise.before, rise.after))
    gain = rise.after.value - rise.before.value
    if before is None or after is None or gain < FAR_APART:
        return ""
    most = fixed.change(before, after).high
    if most > GAINED_SHARE * gain:
        return ""
    points = round(100 * most)
    gained = f"at most {counted(points, 'point')}" if points > 0 else "nothing"
    return (
        f" The fixed tasks gained {gained} meanwhile: perhaps the policy learns its training tasks "
        "by heart. Train on more tasks, or on tasks like those of the evaluation."
    )


_LOOK_AT_REWARD = "Check whether a term or a weight of the reward changed there."


def left_out_words(view: View) -> list[str]:
    """What of the outcomes was not judged, and why."""
    parts = []
    for outcome in view.outcomes.values():
        noun = metric(outcome.key).in_sentence if outcome.count else ""
        if outcome.count and outcome.restarted:
            step = outcome.restarted[-1]
            parts.append(f"{noun}: other tasks are played from step {step} on; judged from there")
        if outcome.count and outcome.series.spikes:
            steps = outcome.series.spikes
            steps_text = ", ".join(map(str, steps[:MAX_SPIKES]))
            more = f" and {len(steps) - MAX_SPIKES} more" if len(steps) > MAX_SPIKES else ""
            parts.append(
                f"{noun}: single values far beyond all others are left out: step {steps_text}{more}"
            )
    return parts


def _sigmas_from(before: Stretch, outcome: Outcome) -> float:
    """Standard errors between a level and the present one."""
    return abs(outcome.series.sigmas(before, outcome.now))


def _is_far(outcome: Outcome, before: Stretch) -> bool:
    """Does the present level differ by much, and by more than a glance takes for chance?

    Much is a tenth of a rate, and of a return the noise of one row.
    """
    means = before.mean, outcome.now.mean
    if _sigmas_from(before, outcome) < LEAN_SIGMAS:
        return False
    if outcome.is_rate:
        return abs(means[0] - means[1]) > (1 - NEAR_BEST) * max(means)
    return abs(means[0] - means[1]) > outcome.series.sigma


def course_words(outcome: Outcome) -> str:
    """What an outcome does, in one sentence.

    >>> from echoscope.diagnostics.judge.courses.channels import OUTCOMES
    >>> outcome = Outcome(spec=OUTCOMES[2])
    >>> for step in range(40):
    ...     outcome.update(step, {"rollout/success_rate": 0.5, "rollout/num_episodes": 64})
    >>> course_words(outcome)
    'Training success is 50 % (48 to 52 %, steps 0 to 39, 2,560 episodes), with no change beyond \
chance.'
    """
    name = metric(outcome.key).in_sentence
    name = f"the {name}" if not outcome.is_rate else name
    name += of_sets(outcome)
    now = level_words(outcome.level_of(outcome.since_turn))
    pivots = outcome.turns.pivots
    before = outcome.before_now
    open_change = ""
    if before is not None and _is_far(outcome, before):
        was = level_words(outcome.level_of(before), with_trials=False)
        likely = f"most likely it {'fell' if before.mean > outcome.now.mean else 'rose'}"
        has_changed = _sigmas_from(before, outcome) >= PROBABLE_SIGMAS
        open_change = f" Before, it was {was}: "
        open_change += f"{likely if has_changed else 'that may still be chance'}."
    is_one_level = before is None or _sigmas_from(before, outcome) < LEVEL_Z
    if not pivots and is_one_level and outcome.count > 1:
        return f"{capitalised(name)} is {now}, with no change beyond chance."
    if not pivots:
        return f"{capitalised(name)} is {now}.{open_change}"
    if not outcome.shows_turn:
        return f"{capitalised(name)} is {now}.{open_change}"
    start = level_words(outcome.level_of(outcome.before()), with_trials=False)
    bottom = outcome.bottom
    if outcome.has_fallen:
        rest = ", and still falls" if outcome.still_falls else ""
        return f"{capitalised(name)} fell from {start} to {now}{rest}."
    if bottom is None:
        best = level_words(outcome.level_of(outcome.best), with_trials=False)
        higher = f" It had been {best}." if outcome.is_below_best else ""
        is_lower = before is not None and before.mean > outcome.now.mean
        return f"{capitalised(name)} rose from {start} to {now}.{higher or open_change * is_lower}"
    held = level_words(outcome.level_of(outcome.before(-2)), with_trials=False)
    num_falls = sum(mode == "down" for mode, _ in pivots)
    times = f" {num_falls} times, the last time" if num_falls > 1 else ""
    fell = f"{capitalised(name)} fell{times} from {held}"
    end = ", below what it was" if outcome.is_below_best else ""
    end += ", and still rises" if outcome.still_rises else ""
    return f"{fell} to {start}.{CAME_BACK}{now}{end}."


def _alarm_parts(
    state: RunState,
    open_alarms: Sequence[OpenAlarm],
    onset: Onset,
    view: View,
    beside: Surroundings,
    template: str,
    has_ended: bool,
) -> list[str]:
    worst = open_alarms[0]
    is_first_of = ""
    if state in (RunState.WATCH, RunState.COLLAPSING):
        is_first_of = f"{capitalised(state.words(has_ended=has_ended))}: "
    title = in_sentence(worst.title) if is_first_of else worst.title
    when = onset_words(*onset)
    since = f"{STARTING}{when}" if when else ""
    parts = [f"{is_first_of}{title}{since}. {worst.meaning}"]
    if state is RunState.WATCH and not isinstance(view[worst.channels[0]], Outcome):
        parts[0] += f" {outcome_words(view)}"
    if template and worst.rule in ("TEMPLATE_COLLAPSE", "LOW_ENTROPY_COLLAPSE", "ECHO_TRAP"):
        parts[0] += f" {template}"
    evidence = _evidence(worst, open_alarms, view)
    parts.append(f"Evidence: {evidence}.")
    main = view.of(worst.channels[0], worst.metric)
    if isinstance(main, Outcome) and main.is_down:
        fall: Change | None = main.last_change
    else:
        fall = fallen_success(view)
    meanwhile = beside.moved(fall) if fall is not None else []
    others_moved = [text for text in meanwhile if f"{text.split(':')[0]}: " not in evidence]
    parts += [f"Meanwhile: {'; '.join(others_moved)}."] if others_moved else []
    others = [alarm for alarm in open_alarms[1:] if not _is_said(alarm, worst)]
    if others:
        also = dict.fromkeys(in_sentence(alarm.title) for alarm in others)
        between = "; " if any("," in title for title in also) else ", "
        parts.append(f"Also: {between.join(also)}.")
    return parts


def _earlier_part(ended: Sequence[EndedAlarm], text: str) -> list[str]:
    """What was critical and is over: who looks at the end alone would not know it."""
    others = [alarm for alarm in ended if alarm.rule != "LOW_SUCCESS" or CAME_BACK not in text]
    last = others[-MAX_EARLIER:]
    texts = [f"{in_sentence(alarm.title)} (critical, {step_words(alarm.steps)})" for alarm in last]
    texts += [f"and {len(others) - len(last)} before"] if len(others) > len(last) else []
    return [f"Earlier: {'; '.join(texts)}."] if texts else []


def _is_said(alarm: OpenAlarm, worst: OpenAlarm) -> bool:
    """Does the headline say the same of the same metric? "Reward up, success down" does."""
    return alarm.rule == "LOW_SUCCESS" and worst.rule == "REWARD_HACKING"


def _evidence(worst: OpenAlarm, open_alarms: Sequence[OpenAlarm], view: View) -> str:
    """The first alarm's own words, and success if it has moved and is not among them."""
    evidence = parts_of_list(worst.words)[:MAX_EVIDENCE]
    others = [view[name] for alarm in open_alarms[1:] for name in alarm.channels]
    success = [sign for sign in others if sign.spec.name in SUCCESS and sign.stands_out]
    labels = {text.removeprefix("then ").split(":")[0] for text in evidence}
    texts = [describe(sign) for sign in success[:1]]
    evidence += [text for text in texts if text.split(":")[0] not in labels]
    return "; ".join(evidence)


def _cause_part(causes: Sequence[Cause]) -> list[str]:
    texts = [cause.text for cause in causes[:MAX_CAUSES]]
    if not texts:
        return []
    if len(texts) == 1:
        return [f"Likely cause: {texts[0]}. It is not the cause if {causes[0].refuted_by}."]
    return ["Likely causes: " + "; ".join(f"{n}. {text}" for n, text in enumerate(texts, 1)) + "."]


def _advice_part(action: Action) -> str:
    command = f"\n  {action.command}" if action.command else ""
    return f"What to do: {action.text}{command}"


def onset_words(onset: int | None, interval: tuple[int, int] | None) -> str:
    """`between steps 79 and 88`; empty where it is not known.

    >>> onset_words(84, (79, 88)), onset_words(84, (84, 84))
    ('between steps 79 and 88', 'at about step 84')
    """
    if onset is None:
        return ""
    if interval is None or interval[0] == interval[1]:
        return f"at about step {onset}"
    return f"between steps {interval[0]} and {interval[1]}"


def _unseen_words(
    unseen: Sequence[Blindness], view: View, open_rules: Collection[str], situation: Situation
) -> list[str]:
    # A fall of the mean return confirms these without a success rate.
    has_return = view.outcomes["reward"].count > 0 and not view.has_success_rate
    by_return = _CONFIRMED_BY_RETURN if has_return else ()
    blind = [b for b in unseen if b.is_blind]
    wanting = [_wanting(b, view, situation) for b in blind]
    partly = [
        _wanting(b, view, situation)
        for b in unseen
        if not b.is_blind and b.rule in open_rules and b.rule not in by_return
    ]
    not_yet = [
        f"{in_sentence(RULES_BY_NAME[b.rule].title)} (needs a success rate, or a clear fall of the "
        "mean return)"
        for b in unseen
        if not b.is_blind and b.rule in by_return and b.rule in open_rules
    ]
    unseen_names = [
        ("Not checked", wanting),
        ("Not yet confirmed", not_yet),
        ("Cannot be confirmed", partly),
    ]
    lines = [f"{title}: {_few(texts)}." for title, texts in unseen_names if texts]
    if lines and has_foreign_names(situation) and situation.run == FILE:
        hints = (mapping_words(b.wanted, situation.trainer) for b in blind[:MAX_UNSEEN])
        hint = next((hint for hint in hints if hint), "")
        lines[0] += f" {hint}" if hint else ""
    return lines


def has_foreign_names(situation: Situation) -> bool:
    """Whether whoever reads a verdict knows the metrics by names of another trainer."""
    return situation.kind == "foreign" and not situation.has_own_keys


def _few(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    first, more = texts[:MAX_UNSEEN], len(texts) - MAX_UNSEEN
    return "; ".join(first) + (f"; and {more} more (`--json` lists them)" if more > 0 else "")


def _wanting(blind: Blindness, view: View, situation: Situation) -> str:
    """A rule, and what it lacks: any success rate where any would do, else one metric."""
    title = in_sentence(RULES_BY_NAME[blind.rule].title)
    if all(key.startswith(("eval/", "probe/")) for key in blind.wanted):
        return f"{title} (needs a success rate of an evaluation)"
    if blind.wanted[0].endswith("/success_rate") and not view.has_success_rate:
        return f"{title} (needs a success rate)"
    if has_foreign_names(situation):
        return f"{title} ({wanting_words(blind.wanted, situation.trainer)})"
    return f"{title} ({blind.wanted[0]} is not logged)"
