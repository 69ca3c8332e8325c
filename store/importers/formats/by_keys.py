"""Rows that are one episode each: a table says which key holds what, and one reader reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import read
from ..dialogue import Dialogue, is_messages, read_flat, read_messages
from ..draft import Draft, RowError
from ..format import MAPPED, Format, Row, Where

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Under which keys a row holds what. Of several, the first that has a value counts."""

    messages: Names = ()
    """The whole conversation. Else `prompt` and `reply` are read: texts, or messages."""
    prompt: Names = ()
    reply: Names = ()
    reward: Names = ("reward",)
    """Of the episode: a number, or one for each token."""
    turn_rewards: Names = ()
    success: Names = ()
    group: Names = ()
    env: Names = ()
    tag: Names = ()
    stop: Names = ()
    """Why the episode ended."""
    finish: Names = ()
    """Why the last reply ended."""
    step: Names = ("step",)


def value_of(row: Row, names: Names) -> tuple[str, Any]:
    """The first of these keys that has a value, and the value."""
    return next(((name, row[name]) for name in names if row.get(name) is not None), ("", None))


def texts_of(row: Row, keys: Keys) -> tuple[str, Any, str, Any]:
    """Key and value of the prompt and of the reply, by what a user says or by the names of keys."""
    mapped = row.get(MAPPED) or {}
    prompt = ("", mapped["prompt"]) if "prompt" in mapped else value_of(row, keys.prompt)
    reply = ("", mapped["reply"]) if "reply" in mapped else value_of(row, keys.reply)
    return *prompt, *reply


def draft_of(row: Row, keys: Keys) -> Draft:
    """The episode of a row.

    Raises:
        RowError: it has no text.
    """
    dialogue, prompt, is_guess, used = _dialogue(row, keys)
    reward_key, reward = value_of(row, keys.reward)
    success_key, success = value_of(row, keys.success)
    is_success = read.success(success)
    used = (*used, *keys.step, *keys.turn_rewards)
    used = (*used, *((success_key,) if is_success is not None else ()))
    used = (*used, *((reward_key,) if read.number_or_none(reward) is not None else ()))
    per_token = reward if isinstance(reward, list) and reward else [reward]
    total = sum(map(read.number, per_token))
    draft = dialogue.draft(
        read.without(row, used),
        reward=total,
        is_guess=is_guess,
        prompt=prompt,
        group=read.text_or_none(value_of(row, keys.group)[1]),
        env=read.name(value_of(row, keys.env)[1]),
        tag=read.name(value_of(row, keys.tag)[1]),
        is_success=is_success,
        stop_reason=read.stop(value_of(row, keys.stop)[1]),
    )
    draft.set_turn_rewards(value_of(row, keys.turn_rewards)[1], total)
    if draft.turns and keys.finish:
        draft.turns[-1].finish_reason = read.finish(value_of(row, keys.finish)[1])
    return draft


def _dialogue(row: Row, keys: Keys) -> tuple[Dialogue, str, bool, Names]:
    """The turns, the prompt, whether the turns are a guess, and the keys of the text."""
    key, messages = value_of(row, keys.messages)
    if is_messages(messages):
        dialogue = read_messages(messages)
        return dialogue, dialogue.prompt, False, (key,)
    prompt_key, prompt, reply_key, reply = texts_of(row, keys)
    used = (prompt_key, reply_key)
    if is_messages(prompt) or is_messages(reply):
        asked = prompt if is_messages(prompt) else _said("user", prompt)
        replied = reply if is_messages(reply) else _said("assistant", reply)
        dialogue = read_messages([*asked, *replied])
        return dialogue, prompt if isinstance(prompt, str) else dialogue.prompt, False, used
    if not (read.text(prompt).strip() or read.text(reply).strip()):
        raise RowError("prompt and reply are empty")
    dialogue, is_guess = read_flat(read.text(prompt), read.text(reply))
    return dialogue, read.text(prompt), is_guess, used


def _said(role: str, text: Any) -> list[Mapping[str, Any]]:
    return [{"role": role, "content": read.text(text)}] if read.text(text) else []


def by_keys(
    keys: Keys, more: Callable[[Draft, Row, Where], None] | None = None, **values: Any
) -> Format:
    """The format of rows that are read by their keys.

    Args:
        more: Sets what else the trainer's rows tell.
        values: Further fields of the format.
    """

    def drafts(row: Row, where: Where) -> list[Draft]:
        draft = draft_of(row, keys)
        if more:
            more(draft, row, where)
        return [draft]

    def step(row: Row) -> int | None:
        return read.whole(value_of(row, keys.step)[1])

    return Format(drafts=drafts, step=step, **values)
