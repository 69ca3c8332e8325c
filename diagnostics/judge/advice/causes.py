"""Why it may have happened: differences that this run itself shows, never what is usual.

A setting that was changed shortly before, one that differs from the recipe, a term of the reward
that grew while success fell, a rate that rose, rewards that differ between siblings that did the
same. Each cause says what would refute it. The first one that something can be done about gives
the action (`actions.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from echoscope.text.amounts import percent

from ...catalogue import metric
from ..claims import Change
from ..courses.sets import has_risen_set, moves_of_sets, set_name
from ..rules.base import FIXED, View, level_amount
from ..rules.task import (
    TERM_AGREEMENT,
    TERM_SHARE,
    disagreement,
    fallen_success,
    risen_terms,
)
from .differences import (
    Interval,
    change_words,
    changes_before,
    recipe_differences,
    set_back,
    setting_words,
)
from .luck import luck_params, luck_words, undivided
from .situation import History, Situation
from .usual import unusual

SHOWN, LIKELY = 2, 1
"""How well a cause is founded: this run's metrics or its time line show it, its settings differ."""
ENTROPY_RISE = 1.3
"""Entropy over its minimum from which a bonus on it is a shown cause."""
FIRST_RISE = 3.0
"""The same of the newest step over the first, before a level has settled."""
RATE_RISE = 1.5
"""Highest learning rate since the best success over the one at the best that is a rise."""
PAID = 1 / 3
"""Share of the reward's differences between siblings that a term of the run's own may make."""
AGREES = 0.3
"""Correlation with the environment's reward from which such a term pays for what solves tasks."""
NO_SPREAD = 0.5
"""Share of groups without reward spread from which most rollouts teach nothing."""
MAX_RECIPE = 3
"""Differences from the recipe that are named."""
MOST_TRAJECTORY_KL = 0.35
"""Nats up to which whole trajectories can be weighted: with normal log-weights the effective sample
is exp(-2 KL), here 50 %."""
NOTES = {"CONVERGED", "STALLED", "GRADIENT_SPIKE"}
"""Rules that report nothing that needs a cause."""
OLD_LOGPROBS = "off_policy.old_logprobs"
NEVER_BINDS = 100.0
"""Highest weight of a sample from which a mask lets every sample through."""
_OTHER_POLICY_RULES = {"STALE_ENGINE", "OFF_POLICY_DRIFT"}
STEP_RULES = {
    "FORMAT_COLLAPSE",
    "ENTROPY_EXPLOSION",
    "LOW_SUCCESS",
    "NON_FINITE",
    "LIKELIHOOD_DECAY",
    "KL_DRIFT",
    "LOW_ENTROPY_COLLAPSE",
    "TEMPLATE_COLLAPSE",
    "DEGENERATE_TEXT",
}
"""What steps that are too large can do."""
_NO_VARIETY_RULES = {
    "ECHO_TRAP",
    "TEMPLATE_COLLAPSE",
    "LOW_ENTROPY_COLLAPSE",
    "DEGENERATE_TEXT",
    "STARVED_SIGNAL",
}
"""What a policy does that has too little entropy left."""
_LUCK_RULES = {
    "ECHO_TRAP",
    "TEMPLATE_COLLAPSE",
    "LOW_ENTROPY_COLLAPSE",
    "LOW_SUCCESS",
    "FORMAT_COLLAPSE",
    "STARVED_SIGNAL",
}
"""What updates towards chance can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why it may have happened, and what would take the cause away."""

    text: str
    refuted_by: str
    """The observation that shows that it is not the cause."""
    founded: int = SHOWN
    key: str = ""
    """The setting that it is about, where `settings` does not say."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that take it away; empty where none does."""
    why: str = ""
    """What they do, as a sentence."""
    is_task: bool = False
    """The task must change, not the training: no setting of the trainer cures."""
    since: int | None = None
    """The first step that trained with it: a checkpoint from before does not have it."""
    is_undone: bool = False
    """It is gone already, and only its effect is left."""
    look: str = ""
    """What to look at, and what to do then, where no setting takes the cause away."""
    instead: str = ""
    """What another trainer is to be told, after "continue with"; empty where settings say it."""


def causes_of(
    onsets: Mapping[str, Interval], view: View, history: History, situation: Situation
) -> list[Cause]:
    """Causes of what the alarms report, those that the run shows first; none where nothing differs.

    Args:
        onsets: Rule of each alarm to the first and last step at which what it reports may have
            begun; the worst first, of equals the one that began first.
    """
    onsets = {**_recovered_fall(view), **onsets}
    onsets = {rule: onset for rule, onset in onsets.items() if rule not in NOTES}
    if not onsets:
        return []
    names = set(onsets)
    causes: list[Cause] = []
    if not names <= _OTHER_POLICY_RULES:
        causes += _reward_terms(names, view, situation)
        causes += _changes(onsets, situation)
    if "NOT_LEARNING" in names:
        causes += _never_with_rates(view, situation)
    elif not names <= _OTHER_POLICY_RULES:
        measured = (
            _entropy_term(names, view, history, situation),
            _rising_rate(onsets, history, situation),
            _luck(names, history, situation),
            _paying_term(names, history, situation),
            _regulariser(names, situation),
            _short_budget(names, view, situation),
            _no_selection(onsets, view, situation),
            _paid_elsewhere(names, view, situation),
            _forgetting(view),
        )
        causes += [cause for cause in measured if cause is not None]
    causes += _recipe(names, situation)
    causes += _unusual(names, situation)
    causes.sort(key=lambda cause: -cause.founded)
    other = _other_policy(names, view, history, situation)
    if other is not None:
        is_first = next(iter(onsets)) in _OTHER_POLICY_RULES
        causes = [other, *causes] if is_first else [*causes, other]
    return _each_once(causes)


def _each_once(causes: list[Cause]) -> list[Cause]:
    """Without a second cause about the same setting."""
    kept: list[Cause] = []
    seen: set[str] = set()
    for cause in causes:
        keys = {cause.key} if cause.key else set(cause.settings) or {cause.text}
        if not keys & seen:
            kept.append(cause)
        seen |= keys
    return kept


def unknown_words(situation: Situation) -> str:
    """What is said where no cause is found."""
    if situation.kind == "foreign" or situation.changes:
        return "not known."
    return "not known. No setting was changed while the run went on."


def _recovered_fall(view: View) -> dict[str, Interval]:
    """Between which steps a fall began that is being won back, and has no alarm any more."""
    if not view.is_recovering:
        return {}
    for outcome in view.deciding:
        if outcome.bottom is not None:
            held, steps = outcome.turns.pivots[-2][1], outcome.series.steps
            return {"LOW_SUCCESS": (steps[held.stop - 1] + 1, steps[outcome.bottom.start])}
    return {}


def _changes(onsets: Mapping[str, Interval], situation: Situation) -> Iterator[Cause]:
    """Settings that somebody changed shortly before, and what a branch changed."""
    for difference in changes_before(onsets, situation):
        text = change_words(difference, situation)
        if difference.near is not None:
            low, high = difference.near
            when = f"at step {low}" if low == high else f"between steps {low} and {high}"
            text += f"; the change in the metrics began {when}"
        is_undone = set_back(difference, situation) is not None
        is_typed = difference.old is not None and not isinstance(difference.old, Mapping)
        is_typed &= not isinstance(difference.old, list) or not difference.old
        yield Cause(
            text=text,
            refuted_by=f"a branch from before step {difference.change.step} without this change "
            "goes the same way",
            founded=LIKELY if difference.near is None else SHOWN,
            key=difference.key,
            settings={difference.key: difference.old} if is_typed and not is_undone else {},
            why="It is from before the change." if is_undone else "This undoes the change.",
            is_task=".params." in difference.key,
            since=difference.change.step,
            is_undone=is_undone,
        )


def _recipe(names: Collection[str], situation: Situation) -> list[Cause]:
    """Settings in which the run differs from the recipe that it extends."""
    recipe, _ = situation.recipe
    return [
        Cause(
            text=f"{key} is {setting_words(own)}; the recipe `{recipe}` that this run extends has "
            f"{setting_words(base)}",
            refuted_by=f"a run with the recipe's {key} goes the same way",
            founded=LIKELY,
            settings={key: base},
            why="This is the recipe's value.",
        )
        for key, own, base in list(recipe_differences(names, situation))[:MAX_RECIPE]
    ]


def _unusual(names: Collection[str], situation: Situation) -> list[Cause]:
    """Settings far above those of all recipes, of a run that extends none."""
    far_above = unusual(situation)
    if not far_above or situation.recipe[0] or STEP_RULES.isdisjoint(names):
        return []
    return [
        Cause(
            text=", ".join(
                f"{each.key} is {setting_words(each.own)} ({each.recipes} have at most "
                f"{setting_words(each.usual)})"
                for each in far_above
            ),
            refuted_by="a run with the recipes' values goes the same way",
            founded=LIKELY,
            settings={each.key: each.usual for each in far_above},
            why="Recipes train with these values.",
        )
    ]


def treatment_of(
    cause: Cause, causes: Collection[Cause], names: Collection[str], situation: Situation
) -> dict[str, Any]:
    """What a lost run is continued with: what takes the cause away, usual step sizes, and weights
    for samples of another policy.

    Steps that were too large once would be again, whatever else was wrong. Not where somebody
    changed a setting shortly before: then the run was well with what it had.

    Args:
        causes: All that are known.
        names: Rules of the open alarms, and the one that the collapse began with.
    """
    settings = dict(cause.settings)
    if settings and cause.since is None and not STEP_RULES.isdisjoint(names):
        usual = {each.key: each.usual for each in unusual(situation)}
        weights = [each.settings for each in causes if OLD_LOGPROBS in each.settings]
        for more in (usual, *weights):
            settings |= {key: value for key, value in more.items() if key not in settings}
    return settings


def _reward_terms(names: set[str], view: View, situation: Situation) -> Iterator[Cause]:
    """Terms of the reward that grew while success fell, the one that grew most first."""
    down = fallen_success(view)
    if down is None or "NOT_LEARNING" in names:
        return
    for term in risen_terms(view, down):
        name = term.metric.rpartition("/")[2]
        if name == "format":
            continue
        settings = _without_term(name, situation)
        yield Cause(
            text=f"the term `{name}` of the reward grew from {level_amount(term.before)} to "
            f"{level_amount(term.after)} while {metric(down.metric).in_sentence} fell from "
            f"{level_amount(down.before)} to {level_amount(down.after)}",
            refuted_by=f"at the steps of the fall, replies that `{name}` pays most solve their "
            "tasks as often as others",
            key="reward.shaping" if settings else "",
            settings=settings,
            why="Without this term the reward pays for solving the tasks.",
            instead=f"the term `{name}` taken out of the reward (weight 0)" * (name != "env"),
        )


def _paying_term(names: set[str], history: History, situation: Situation) -> Cause | None:
    """A term that the run adds to the reward makes much of what is trained on.

    It pays others than the environment pays. Where it is known to have grown, `_reward_terms` says
    so.
    """
    if STEP_RULES.isdisjoint(names) and "ECHO_TRAP" not in names:
        return None
    names_of_terms = [
        term.get("name")
        for term in situation.setting("reward.shaping") or []
        if isinstance(term, Mapping) and term.get("function") != "format"
    ]
    shares = {
        name: share
        for name in names_of_terms
        if (share := history.of_term(f"{TERM_SHARE}{name}")) >= PAID
        and history.of_term(f"{TERM_AGREEMENT}{name}") < AGREES
    }
    if not shares:
        return None
    name = max(shares, key=shares.__getitem__)
    agreement = f" (correlation {history.of_term(f'{TERM_AGREEMENT}{name}'):.2f})"
    return Cause(
        text=f"the term `{name}` makes {percent(shares[name])} of the differences in reward "
        f"between samples of one task, and does not pay what the environment pays{agreement}",
        refuted_by=f"without `{name}` the run goes the same way",
        founded=LIKELY,
        key="reward.shaping",
        settings=_without_term(name, situation),
        why="Without this term the reward pays for solving the tasks.",
    )


def _without_term(name: object, situation: Situation) -> dict[str, Any]:
    """Settings that take a term out of the reward; empty where the run adds none of that name."""
    terms = situation.setting("reward.shaping") or []
    indices = {term.get("name"): n for n, term in enumerate(terms) if isinstance(term, Mapping)}
    if name not in indices:
        return {}
    only = len(terms) == 1
    return {"reward.shaping": []} if only else {f"reward.shaping.{indices[name]}.weight": 0}


def _forgetting(view: View) -> Cause | None:
    """One set of the evaluation tasks rises while another falls, or their mean."""
    fixed = next((o for name in FIXED if (o := view.outcomes[name]).sets), None)
    moves = [] if fixed is None else moves_of_sets(fixed)
    if fixed is None or not moves or _gain(moves[-1]) < LEAST_LEARNED:
        return None
    is_shown = moves[0].direction == "fall"
    if not is_shown and not fixed.is_down:
        return None
    lost = f"`{set_name(moves[0])}`" if is_shown else "another set"
    return Cause(
        text=f"the policy learns {_with_rates(moves[-1])} and forgets "
        f"{_with_rates(moves[0]) if is_shown else lost}",
        refuted_by=f"{lost} falls as much when tasks like it are trained, too",
        key="tasks",
        look=f"Mix tasks like those of {lost} into the training tasks, or keep the policy nearer "
        "to where it started: by a KL penalty or a lower learning rate.",
    )


def _with_rates(move: Change) -> str:
    """`` `math` (30 % -> 50 %) ``."""
    before, after = percent(move.before.value), percent(move.after.value)
    return f"`{set_name(move)}` ({before} -> {after})"


def _gain(move: Change) -> float:
    return move.after.value - move.before.value


LEAST_LEARNED = 0.05
"""Success that a set of tasks gained while another fell, so that it was learned."""


def _paid_elsewhere(names: set[str], view: View, situation: Situation) -> Cause | None:
    """Training pays more while success falls, and no term of the reward is known to have grown."""
    claim = disagreement(view)
    if not names & {"REWARD_HACKING", "TRAIN_EVAL_DIVERGENCE"} or claim is None or claim.terms:
        return None
    if any(has_risen_set(view.outcomes[name]) for name in FIXED):
        return None
    up, down = (metric(change.metric).in_sentence for change in (claim.up, claim.down))
    terms = [term.get("name") for term in situation.setting("reward.shaping") or []]
    if terms and claim.up.metric != "rollout/success_rate":
        listed = " and ".join(f"`{name}`" for name in terms)
        return Cause(
            text=f"{up} rose while {down} fell, and the run adds {listed} to the environment's "
            "reward",
            refuted_by="replies with a high return solve their tasks as often as others",
            settings={"reward.shaping": []},
            why="Without added terms the reward pays for solving the tasks.",
        )
    pays = "the reward pays for something else than solving the tasks (reward hacking)"
    if not claim.down.metric.startswith("rollout/"):
        pays = f"either {pays}, or the policy overfits to the training tasks"
    return Cause(
        text=f"{up} rose while {down} fell: {pays}",
        refuted_by=f"a checkpoint from before the fall no longer reaches its {down} either: then "
        "the evaluation has changed",
        founded=LIKELY,
        look="First read three replies with a high return: do they solve their tasks? If not, take "
        "what they are paid for out of the reward. If so, the policy overfits: use more training "
        "tasks. Go on from the checkpoint of the best evaluation.",
    )


def _luck(names: set[str], history: History, situation: Situation) -> Cause | None:
    """Which of the same replies are paid is decided by chance."""
    if not names & _LUCK_RULES:
        return None
    text, params = luck_words(history.luck, situation.tasks), luck_params(situation.tasks)
    if not text:
        return None
    refuted_by = "samples of one task with the same actions earn the same reward"
    if params:
        return Cause(
            text=text,
            refuted_by=refuted_by,
            settings=dict.fromkeys(params, 0),
            why="Then moves go where they aim, and reading the prompt pays.",
            is_task=True,
        )
    settings = undivided(
        situation.setting("advantage.kind"), situation.setting("reward.normalization")
    )
    if not settings:
        return Cause(text=text, refuted_by=refuted_by, is_task=True)
    return Cause(
        text=f"{text}, and the division by the group's reward std favours the safe choice",
        refuted_by=refuted_by,
        settings=settings,
        why="Then the advantage is not divided by the group's reward std, and a rare large reward "
        "keeps its weight.",
    )


def _entropy_term(
    names: set[str], view: View, history: History, situation: Situation
) -> Cause | None:
    """A bonus while entropy rises, or a penalty on entropy while too little variety is left."""
    coefficient, entropy = situation.number("loss.entropy_coef"), view.channels["entropy_up"]
    if coefficient < 0 and names & _NO_VARIETY_RULES:
        return Cause(
            text="the loss penalises entropy, so replies become alike: loss.entropy_coef is "
            f"{coefficient:g}",
            refuted_by="replies become as much alike without the term",
            settings={"loss.entropy_coef": 0},
            why="Without the term only the reward moves the policy.",
        )
    rise = entropy.shown_level / entropy.baseline if entropy.count else math.nan
    since_start = history.entropy / history.first_entropy if history.first_entropy > 0 else math.nan
    if rise >= ENTROPY_RISE:
        risen = f"{rise:.1f} times its minimum"
    elif since_start >= FIRST_RISE:
        risen = f"{since_start:.1f} times what it was at the first step"
    else:
        return None
    if not coefficient > 0:
        return None
    return Cause(
        text=f"the entropy bonus outweighs the reward: loss.entropy_coef is {coefficient:g}, and "
        f"entropy is {risen}",
        refuted_by="entropy rises as much without the bonus",
        settings={"loss.entropy_coef": 0},
        why="Without the bonus only the reward moves the policy.",
    )


LONG_HELD = 20
"""Steps with one learning rate without a fall, after which it is known to do no harm."""


def _rising_rate(
    onsets: Mapping[str, Interval], history: History, situation: Situation
) -> Cause | None:
    """The learning rate rose after the best success; a decay since then does not count.

    Success counts as its best until its fall is beyond chance, so the rate from before the earliest
    step at which it may have begun counts, too.
    """
    early, peak = history.rate_at_best, history.peak_rate
    names = onsets.keys() & STEP_RULES
    first = min((onsets[name][0] for name in names), default=0)
    before, when = history.rate_before(first), "when success was best"
    if RATE_RISE * before <= early:
        early, when = before, f"before step {first}"
    if not names or not early > 0 or not peak >= RATE_RISE * early:
        return None
    base = situation.recipe[1].get("optim.lr", math.inf)
    # On a slow way up the fall began at the latest with the rate of the first alarm's last step.
    reached = history.rate_before(min(onsets[name][1] for name in names) + 1)
    lower = base if isinstance(base, float) and base < peak else rounded(max(early, reached) / 3)
    why = "Success was lost on the way up, so the rate stays well below the one reached there."
    if lower != base and history.held_rate(early) >= LONG_HELD:
        lower, why = early, "With this rate success held."
    return Cause(
        text=f"the learning rate rose from {early:.2g}, {when}, to {peak:.2g}",
        refuted_by="the run goes the same way with the earlier learning rate",
        settings={"optim.lr": lower},
        instead=f"a learning rate of {lower:g}",
        why=why,
    )


def rounded(value: float) -> float:
    """One significant digit, downwards.

    >>> rounded(0.000178), rounded(1e-4)
    (0.0001, 0.0001)
    """
    if not value > 0 or not math.isfinite(value):
        return value
    scale = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return float(f"{math.floor(value / scale + 1e-9) * scale:.0e}")


def _regulariser(names: set[str], situation: Situation) -> Cause | None:
    if "REGULARISER_DOMINATES" not in names:
        return None
    kl = situation.number("loss.kl_coef")
    if not kl > 0:
        return None
    return Cause(
        text=f"the KL penalty outweighs the reward: loss.kl_coef is {kl:g}",
        refuted_by="the task's gradient is as small without the penalty",
        settings={"loss.kl_coef": rounded(kl / 10)},
        why="A smaller penalty leaves more of each update to the reward.",
    )


def _short_budget(names: set[str], view: View, situation: Situation) -> Cause | None:
    """Replies run into their cap: they did so when success was at its best, or do so more and more.

    Only in the first case a longer limit is known to help: the others may loop.
    """
    truncated = view.channels["truncated"]
    if not names & {"FORMAT_COLLAPSE", "LENGTH_SATURATION", "LOW_SUCCESS"}:
        return None
    least = min([truncated.low, *truncated.first_values[:1]])  # a level is of several steps
    if not least >= 0.1 or names.isdisjoint(("FORMAT_COLLAPSE", "LENGTH_SATURATION")):
        is_symptom = bool(names & {"ENTROPY_EXPLOSION", "DEGENERATE_TEXT"})
        if is_symptom or not truncated.is_raised or fallen_success(view) is None:
            return None
        return Cause(
            text="the share of replies that are cut off at their length limit grew from "
            f"{percent(least)} to {percent(truncated.shown_level)}",
            refuted_by="replies that are not cut off fail as often",
            founded=LIKELY,
            key="context.max_response_tokens",
            look="First compare replies that are cut off with others from the same steps. If only "
            "the others still succeed, go back to a checkpoint from before replies grew longer, "
            "and raise the length limit (`context.max_response_tokens`) or make long replies cost.",
        )
    budget = situation.number("context.max_response_tokens")
    return Cause(
        text=f"replies are too long for their limit: {percent(truncated.shown_level)} are cut off, "
        f"and {percent(least)} were at the least",
        refuted_by="replies that are cut off fail with a longer limit too",
        settings={"context.max_response_tokens": 2 * int(budget)} if budget > 0 else {},
        why="A reply that is cut off loses the answer at its end.",
    )


def _no_selection(onsets: Mapping[str, Interval], view: View, situation: Situation) -> Cause | None:
    """Groups without spread train nothing: worth filtering only while some groups have spread.

    They are a cause only where they came first: in a run that is lost all replies fail alike.
    """
    strategy, spread = situation.setting("selection.strategy"), view["spread"]
    if "EMPTY_SELECTION" in onsets and strategy not in (None, "none"):
        return Cause(
            text=f"the filter selection.strategy={strategy} keeps no group",
            refuted_by="no group has a reward spread either",
            settings={"selection.strategy": "none"},
            why="Without the filter every group trains.",
        )
    share = view.channels["zero_spread"]
    began = min(low for low, _ in onsets.values())
    came_first = share.is_raised and share.onset_step is not None and share.onset_step < began
    is_shown = share.count > 0 and (share.low >= NO_SPREAD or came_first)
    has_spread = spread.count > 0 and spread.level > 0
    if not onsets.keys() & {"ECHO_TRAP", "TEMPLATE_COLLAPSE"} or not is_shown or not has_spread:
        return None
    return Cause(
        text=f"in {percent(share.shown_level)} of the groups all samples earn the same reward, so "
        "most rollouts teach nothing",
        refuted_by="the run goes the same way with groups whose rewards differ",
        settings={"selection.strategy": "top_p", "selection.value": 0.9}
        if strategy == "none"
        else {},
        why="Only groups whose rewards differ show which replies are better.",
    )


def _other_policy(
    names: set[str], view: View, history: History, situation: Situation
) -> Cause | None:
    """Why sampler and trainer differ: by the version of its weights, by what it records, or else by
    how it computes."""
    if not names & _OTHER_POLICY_RULES or math.isnan(history.lag):
        return None
    ratio = view["mismatch_ratio"]
    if history.lag >= 1:
        lag = f"{history.lag:.2g} updates" if history.lag > 1 else "1 update"
        text = f"the sampler's weights are {lag} behind the trainer's"
        why = (
            "Then each sample counts by how likely the trainer finds it, whichever weights "
            "sampled it. Syncing the sampler before every step removes the cause."
        )
    elif ratio.is_raised:
        return Cause(
            text="the sampler has the trainer's weights, and records probabilities that it did "
            "not sample with: honest records have a mean ratio of 1",
            refuted_by="the mean ratio is 1 once the sampler records what it samples with",
            settings=_unless_set(
                {"off_policy.old_logprobs": "trainer", "off_policy.correction": "none"}, situation
            ),
            why="Then the update does not use the records. In the sampler, check that "
            "log-probabilities are taken after temperature, top_p and top_k.",
        )
    else:
        text = "the sampler has the trainer's weights, and computes other probabilities with them"
        why = (
            "Then each sample counts by how likely the trainer finds it. The same precision and "
            "kernels in both remove the cause."
        )
    fits = not history.trajectory_kl > MOST_TRAJECTORY_KL
    corrected = {
        OLD_LOGPROBS: "trainer",
        "off_policy.correction": "tis",
        "off_policy.level": "sequence" if fits else "token",
    }
    correction, low = situation.setting("off_policy.correction"), situation.number("off_policy.low")
    lets_all_through = situation.number("off_policy.high") >= NEVER_BINDS and not low > 0
    is_corrected = correction not in (None, "none") and not (
        correction == "mis" and lets_all_through
    )
    return Cause(
        text=text,
        refuted_by="sampler and trainer differ as much right after a weight sync",
        settings={} if is_corrected else corrected,
        why=why,
    )


def _unless_set(settings: Mapping[str, Any], situation: Situation) -> Mapping[str, Any]:
    """The settings, or none where all of them hold already."""
    held = all(situation.setting(key) == value for key, value in settings.items())
    return {} if held else settings


def _never_with_rates(view: View, situation: Situation) -> list[Cause]:
    hint, instructions = (
        situation.setting(f"context.{name}") for name in ("format_hint", "instructions")
    )
    rates = [view[name] for name in ("format", "action") if view[name].count]
    worst = min((channel.shown_level for channel in rates), default=math.nan)
    is_unread = worst < 0.5
    if is_unread and (hint is False or instructions is False):
        return [
            Cause(
                text="the prompt does not say how to reply, and only "
                f"{percent(worst)} of the replies can be used",
                refuted_by="replies to a prompt that names the format cannot be used either",
                settings={"context.instructions": True, "context.format_hint": True},
                why="A model that does not know the format and the actions cannot earn a reward.",
            )
        ]
    if is_unread:
        return [
            Cause(
                text=f"only {percent(worst)} of the replies can be used: the policy does not know "
                "the format; warm-start it on demonstrations (`echoscope sft generate`)",
                refuted_by="well-formed replies earn no reward either",
            )
        ]
    if rates:
        return [
            Cause(
                text="replies are well formed, but the tasks are too hard for this policy, or the "
                "grader rejects everything",
                refuted_by="one episode succeeds",
                is_task=True,
            )
        ]
    return []
