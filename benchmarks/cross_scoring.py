"""Cross-scoring with shared prefixes against one pass per pair, at RAGEN's default sizes.

128 episodes (8 groups x 16) of 5 turns, both families: the first turn (8 prompts of 450 tokens, 64
reasonings) and all turns (64 prompts of 450 to 1,750 tokens, a reasoning each), as many pairs as
RAGEN's two samples have. Untrained model of the shipped policy's shape. The naive side is batched,
asks for the logits of the reasoning only and computes no entropies, all of which the reference does
worse.

The naive side is timed on every n-th column (--stride, 1 for all); both sides' seconds, and the
comparison of log-probs, are for the same columns. Token-forwards are for all of them.

    python benchmarks/cross_scoring.py [--stride 4] [--json]
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import describe_machine, print_json, read_options
from trajectories import make_trajectory
from transformers import Qwen2Config, Qwen2ForCausalLM

from echoscope.diagnostics.config import InformationConfig
from echoscope.diagnostics.measure.information.cross_scores import score_draw
from echoscope.diagnostics.measure.information.pairs import Draw, draw_all_turns, draw_first_turn
from echoscope.diagnostics.measure.information.scoring import ModelScorer
from echoscope.diagnostics.measure.information.step import num_tokens
from echoscope.store.records import IntArray, Trajectory, Turn

GROUPS, SIBLINGS, TURNS, SAMPLES = 8, 16, 5, 64
FIRST_PROMPT, PROMPT_GROWTH, LONGEST_REASONING = 450, 325, 150
VOCABULARY = 640
NAIVE_ROWS = (1, 4, 16)
"""Rows per pass of the naive side: the fastest is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One family."""

    family: str
    prompts: int
    reasonings: int
    mean_prompt_tokens: float
    token_forwards: int
    naive_token_forwards: int
    columns_timed: int
    seconds: float
    """Processor seconds of one thread, so that other jobs on the machine do not count."""
    naive_seconds: float
    largest_difference: float
    """Between log-probs of one token, nats."""


def build_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).eval()
    # Sharper than initialised, so that log-probs differ between prompts.
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(5.0)
    return model


def build_episodes(rng: np.random.Generator) -> list[Trajectory]:
    """Random tokens in the shape of episodes with their whole history in each prompt."""
    out = []
    for group in range(GROUPS):
        first = rng.integers(0, VOCABULARY, FIRST_PROMPT)
        for sibling in range(SIBLINGS):
            prompt, turns = first, []
            for index in range(TURNS):
                reasoning = rng.integers(
                    0, VOCABULARY, rng.integers(LONGEST_REASONING // 3, LONGEST_REASONING + 1)
                )
                turns.append(_turn(index, prompt, reasoning))
                filler = rng.integers(0, VOCABULARY, PROMPT_GROWTH - len(reasoning))
                prompt = np.concatenate([prompt, reasoning, filler])
            out.append(_episode(group, sibling, tuple(turns)))
    return out


def _turn(index: int, prompt: np.ndarray, reasoning: np.ndarray) -> Turn:
    return Turn(
        index=index,
        observation="",
        response="x</think>",
        reasoning_chars=(0, 1),
        reasoning_span=(0, len(reasoning)),
        prompt_tokens=prompt.astype(np.int32),
        response_tokens=reasoning.astype(np.int32),
    )


def _episode(group: int, sibling: int, turns: tuple[Turn, ...]) -> Trajectory:
    return make_trajectory(
        *turns,
        step=0,
        index=group * SIBLINGS + sibling,
        group_index=group,
        sibling_index=sibling,
        tag="random",
        env_seed=group,
        prompt_key=str(group),
    )


@torch.no_grad()
def naive_column(
    model: Qwen2ForCausalLM, prompt: IntArray, reasonings: list[IntArray], rows: int
) -> np.ndarray:
    """log p of every token of every reasoning under one prompt, (M, R): one row per pair."""
    longest = max(map(len, reasonings))
    ids = np.zeros((len(reasonings), len(prompt) + longest), dtype=np.int64)
    ids[:, : len(prompt)] = prompt
    for m, z in enumerate(reasonings):
        ids[m, len(prompt) : len(prompt) + len(z)] = z
    out = []
    for start in range(0, len(ids), rows):
        batch = torch.from_numpy(ids[start : start + rows])
        logits = model(input_ids=batch[:, :-1], use_cache=False, logits_to_keep=longest).logits
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        out.append(logprobs.gather(-1, batch[:, -longest:, None]).squeeze(-1).numpy())
    return np.concatenate(out)


def fastest_rows(model: Qwen2ForCausalLM, draw: Draw) -> int:
    """How many rows per pass suit the naive side best, tried on 16 pairs."""
    seconds = {}
    for rows in NAIVE_ROWS:
        started = time.process_time()
        naive_column(model, draw.prompts[0], list(draw.reasonings[:16]), rows)
        seconds[rows] = time.process_time() - started
    return min(seconds, key=lambda rows: seconds[rows])


def some_columns(draw: Draw, stride: int) -> Draw:
    """Every n-th prompt, and all reasonings; whose column a reasoning is does not matter here."""
    prompts = draw.prompts[::stride]
    return Draw(
        family=draw.family,
        prompts=prompts,
        reasonings=draw.reasonings,
        column_M=np.arange(draw.num_reasonings) % len(prompts),
        inner_M2=draw.inner_M2,
        logprobs=draw.logprobs,
    )


def measure(model: Qwen2ForCausalLM, draw: Draw, stride: int) -> Measured:
    part = some_columns(draw, stride)
    rows = fastest_rows(model, part)
    started = time.process_time()
    ours = score_draw(ModelScorer(model), part)
    seconds = time.process_time() - started
    started = time.process_time()
    naive = [naive_column(model, x, list(part.reasonings), rows) for x in part.prompts]
    naive_seconds = time.process_time() - started
    inside_MR = np.arange(ours.logprobs_MNR.shape[2]) < ours.lengths_M[:, None]
    difference = np.abs(np.stack(naive, axis=1) - ours.logprobs_MNR)
    longest = max(map(len, draw.reasonings))
    return Measured(
        family=draw.family,
        prompts=len(draw.prompts),
        reasonings=draw.num_reasonings,
        mean_prompt_tokens=float(np.mean([len(x) for x in draw.prompts])),
        token_forwards=num_tokens({draw.family: draw}),
        naive_token_forwards=sum(draw.num_reasonings * (len(x) + longest) for x in draw.prompts),
        columns_timed=len(part.prompts),
        seconds=seconds,
        naive_seconds=naive_seconds,
        largest_difference=float(np.where(inside_MR[:, None], difference, 0.0).max()),
    )


def main() -> None:
    arguments = read_options(__doc__, stride=4, json=False)
    torch.set_num_threads(1)
    model, rng = build_model(), np.random.default_rng(0)
    episodes = build_episodes(rng)
    decode = lambda tokens: "</think>"  # noqa: E731 - no text stands behind the tokens
    draws = [
        draw_first_turn(episodes, InformationConfig(), rng, decode=decode),
        draw_all_turns(episodes, rng, decode=decode, num_prompts=SAMPLES),
    ]
    rows = [measure(model, draw, arguments.stride) for draw in draws]
    totals = {
        "fewer_token_forwards": sum(r.naive_token_forwards for r in rows)
        / sum(r.token_forwards for r in rows),
        "times_faster": _projected(rows, "naive_seconds") / _projected(rows, "seconds"),
        "largest_difference": max(r.largest_difference for r in rows),
    }
    if arguments.json:
        row_dicts = [asdict(r) for r in rows]
        print_json(rows=row_dicts, both=totals)
        return
    print(describe_machine())
    for row in rows:
        print("  ".join(f"{key} {_short(value)}" for key, value in asdict(row).items()))
    print("both families: " + "  ".join(f"{key} {_short(v)}" for key, v in totals.items()))


def _projected(rows: list[Measured], name: str) -> float:
    """Seconds for all columns, from those timed."""
    return sum(getattr(row, name) * row.prompts / row.columns_timed for row in rows)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
