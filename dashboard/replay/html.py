"""Pieces of the replay as escaped HTML: facts, turns, tool calls, boards. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from echoscope.store.importers.draft import reconstructions
from echoscope.store.models import Detokenizer
from echoscope.store.records import (
    FinishReason,
    Split,
    StopReason,
    ToolCall,
    Trajectory,
    TrajectoryOutcome,
    Turn,
)

from ..escaping import attribute, cut, cut_note, escape, marked
from ..words import NONE
from . import tokens
from .boards import board_html, picture_html, player_position
from .frames import Card, Position, read_frame
from .heat import HEATS, Heat, Scale, available, trajectory_scale
from .listing import NEVER_TRAINED, SPLITS

STYLE = (
    "<style>"
    ".es-facts{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;font-size:.88rem;line-height:1.55;"
    "padding:.1rem 0}"
    ".es-facts span{white-space:nowrap;font-variant-numeric:tabular-nums}"
    ".es-facts .es-long{white-space:normal;overflow-wrap:anywhere}"
    ".es-facts i{font-style:normal;opacity:.65;margin-right:.3rem}"
    ".es-badge{display:inline-block;border:1px solid currentColor;border-radius:.6rem;"
    "padding:0 .5rem;font-weight:600}"
    ".es-good{color:light-dark(#146c46,#56c596)}.es-bad{color:light-dark(#b3261e,#ff8a80)}"
    ".es-plain{opacity:.75}"
    ".es-boards{display:flex;flex-wrap:wrap;gap:.6rem;align-items:flex-start}"
    ".es-boards figure{margin:0;flex:0 1 auto;min-width:8rem;max-width:100%}"
    ".es-boards figcaption{font-size:.78rem;opacity:.75}"
    ".es-head{font-weight:600;font-size:.8rem;line-height:1.6;opacity:.7;margin-top:.35rem}"
    ".es-talk{overflow-y:auto;position:relative;height:calc(100vh - 20rem);min-height:20rem;"
    "border:1px solid rgba(128,128,128,.35);border-radius:.5rem;padding:.3rem .6rem}"
    ".es-turn{border-left:3px solid transparent;padding:.15rem 0 .6rem .6rem}"
    ".es-turn.es-now{border-left-color:#3b6fd4}"
    ".es-turn .es-facts{font-size:.85rem}"
    ".es-asked .es-text{border-style:dotted;font-size:12.5px;line-height:1.45;padding:.3rem .6rem}"
    ".es-call{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem;font-size:.85rem;"
    "border:1px solid rgba(128,128,128,.35);border-left:3px solid #8a63d2;border-radius:.4rem;"
    "margin:.3rem 0;padding:.2rem .6rem}.es-call .es-facts{grid-column:1/-1}"
    ".es-call-name{font-family:monospace;font-weight:600}.es-call-key{opacity:.65}"
    ".es-call-value{font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere}"
    "@media(max-width:640px){.es-talk{height:auto;max-height:45vh;min-height:0}}"
    "</style>"
)
HEAT_ORDER = ("information", "advantage", "entropy", "logprob")
OTHER_TEXT, OTHER_TOKENS = 4_000, 500
"""Characters and tokens of a response that stands beside the chosen one."""
MAX_CALLS = 16
_CALL_CHARS = 2_000
_FACT_CHARS = 200


def fact(name: str, value: str, *, css: str = "", hint: str = "") -> str:
    """One name and value; both may be hostile."""
    title = f' title="{attribute(hint)}"' if hint else ""
    label = f"<i>{escape(name, _FACT_CHARS)}</i>" if name else ""
    return f'<span class="{css}"{title}>{label}{escape(value, _FACT_CHARS)}</span>'


def _badge(text: str, mood: str) -> str:
    return f'<span class="es-badge es-{mood}">{escape(text, _FACT_CHARS)}</span>'


def _number(value: float | None) -> str:
    is_known = value is not None and not math.isnan(value)
    return f"{value:+.3g}" if is_known and value else "0" if is_known else NONE


def _earned(value: float) -> str:
    return "unknown" if math.isnan(value) else _number(value)


def _fact_of(name: str, value: str | float | None, form: str = "{}") -> list[str]:
    """A fact; none where the value is not known."""
    return [] if value is None else [fact(name, form.format(value), css="es-long")]


def _flag(value: bool | None, true: str, false: str) -> list[str]:
    """One of two badges; none where an imported file does not say."""
    return [] if value is None else [true if value else false]


def success_badge(is_success: bool | None) -> str:
    if is_success is None:
        return _badge("success unknown", "plain")
    return _badge("solved", "good") if is_success else _badge("failed", "bad")


def trajectory_facts(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    """Everything that is known about an episode, in a line or two; a `<div>`."""
    terms = {k: v for k, v in trajectory.reward_terms.items() if v or k == "env"}
    parts = [
        success_badge(trajectory.is_success),
        _kept_badge(trajectory, outcome),
        _return_fact(trajectory),
        *(fact(k, _number(v)) for k, v in list(terms.items())[:12] if len(terms) > 1),
        *_advantage_fact(trajectory, outcome.advantage if outcome else None),
        *_ended(trajectory),
        fact("turns", str(trajectory.num_turns)),
        *_fact_of("tokens", trajectory.num_sampled_tokens or None, "{:,}"),
        *_fact_of("time", trajectory.duration_s, "{:.2g} s"),
        *_fact_of("task", trajectory.tag or None),
        *_fact_of(
            "environment", trajectory.env_id if trajectory.env_id != trajectory.tag else None
        ),
        fact("group", f"{trajectory.group_index}, sibling {trajectory.sibling_index}"),
        *_fact_of("policy version", trajectory.policy_version),
        *_fact_of("seed of the task", trajectory.env_seed),
        *_fact_of("seed of the environment's randomness", trajectory.noise_seed),
        *(
            _badge(f"reconstructed: {note}", "plain")
            for note in reconstructions(trajectory.extra).values()
        ),
    ]
    if trajectory.source:
        parts.append(fact("from", trajectory.source, css="es-long"))
    return f'<div class="es-facts">{"".join(parts)}</div>'


def headline(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    """How an episode ended and whether it was trained on, in one line; a `<div>`."""
    turns = f"{trajectory.num_turns} {'turn' if trajectory.num_turns == 1 else 'turns'}"
    if trajectory.stop_reason is not StopReason.UNKNOWN:
        turns += f", ended by {trajectory.stop_reason.value}"
    parts = [
        success_badge(trajectory.is_success),
        _return_fact(trajectory),
        *_advantage_fact(trajectory, outcome.advantage if outcome else None),
        _kept_badge(trajectory, outcome),
        fact("", turns),
    ]
    return f'<div class="es-facts">{"".join(parts)}</div>'


def _return_fact(trajectory: Trajectory) -> str:
    value = _earned(trajectory.episode_return)
    return fact("return", value, hint="environment, format and shaping")


def _advantage_fact(trajectory: Trajectory, advantage: float | None) -> list[str]:
    """What the file of another trainer does not hold is left out."""
    is_left_out = advantage is None and trajectory.split is Split.IMPORT
    return [] if is_left_out else [fact("advantage", _number(advantage))]


def _ended(trajectory: Trajectory) -> list[str]:
    """How an episode ended, where that is known."""
    if trajectory.stop_reason is StopReason.UNKNOWN:
        return []
    return [fact("ended by", trajectory.stop_reason.value)]


def _kept_badge(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    split = trajectory.split.value
    if split in NEVER_TRAINED:
        return _badge(f"{SPLITS[split].lower()}, never trained on", "plain")
    if outcome is None and trajectory.split is Split.IMPORT:
        return ""
    if outcome is None:
        return _badge("no update has used it yet", "plain")
    if outcome.kept:
        return _badge("kept", "good")
    return _badge(f"not trained on: {outcome.drop_reason or 'no reason given'}", "bad")


def turn_facts(turn: Turn) -> str:
    """Actions, reward, flags and numbers of a turn; a `<div>`.

    A turn that another trainer wrote may say neither its actions nor how its reply ended.
    """
    actions = ", ".join(turn.actions[:20])
    says_actions = bool(actions) or turn.is_valid is not None
    ends = turn.finish_reason.value
    parts = [
        *([fact("executed", actions or "none", css="es-long")] if says_actions else []),
        fact("reward", _earned(turn.reward)),
        *([fact("format penalty", _number(turn.format_penalty))] if turn.format_penalty else []),
        *(fact(name, _number(value)) for name, value in list(turn.shaping.items())[:8]),
        *_flag(turn.is_valid, _badge("valid", "good"), _badge("not valid", "bad")),
        *_flag(
            turn.is_effective,
            _badge("action had an effect", "plain"),
            _badge("action had no effect", "bad"),
        ),
        *([] if turn.finish_reason is FinishReason.UNKNOWN else [fact("response ended by", ends)]),
        *_fact_of("policy version", turn.policy_version),
        *(fact(name, f"{value:.4g}") for name, value in list(turn.info.items())[:16]),
    ]
    if turn.response_tokens is not None:
        parts.append(fact("tokens", f"{len(turn.response_tokens):,}"))
    return f'<div class="es-facts">{"".join(parts)}</div>'


def turn_html(turn: Turn, reply: str, hits: Sequence[str], *, is_now: bool) -> str:
    """What the policy saw at a turn, and below it what it said; a `<div>`.

    Args:
        reply: The response as HTML.
        hits: What a search matched in the observation.
        is_now: It is the turn that the address names.
    """
    actions = ", ".join(turn.actions[:20])
    line = [
        fact("", f"Turn {turn.index}"),
        fact("action", actions, css="es-long")
        if actions
        else ""
        if turn.is_valid is None
        else _badge("no action", "bad"),
        *_rewarded(turn.reward),
        *_flag(turn.is_valid, "", _badge("not valid", "bad")),
        *_flag(turn.is_effective, "", _badge("action had no effect", "bad")),
    ]
    if not (turn.observation or turn.response):  # a file of numbers only
        note = '<div class="es-note">the file holds no text of this turn</div>'
        facts = f'<div class="es-facts">{"".join(line)}</div>'
        return f'<div class="es-turn{" es-now" * is_now}">{facts}{note}</div>'
    return (
        f'<div class="es-turn{" es-now" * is_now}"><div class="es-asked">'
        f"{heading(f'Observation of turn {turn.index}')}{text_box(turn.observation, hits)}</div>"
        f'<div class="es-facts">{"".join(line)}</div><div class="es-reply">{reply}</div>'
        f"{calls_html(turn)}</div>"
    )


def _rewarded(reward: float) -> list[str]:
    """The reward of a turn, unless it is 0."""
    if math.isnan(reward):
        return [fact("reward", "unknown")]
    return [fact("reward", _number(reward))] if reward else []


def calls_html(turn: Turn) -> str:
    """The tool calls of a turn: name, arguments and result of each; empty without any."""
    call_texts = [_call_html(call) for call in turn.calls[:MAX_CALLS]]
    if len(turn.calls) > MAX_CALLS:
        call_texts.append(f'<div class="es-note">{len(turn.calls) - MAX_CALLS} more calls</div>')
    return f'<div class="es-calls">{"".join(call_texts)}</div>' if call_texts else ""


def _call_html(call: ToolCall) -> str:
    head = _badge("call", "plain") + fact("", call.name, css="es-long es-call-name")
    if call.problem:
        head = _badge("not a call", "bad") + fact("", call.problem, css="es-long")
    rows = [("arguments" if not call.problem else "written", call.arguments)]
    arguments = None if call.problem else _arguments(call.arguments)
    if arguments is not None:
        rows = arguments
    result = call.result or "nothing: the call was not played"
    cells = "".join(
        f'<span class="es-call-key">{escape(key, _FACT_CHARS)}</span>'
        f'<span class="es-call-value" dir="auto">{escape(value, _CALL_CHARS)}</span>'
        for key, value in [*rows, ("result", result)]
    )
    return f'<div class="es-call"><div class="es-facts">{head}</div>{cells}</div>'


def _arguments(text: str) -> list[tuple[str, str]] | None:
    """The arguments of a call, one a row; None for text that is not a JSON object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    return [(key, json.dumps(value, ensure_ascii=False)) for key, value in values.items()][:20]


def frame_after(trajectory: Trajectory, turn: int) -> str | None:
    """The frame of the state that the actions of a turn led to."""
    after = turn + 1
    return trajectory.turns[after].frame if after < trajectory.num_turns else trajectory.final_frame


def _start(trajectory: Trajectory) -> tuple[tuple[str, Position], ...]:
    first = trajectory.turns[0].frame if trajectory.turns else None
    player = None if first is None else player_position(first)
    return () if player is None else (("start", player),)


def turn_boards(trajectory: Trajectory, turn: Turn) -> str:
    """The board before and after the actions of a turn; empty where nothing can be drawn."""
    before, after = turn.frame, frame_after(trajectory, turn.index)
    marks = _start(trajectory)
    shots = []
    if before is not None:
        shots.append(_figure(_board(before, marks), "as observed"))
    if after is not None:
        player = player_position(after)
        slipped = (
            (("slip", player),) if player is not None and turn.info.get("slipped", 0) > 0 else ()
        )
        caption = "afterwards, after a slip" if slipped else "afterwards"
        shots.append(_figure(_board(after, (*marks, *slipped)), caption))
    if turn.image is not None:
        # Of an imported trajectory nobody says what was shown.
        is_own = trajectory.source is None
        caption = "image, not shown to the policy" if is_own else "image of the observation"
        shots.append(_figure(picture_html(turn.image, caption, max_width=190), caption))
    if trajectory.final_image is not None and turn.index == trajectory.num_turns - 1:
        caption = "image afterwards"
        shots.append(_figure(picture_html(trajectory.final_image, caption, max_width=190), caption))
    return f'<div class="es-boards">{"".join(shots)}</div>' if shots else ""


def _board(frame: str, marks: Sequence[tuple[str, Position]]) -> str:
    """A board small, a card as wide as one can read it."""
    width = 460 if isinstance(read_frame(frame), Card) else 190
    return board_html(frame, marks, max_width=width)


def _figure(image: str, caption: str) -> str:
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def heading(text: str) -> str:
    """A small heading of ours or of theirs."""
    return f'<div class="es-head">{escape(text, _FACT_CHARS)}</div>'


def text_box(text: str, hits: Sequence[str] = ()) -> str:
    """Hostile text in a box, newlines kept, with what a search matched in it marked."""
    safe, left_out = cut(text)
    note = f'<span class="es-cut">[{cut_note(left_out)}]</span>' if left_out else ""
    return f'<div class="es-text" dir="auto">{marked(safe, hits) or "&#160;"}{note}</div>'


def ending_html(trajectory: Trajectory) -> str:
    """What the policy would have seen next; empty where nothing is stored."""
    if not trajectory.final_observation:
        return ""
    return (
        f'<div class="es-turn es-asked">{heading("Observation after the last turn")}'
        f"{text_box(trajectory.final_observation)}</div>"
    )


def reply_html(
    turn: Turn,
    outcome: TrajectoryOutcome | None,
    colours: tuple[Heat, Scale] | None,
    pieces_of: Callable[[Sequence[int]], list[str] | None],
    *,
    hits: Sequence[str] = (),
    is_short: bool = False,
) -> str:
    """A response with its regions, or its tokens in colours where these were recorded."""
    values = colours[0].read(turn, outcome) if colours else None
    if colours is None or values is None:
        return tokens.text_html(turn, OTHER_TEXT if is_short else tokens.MAX_CHARS, hits)
    assert turn.response_tokens is not None  # or there would be no values
    size = OTHER_TOKENS if is_short else tokens.MAX_TOKENS
    pieces = pieces_of(turn.response_tokens[:size].tolist())
    heat, scale = colours
    coloured = tokens.heat_html(turn, heat, values, scale, pieces=pieces, size=size)
    if pieces is not None:
        return coloured
    note = "This run has no tokenizer.json: one cell per token, and the text below."
    return f'{coloured}<div class="es-note">{note}</div>{tokens.text_html(turn)}'


def episode_html(
    trajectory: Trajectory,
    outcome: TrajectoryOutcome | None,
    *,
    detokenizer: Detokenizer | None = None,
    most_turns: int,
) -> str:
    """A whole episode for a page without controls: facts, dialogue, boards, coloured tokens.

    Tokens are coloured by the first of HEAT_ORDER that was recorded, where a tokenizer spells them.
    """
    recorded = available(trajectory, outcome) if detokenizer is not None else []
    heat = HEATS.get(next((name for name in HEAT_ORDER if name in recorded), ""))
    colours = None if heat is None else (heat, trajectory_scale(heat, trajectory, outcome))
    parts = [trajectory_facts(trajectory, outcome)]
    parts += [tokens.legend_html(*colours)] if colours else []
    parts.append('<div class="es-talk">')
    for turn in trajectory.turns[:most_turns]:
        pieces_of = (lambda _: None) if detokenizer is None else detokenizer.pieces
        reply = reply_html(turn, outcome, colours, pieces_of)
        parts += [turn_html(turn, reply, (), is_now=False), turn_boards(trajectory, turn)]
    left_out = trajectory.num_turns - most_turns
    more = f'<div class="es-note">{left_out} more turns are not shown</div>'
    return "".join([*parts, more if left_out > 0 else ending_html(trajectory), "</div>"])
