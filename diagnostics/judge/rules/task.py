"""Rules about what the run achieves: success lost, solved, or never there."""

from __future__ import annotations

from echoscope.text.amounts import counted, listed, percent
from echoscope.text.sentences import capitalised

from ...catalogue import metric
from ..claims import Change, Disagreement
from ..courses.outcome import DECLINE_SIGMAS, Outcome
from ..courses.sets import has_risen_set, moves_of_sets, of_sets, set_name, set_words
from .base import (
    FIXED,
    MOST_SETS,
    MOSTLY_SOLVED,
    RATES,
    SOLVED_RATE,
    Finding,
    Rule,
    Sign,
    View,
    describe,
    finding,
    level_amount,
    level_words,
    rule,
    sentence,
)

SIGNS = (
    "closed",
    "format",
    "action",
    "eval_action",
    "entropy_up",
    "spread",
    "zero_spread",
    "dependence_first",
    "dependence_all",
    "retrieval",
    "text_retrieval",
    "template",
    "duplicates",
    "sibling_distance_down",
    "loops",
)
"""What else may agree that success is being lost, where one evaluation shows it."""
FLAT_STEPS = 30
"""Steps without a change beyond chance after which a run counts as flat."""
STALLED_STEPS = 100
LOW_RATE = 0.01
NOTHING = 1e-9
TRIALS_FOR_LOW = 3 / LOW_RATE
"""Without a single success, a rate of `LOW_RATE` is ruled out with 95 % (rule of three)."""
TERM = "reward/term/"
"""How the metrics of the terms of a reward begin."""
TERM_SHARE = "reward/share/"
"""How those of a term's share in the reward's differences between siblings begin."""
TERM_AGREEMENT = "reward/agreement/"
"""How those of its correlation with the environment's reward begin."""
DISAGREE_SIGMAS = 3.0
"""Standard errors by which the measure that rises must have risen while the other fell."""


def _low_success(view: View) -> Finding | None:
    """A measure of success is below what it held, beyond chance.

    It is critical where a deciding outcome fell by three eighths of what was held, or by less and
    the fall goes on, and shows that in two rows, or in one while another sign agrees. Of one fall
    on fixed tasks, training that sags is enough to tell that it was not the evaluation that failed.
    """
    deciding = view.deciding
    names = (*RATES, "eval_reward", "reward") if not view.has_success_rate else RATES
    measured = [view.outcomes[name] for name in names]
    measured += [outcome for outcome in deciding if outcome.spec.name not in names]
    fallen = [outcome for outcome in measured if outcome.is_down]
    if not fallen:
        return _lost_set(view)
    fallen.sort(key=lambda outcome: -_gravity(outcome, deciding))
    main = fallen[0]
    signs = view.leaning(*SIGNS)
    others = [name for name in RATES if view.outcomes[name] is not main]
    signs += view.leaning(*others)
    training = view.training
    is_agreed = bool(signs) or (main.spec.is_fixed and training.is_sagging)
    is_shown = main.is_confirmed or is_agreed
    is_large = (main.is_large_fall or main.goes_on) and is_shown
    if main.spec.is_fixed and main.is_rate and not main.is_swinging:
        # One evaluation is enough for the size of a fall that is certain, where other kinds agree.
        left = main.value / main.high
        is_large |= is_agreed and left <= 1 - main.large_share
        is_large |= _num_kinds(signs) > 1 and left <= 1 - main.large_share / 2
    critical = main in deciding and is_large and (view.is_warm or main.spec.is_fixed)
    agreeing: list[Sign] = [*fallen[1:], *(signs if critical else [])]
    all_signs = [main, *agreeing]
    if main not in deciding:
        all_signs += deciding[:1]  # the fixed tasks, which do not show a loss yet
    return finding(
        main,
        *agreeing,
        words=sentence(all_signs) + _swings_words(main),
        is_critical=critical,
        is_note=main.is_reconstructed,
        title=_TITLES.get(main.spec.name, "" if main in deciding else "Training success dropped"),
        meaning=_meaning(main, view),
    )


def _lost_set(view: View) -> Finding | None:
    """One set of the evaluation tasks fell far, and others make up for it in their mean."""
    for outcome in view.deciding:
        moves = moves_of_sets(outcome)
        for move in moves:
            of_set = outcome.sets[move.metric]
            if of_set.is_down and of_set.is_large_fall and of_set.is_confirmed:
                tag = set_name(move)
                label, _, levels = describe(of_set).partition(": ")
                others = [set_words(each) for each in moves if each is not move]
                rest = f" ({listed(others, MOST_SETS)})" if others else ""
                return finding(
                    of_set,
                    words=f"{label} on `{tag}`: {levels}{rest}",
                    title=f"Success dropped on the tasks of `{tag}`",
                    meaning=f"The policy solves fewer tasks of `{tag}` than before. Other sets "
                    "make up for it in the mean.",
                )
    return None


def _swings_words(outcome: Outcome) -> str:
    if not outcome.is_swinging:
        return ""
    return f"; it came back from {counted(len(outcome.rows_of_like_dips), 'fall')} as deep"


_TITLES = {"reward": "Mean return dropped", "eval_reward": "Evaluation reward dropped"}


def _gravity(outcome: Outcome, deciding: list[Outcome]) -> float:
    decides = outcome in deciding
    return 4 * decides + 2 * outcome.is_lost + outcome.strength


_SAME_KIND = {
    "closed": "format",
    "eval_action": "action",
    "text_retrieval": "retrieval",
    "dependence_all": "dependence_first",
    "zero_spread": "spread",
}
"""Signs that measure the same thing in two ways count once."""


def _num_kinds(signs: list[Sign]) -> int:
    return len({_SAME_KIND.get(sign.spec.name, sign.spec.name) for sign in signs})


def _meaning(outcome: Outcome, view: View) -> str:
    """What a fall means, of the quantity that was measured."""
    if not outcome.is_rate and view.has_success_rate:
        return "The fixed tasks were not played since, so whether fewer are solved is not known."
    if not outcome.is_rate:
        return "Whether fewer tasks are solved is not known: no success rate is logged."
    if outcome.spec.name in FIXED:
        return "The policy solves fewer of the evaluation tasks than it did before."
    fixed = view.deciding[0]
    if fixed is outcome:
        return "The policy solves fewer tasks than it did before."
    rest = "; the fixed tasks do not show a loss"
    if not view.is_seen_by([fixed], outcome):
        rest = "; the fixed tasks were not played since"
    elif fixed.may_be_down:
        rest = ", and perhaps fewer of the fixed tasks"
    return f"The policy solves fewer training tasks than before{rest}."


def disagreement(view: View) -> Disagreement | None:
    """The return of training, or training success, rises while success falls.

    Both beyond chance, over the same steps.
    """
    down = fallen_success(view)
    if down is None:
        return None
    up = next(
        (
            risen
            for name in ("reward", "success_train")
            if view.outcomes[name].key != down.metric
            and (risen := _risen(view.outcomes[name], down)) is not None
        ),
        None,
    )
    return None if up is None else Disagreement(up=up, down=down, terms=risen_terms(view, down))


def fallen_success(view: View) -> Change | None:
    """The fall of success, on fixed tasks before those of training; else of evaluation's return."""
    fallen = [view.outcomes[name] for name in (*RATES, "eval_reward")]
    down = next((outcome for outcome in fallen if outcome.is_down), None)
    if down is None:
        return None
    return down.change(down.before(), down.since_turn, is_dated=True)


def _risen(outcome: Outcome, down: Change) -> Change | None:
    """Its rise over the steps of a fall, beyond chance.

    Step 1 trains on what the policy does that an evaluation before it has measured: where the fall
    begins there, the rise does so, too.
    """
    first, last = down.before.steps
    before = outcome.between(first, max(last, 1))
    after = outcome.between(*down.after.steps)
    if before is None or after is None or outcome.is_reconstructed:
        return None
    is_up = outcome.series.sigmas(before, after) >= DISAGREE_SIGMAS
    return outcome.change(before, after) if is_up else None


def risen_terms(view: View, down: Change) -> tuple[Change, ...]:
    """Terms of the reward that rose meanwhile, beyond chance, the largest rise first."""
    risen = [
        change
        for term in view.terms.values()
        if (change := _risen(term, down)) is not None and change.direction == "rise"
    ]
    return tuple(sorted(risen, key=lambda c: c.before.value - c.after.value))


def _reward_hacking(view: View) -> Finding | None:
    """What is trained rises while what is wanted falls."""
    claim = disagreement(view)
    if claim is None or claim.up.metric == "rollout/success_rate":
        return None
    down = next(o for o in view.outcomes.values() if o.count and o.key == claim.down.metric)
    if has_risen_set(down):
        return None  # what is paid for is learned, and something else is forgotten
    critical = down in view.deciding and down.is_large_fall and down.is_confirmed and view.is_warm
    parts = [describe(down), _change_words(claim.up)]
    parts += [_change_words(term) for term in claim.terms[:2]]
    return finding(
        down,
        view["reward"],
        words="; ".join(parts),
        is_critical=critical,
        meaning=f"{_name(claim.up)} rose while {_name(claim.down, in_sentence=True)} fell: the "
        "policy is paid for something else than solving tasks.",
    )


def _name(change: Change, *, in_sentence: bool = False) -> str:
    noun = metric(change.metric).in_sentence
    noun = noun if "success" in noun else f"the {noun}"
    return noun if in_sentence else capitalised(noun)


def _change_words(change: Change) -> str:
    entry = metric(change.metric)
    term = change.metric.removeprefix(TERM)
    noun = entry.in_sentence if term == change.metric else f"term `{term}` of the reward"
    before, after = (
        f"{level_amount(level)} (steps {level.steps[0]} to {level.steps[1]})"
        for level in (change.before, change.after)
    )
    return f"{noun}: {before} -> {after}"


def _not_learning(view: View) -> Finding | None:
    """No success ever, in so many episodes that a rate of `LOW_RATE` is ruled out.

    Or next to none all along, without a change beyond chance. A return that rises is learning.
    """
    spread, reward = view.channels["spread"], view.outcomes["reward"]
    measured = [o for name in RATES if (o := view.outcomes[name]).count]
    is_rising = reward.turns.mode == "up"
    if not measured and spread.count:
        never = spread.count >= spread.spec.warmup and spread.high <= NOTHING
        if not never or not _is_constant(reward):
            return None
        evidence_text = f"all {spread.count} steps gave every sample of a group the same reward"
        return finding(spread, words=evidence_text, meaning=_NO_DIFFERENCE)
    if not measured:
        if reward.count < LEAST_ROWS or not _is_constant(reward) or reward.value > 0:
            return None
        evidence_text = f"the mean reward was {reward.value:.3g} in all {reward.count} measurements"
        return finding(reward, words=evidence_text, meaning=_NO_DIFFERENCE)
    is_open = "NOT_LEARNING" in view.open_rules
    is_low = all(_is_next_to_none(outcome, is_open=is_open) for outcome in measured)
    never_paid = reward.count >= LEAST_ROWS and _is_constant(reward) and reward.value <= 0
    is_enough = never_paid or any(_is_enough(outcome) for outcome in measured)
    if not is_low or is_rising or not is_enough:
        return None
    is_none = all(outcome.peak <= 0 for outcome in measured)
    return finding(*measured, meaning="" if is_none else _HARDLY_ANY)


_NO_DIFFERENCE = "The reward is always the same, so there is nothing to learn from."
_HARDLY_ANY = (
    "Hardly any episode succeeds, and that does not change: there is next to no reward to learn "
    "from."
)
LEAST_ROWS = 10
NEXT_TO_NONE = 0.03
"""A success rate below it for `LONG` steps, without a change, is nothing that was learned."""
LONG = 60


def _is_constant(outcome: Outcome) -> bool:
    values = outcome.series.values
    return not values or max(values) - min(values) <= NOTHING


def _is_next_to_none(outcome: Outcome, *, is_open: bool) -> bool:
    """Hardly any success in any row; or little in many, and no change beyond chance.

    A single success does not end what was said before.
    """
    steps = outcome.series.steps
    # Evaluations are rare; rows of training may count their steps in tokens.
    length = steps[-1] - steps[0] if outcome.spec.is_fixed else outcome.count
    is_long = is_open or length >= LONG
    is_flat = is_long and not outcome.turns.pivots and outcome.level < NEXT_TO_NONE
    return outcome.peak < LOW_RATE or is_flat


def _is_enough(outcome: Outcome) -> bool:
    """Over enough episodes that next to none is no accident."""
    if outcome.spec.is_fixed:
        trials = outcome.num_trials * outcome.count
        return outcome.count >= LEAST_ROWS / 2 and trials >= TRIALS_FOR_LOW
    return outcome.count >= LEAST_ROWS


def _train_eval_divergence(view: View) -> Finding | None:
    """Evaluation fell, and training success over the same steps did not."""
    train = view.outcomes["success_train"]
    lost = [o for name in FIXED if (o := view.outcomes[name]).has_fallen and o.is_confirmed]
    if not lost or not train.was_ready or train.is_sagging or not train.is_at_best:
        return None
    if has_risen_set(lost[0]):
        return None  # what is trained is learned, and something else is forgotten
    evidence_text = f"{describe(lost[0])}, while training success is {percent(train.level)}"
    return finding(lost[0], train, words=evidence_text)


def _converged(view: View) -> Finding | None:
    """Success flat at its best, and little left that could move it: a statement, not an alarm."""
    success = view.success
    if success is None or not view.is_success_reached or not view.is_warm:
        return None
    # Where many tasks are never solved, groups are alike because they fail.
    is_mostly = not success.is_rate or success.level >= MOSTLY_SOLVED
    calm = view.raised("entropy_down", *(("spread", "zero_spread") if is_mostly else ()))
    is_solved = success.is_rate and success.level >= SOLVED_RATE
    if not (calm and (is_solved or view.is_success_flat(FLAT_STEPS))):
        return None
    return finding(success, *calm, is_note=True)


def _stalled(view: View) -> Finding | None:
    success = view.success
    if success is None or not view.is_success_flat(STALLED_STEPS) or view.is_success_falling:
        return None
    if any(_moves_since(outcome, success.flat_since) for outcome in view.outcomes.values()):
        return None
    if _converged(view) is not None:
        return None
    evidence_text = (
        f"{metric(success.key).in_sentence}{of_sets(success)}: "
        f"{level_words(success.level_of(success.since_turn))}; no change beyond chance since step "
        f"{success.flat_since}"
    )
    return finding(success, words=evidence_text, is_note=True)


def _moves_since(outcome: Outcome, step: int) -> bool:
    """Do the later rows since a step differ from the earlier ones, as far as a glance tells?"""
    first, series = outcome.series.row_of(step), outcome.series
    middle = (first + outcome.count) // 2
    if middle - first < 2:
        return False
    early, late = series.stretch(first, middle), series.stretch(middle, outcome.count)
    return abs(series.sigmas(early, late)) >= DECLINE_SIGMAS


def _empty_selection(view: View) -> Finding | None:
    empty = view.channels["empty_selection"]
    if not empty.is_raised:
        return None
    evidence_text = f"no group was selected for {empty.streak} steps in a row: nothing trains"
    return finding(empty, words=evidence_text)


RULES: tuple[Rule, ...] = (
    rule("LOW_SUCCESS", _low_success, needs=(*RATES, "eval_reward", "reward"), clears_at_once=True),
    rule("NOT_LEARNING", _not_learning, needs=(*FIXED, "success_train", "spread", "reward")),
    rule(
        "REWARD_HACKING",
        _reward_hacking,
        needs=("reward",),
        confirms=(*RATES, "eval_reward"),
        clears_at_once=True,
    ),
    rule("TRAIN_EVAL_DIVERGENCE", _train_eval_divergence, needs=FIXED, clears_at_once=True),
    rule("CONVERGED", _converged, needs=(*RATES, "reward")),
    rule("STALLED", _stalled, needs=(*RATES, "reward")),
    rule("EMPTY_SELECTION", _empty_selection, needs=("empty_selection",)),
)
