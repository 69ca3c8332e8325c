"""Pieces of the replay as escaped HTML: facts, turns, tool calls, boards. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

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
from echoscope.text.amounts import counted

from ..charts.theme import style_sheet
from ..escaping import attribute, escape
from ..words import NEVER_TRAINED, NONE, SPLITS, UNKNOWN, kept_word, number_words
from . import tokens
from .boards import Card, Position, board_html, picture_html, read_frame
from .heat import HEATS, Heat, HeatScale, available, trajectory_scale

STYLE = style_sheet(Path(__file__).parent / "look" / "episode.css")
HEAT_ORDER = ("information", "advantage", "entropy", "logprob")
OTHER_TEXT, OTHER_TOKENS = 4_000, 500
"""Characters and tokens of a response that stands beside the chosen one."""
TALK = 'class="es-talk" role="region" aria-label="Conversation" tabindex="0"'
"""Attributes of what holds a conversation: it scrolls by keys, too."""
MAX_CALLS = 16
BOARD_PX = 140
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"
"""Around the result of a call in an observation, where a trainer writes them."""
_CALL_CHARS = 2_000
_LINE_CHARS = 110
"""Of the arguments of a call that stand in one line with its name."""
_FACT_CHARS = 200


def fact(name: str, value: str, *, css: str = "", hint: str = "") -> str:
    """One name and value; both may be hostile."""
    title = f' title="{attribute(hint)}"' if hint else ""
    label = f"<i>{escape(name, _FACT_CHARS)}</i>" if name else ""
    return f'<span class="{css}"{title}>{label}{escape(value, _FACT_CHARS)}</span>'


def _badge(text: str, mood: str) -> str:
    return f'<span class="es-badge es-{mood}">{escape(text, _FACT_CHARS)}</span>'


def _number(value: float | None) -> str:
    return NONE if value is None else number_words(value, is_signed=True)


def _earned(value: float) -> str:
    return "unknown" if math.isnan(value) else _number(value)


def _fact_of(name: str, value: str | float | None, form: str = "{}") -> str:
    """A fact; nothing where the value is not known."""
    return "" if value is None else fact(name, form.format(value), css="es-long")


def _flag(value: bool | None, true: str, false: str) -> str:
    """One of two badges; nothing where an imported file does not say."""
    return "" if value is None else true if value else false


def success_badge(is_success: bool | None) -> str:
    if is_success is None:
        return _badge("success unknown", "plain")
    return _badge("solved", "good") if is_success else _badge("failed", "bad")


def trajectory_facts(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    """Everything that is known about an episode, in a line or two; a `<div>`."""
    stop, is_import = trajectory.stop_reason, trajectory.split is Split.IMPORT
    advantage = outcome.advantage if outcome else None
    terms = {k: v for k, v in trajectory.reward_terms.items() if v or k == "env"}
    parts = [
        success_badge(trajectory.is_success),
        _kept_badge(trajectory, outcome),
        _return_fact(trajectory),
        *(fact(k, _number(v)) for k, v in list(terms.items())[:12] if len(terms) > 1),
        # What the file of another trainer does not hold is left out.
        "" if advantage is None and is_import else fact("advantage", _number(advantage)),
        "" if stop is StopReason.UNKNOWN else fact("ended by", stop.value),
        fact("turns", str(trajectory.num_turns)),
        _fact_of("tokens", trajectory.num_sampled_tokens or None, "{:,}"),
        _fact_of("time", trajectory.duration_s, "{:.2g} s"),
        _fact_of("task", trajectory.tag or None),
        _fact_of("environment", trajectory.env_id if trajectory.env_id != trajectory.tag else None),
        fact("group", f"{trajectory.group_index}, sibling {trajectory.sibling_index}"),
        _fact_of("policy version", trajectory.policy_version),
        _fact_of("seed of the task", trajectory.env_seed),
        _fact_of("seed of the environment's randomness", trajectory.noise_seed),
        *(
            _badge(f"reconstructed: {note}", "plain")
            for note in reconstructions(trajectory.extra).values()
        ),
        _fact_of("from", trajectory.source or None),
    ]
    return f'<div class="es-facts">{"".join(parts)}</div>'


def headline(
    trajectory: Trajectory,
    outcome: TrajectoryOutcome | None,
    labels: Sequence[str] = (),
    *,
    is_short: bool = False,
) -> str:
    """How an episode ended, whether it was trained on, and its labels, in one line; a `<div>`.

    Args:
        is_short: Leave out what the update made of it.
    """
    stop = trajectory.stop_reason
    is_cut = stop.is_truncated and not trajectory.is_success
    is_silent = outcome is None and trajectory.split is Split.IMPORT
    says_return = not is_silent or not math.isnan(trajectory.episode_return)
    parts = [
        _badge(f"cut off by {stop.value}", "bad")
        if is_cut
        else success_badge(trajectory.is_success),
        _return_fact(trajectory) if says_return else "",
        "" if is_short else _trained(trajectory, outcome),
        fact("", counted(trajectory.num_turns, "turn")),
        *(_badge(label, "plain") for label in labels),
    ]
    return f'<div class="es-facts">{"".join(parts)}</div>'


def _trained(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    """What the update made of an episode, in a word, and with which advantage."""
    if outcome is not None and not outcome.kept:
        return _badge("not trained on", "bad")
    split = trajectory.split.value
    advantage = outcome.advantage if outcome and split not in NEVER_TRAINED else None
    word = kept_word(outcome.kept if outcome else None, split)
    badge = "" if word == UNKNOWN else _badge(word, "good" if outcome else "plain")
    return ("" if advantage is None else fact("advantage", _number(advantage))) + badge


def _return_fact(trajectory: Trajectory) -> str:
    value = _earned(trajectory.episode_return)
    return fact("return", value, hint="environment, format and shaping")


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
        fact("executed", actions or "none", css="es-long") if says_actions else "",
        fact("reward", _earned(turn.reward)),
        fact("format penalty", _number(turn.format_penalty)) if turn.format_penalty else "",
        *(fact(name, _number(value)) for name, value in list(turn.shaping.items())[:8]),
        _flag(turn.is_valid, _badge("valid", "good"), _badge("not valid", "bad")),
        _flag(
            turn.is_effective,
            _badge("action had an effect", "plain"),
            _badge("action had no effect", "bad"),
        ),
        "" if turn.finish_reason is FinishReason.UNKNOWN else fact("response ended by", ends),
        _fact_of("policy version", turn.policy_version),
        *(fact(name, f"{value:.4g}") for name, value in list(turn.info.items())[:16]),
        "" if turn.response_tokens is None else fact("tokens", f"{len(turn.response_tokens):,}"),
    ]
    return f'<div class="es-facts">{"".join(parts)}</div>'


def turn_html(
    trajectory: Trajectory,
    index: int,
    reply: str,
    hits: Sequence[str] = (),
    *,
    is_now: bool = False,
) -> str:
    """What the policy saw at a turn, below it what it said, and beside it the board; a `<div>`.

    Args:
        reply: The response as HTML.
        hits: What a search matched in the observation.
        is_now: It is the turn that the address names.
    """
    turn = trajectory.turns[index]
    if turn.observation or turn.response:
        new = beyond_results(turn.observation, trajectory.turns[index - 1] if index else None)
        asked = f'<div class="es-asked">{text_box(new, hits)}</div>' if new else ""
        said = f'{asked}<div class="es-reply">{reply}</div>{calls_html(turn)}'
    else:  # a file of numbers only
        said = '<div class="es-note">the file holds no text of this turn</div>'
    return (
        f'<div class="es-turn{" es-now" * is_now}"><div class="es-said">{turn_line(turn)}{said}'
        f"</div>{turn_boards(trajectory, index)}</div>"
    )


def turn_line(turn: Turn) -> str:
    """The number of a turn, what was done and what it earned; a `<div>`."""
    actions = ", ".join(turn.actions[:20])
    line = [
        f'<span role="heading" aria-level="4">Turn {turn.index}</span>',
        fact("action", actions, css="es-long")
        if actions
        else ""
        if turn.is_valid is None
        else _badge("no action", "bad"),
        fact("reward", _earned(turn.reward)) if turn.reward else "",
        _flag(turn.is_valid, "", _badge("not valid", "bad")),
        _flag(turn.is_effective, "", _badge("action had no effect", "bad")),
    ]
    return f'<div class="es-facts">{"".join(line)}</div>'


def beyond_results(observation: str, before: Turn | None) -> str:
    """What was shown beyond the results of the calls of the turn before, which stand with these.

    All of it where it does not begin with these results.
    """
    calls = () if before is None else before.calls
    rest = observation
    for call in calls[:MAX_CALLS]:
        rest = rest.lstrip().removeprefix(RESULT_OPEN).lstrip()
        if len(call.result) > _CALL_CHARS or not rest.startswith(call.result.strip()):
            return observation
        rest = rest[len(call.result.strip()) :].lstrip().removeprefix(RESULT_CLOSE)
    return rest.strip() if calls else observation


def calls_html(turn: Turn) -> str:
    """The tool calls of a turn: name, arguments and result of each; empty without any."""
    call_texts = [_call_html(call) for call in turn.calls[:MAX_CALLS]]
    if len(turn.calls) > MAX_CALLS:
        call_texts.append(f'<div class="es-note">{len(turn.calls) - MAX_CALLS} more calls</div>')
    return f'<div class="es-calls">{"".join(call_texts)}</div>' if call_texts else ""


def _call_html(call: ToolCall) -> str:
    if call.problem:
        problem = fact("", call.problem, css="es-long")
        head = f'<div class="es-facts">{_badge("not a call", "bad")}{problem}</div>'
        rows = [("written", call.arguments)]
    else:
        values = _arguments(call.arguments)
        line = ", ".join(f"{key}={value}" for key, value in values or ())
        is_short = values is not None and len(line) <= _LINE_CHARS and "\n" not in line
        name = f"{call.name}({line})" if is_short else call.name
        head = f'<div class="es-call-name">{escape(name, _FACT_CHARS)}</div>'
        rows = [] if is_short else values or [("arguments", call.arguments)]
    result = call.result or "nothing: the call was not played"
    cells = "".join(
        f'<span class="es-call-key">{escape(key, _FACT_CHARS)}</span>'
        f'<span class="es-call-value" dir="auto">{escape(value, _CALL_CHARS)}</span>'
        for key, value in [*rows, ("result", result)]
    )
    return f'<div class="es-call">{head}{cells}</div>'


def _arguments(text: str) -> list[tuple[str, str]] | None:
    """The arguments of a call, one a row; None for text that is not a JSON object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    return [(key, json.dumps(value, ensure_ascii=False)) for key, value in values.items()][:20]


def _start(trajectory: Trajectory) -> tuple[tuple[str, Position], ...]:
    first = trajectory.turns[0].frame if trajectory.turns else None
    player = None if first is None else read_frame(first).find("player")
    return () if player is None else (("start", player),)


def turn_boards(trajectory: Trajectory, index: int) -> str:
    """The board and the picture that a turn observed; empty where nothing can be drawn.

    Args:
        index: Of the turn; `num_turns` for what was there after the last one.
    """
    is_end = index == trajectory.num_turns
    turn = None if is_end else trajectory.turns[index]
    frame = trajectory.final_frame if turn is None else turn.frame
    image = trajectory.final_image if turn is None else turn.image
    shots = []
    if frame is not None:
        content = read_frame(frame)
        player = content.find("player")
        has_slipped = index > 0 and trajectory.turns[index - 1].info.get("slipped", 0) > 0
        slip = (("slip", player),) if has_slipped and player is not None else ()
        caption = "after a slip" if slip else ""
        # A board small, a card as wide as one can read it.
        width = 360 if isinstance(content, Card) else BOARD_PX
        board = board_html(frame, (*_start(trajectory), *slip), max_width=width)
        shots.append(_figure(board, caption))
    if image is not None:
        # Of an imported trajectory nobody says what was shown.
        is_own = trajectory.source is None
        caption = "image, not shown to the policy" if is_own else "image of the observation"
        caption = "image afterwards" if is_end else caption
        shots.append(_figure(picture_html(image, caption, max_width=BOARD_PX), caption))
    return f'<div class="es-boards">{"".join(shots)}</div>' if shots else ""


def _figure(image: str, caption: str) -> str:
    caption_html = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure>{image}{caption_html}</figure>"


def heading(text: str) -> str:
    """A small heading of ours or of theirs."""
    return f'<div class="es-head">{escape(text, _FACT_CHARS)}</div>'


def text_box(text: str, hits: Sequence[str] = ()) -> str:
    """Hostile text in a box, newlines kept, with what a search matched in it marked."""
    return f'<div class="es-text" dir="auto">{escape(text, hits=hits) or "&#160;"}</div>'


def ending_html(trajectory: Trajectory) -> str:
    """What the policy would have seen next; empty where nothing is stored."""
    last = trajectory.turns[-1] if trajectory.turns else None
    text = beyond_results(trajectory.final_observation, last)
    boards = turn_boards(trajectory, trajectory.num_turns)
    if not text and not boards:
        return ""
    box = text_box(text) if text else ""
    said = f'<div class="es-said es-asked">{heading("After the last turn")}{box}</div>'
    return f'<div class="es-turn es-end">{said}{boards}</div>'


def reply_html(
    turn: Turn,
    outcome: TrajectoryOutcome | None,
    colours: tuple[Heat, HeatScale] | None,
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
    parts.append(f"<div {TALK}>")
    for turn in trajectory.turns[:most_turns]:
        pieces_of = (lambda _: None) if detokenizer is None else detokenizer.pieces
        reply = reply_html(turn, outcome, colours, pieces_of)
        parts.append(turn_html(trajectory, turn.index, reply))
    left_out = trajectory.num_turns - most_turns
    more = f'<div class="es-note">{left_out} more turns are not shown</div>'
    return "".join([*parts, more if left_out > 0 else ending_html(trajectory), "</div>"])
