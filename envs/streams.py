"""The random streams of a run: what is drawn in one changes nothing in another.

Every draw is a function of the run's seed, the stream and where in the stream it stands. The two
lowest bits of a seed of an environment name its split.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

SPLIT_CODES: Mapping[str, int] = {"train": 0, "eval": 1, "probe": 2}
DEMONSTRATION_CODE = 3
"""What demonstrations have for a split: no pool plays them."""
STREAM_CODES: Mapping[str, int] = {"tasks": 0, "noise": 1, "sampling": 2}


def stream_word(seed: int, split: str, stream: str, *indices: int) -> int:
    """64 random bits that are a function of these numbers alone.

    Args:
        stream: one of `STREAM_CODES`.
        indices: where in the stream, such as (step, group, sibling).
    """
    key = (SPLIT_CODES[split], STREAM_CODES[stream], *indices)
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=key)
    low, high = sequence.generate_state(2).tolist()
    return int(high << 32 | low)


def episode_seed(seed: int, split: str, stream: str, step: int, group: int, number: int) -> int:
    """A 63-bit seed of an environment; independent of `step` outside "train".

    Args:
        stream: "tasks" for the `env_seed` of a group, or "noise" for the `noise_seed` of a sibling.
        number: of tasks drawn before that belonged to another split, or of the sibling.
    """
    word = stream_word(seed, split, stream, step if split == "train" else 0, group, number)
    return _of_split(word >> 3, SPLIT_CODES[split])


def demonstration_seeds(rng: np.random.Generator) -> tuple[int, int]:
    """`env_seed` and `noise_seed` of a demonstration."""
    env_seed, noise_seed = rng.integers(2**60, size=2).tolist()
    return _of_split(env_seed, DEMONSTRATION_CODE), _of_split(noise_seed, DEMONSTRATION_CODE)


def _of_split(number: int, code: int) -> int:
    return number << 2 | code


def generator(seed: int, *indices: int | str) -> np.random.Generator:
    """The draws of a warm start that are a function of these numbers and names alone."""
    numbers = (zlib.crc32(i.encode()) if isinstance(i, str) else i for i in indices)
    return np.random.default_rng([seed, *numbers])
