"""How alike are texts: do siblings differ, and does a reasoning tell which prompt it answers?

TF-IDF cosines of words and characters, the entropy of words, retrieval and a bound on I(X;Z).

Legend: **n** texts or reasonings, **D** distinct ones, **L** items (words or characters) of all of
them in a row, **N** prompts; `prompt_n` holds the prompt index of each, `similarity_nn` the cosine
similarity of every two.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from scipy import sparse

from echoscope.store.records import FloatArray64, IntArray64

from .sample import words

_TIE = 1e-9
"""Similarities this close are equal: neither neighbour is nearer."""

_MAX_ELEMENTS = 1 << 24
"""Label comparisons held at once."""

_MAX_FOLDS = 4
_SHARPNESS = np.array([0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
_DOUBT = np.array([0.002, 0.01, 0.05, 0.2, 0.5, 1.0])
"""Shares of the uniform distribution mixed into a prediction, so that no surprise is infinite."""


def retrieve(
    similarity_nn: FloatArray64,
    prompt_n: IntArray64,
    rng: np.random.Generator,
    *,
    permutations: int,
) -> dict[str, float]:
    """`retrieval_...`: how often the nearest other reasoning answers the same prompt.

    Accuracy, chance (its expectation when reasonings do not depend on their prompts), and the
    p-value: the share of label shuffles that do at least as well, the true labels counted as one.
    Equally near neighbours share the credit.

    With M reasonings of each of N prompts, chance is (M - 1) / (N M - 1), also when all texts are
    equal. At least two reasonings are needed.
    """
    size = len(prompt_n)
    nearness = similarity_nn.copy()
    np.fill_diagonal(nearness, -np.inf)
    nearest = nearness >= nearness.max(axis=1, keepdims=True) - _TIE
    rows, columns = np.nonzero(nearest)
    credit = 1.0 / nearest.sum(axis=1)[rows] / size
    shuffled = rng.permuted(np.tile(prompt_n, (permutations, 1)), axis=1)
    labels = np.concatenate([prompt_n[None], shuffled])  # the true labels first
    step = max(1, _MAX_ELEMENTS // len(rows))
    parts = [labels[k : k + step] for k in range(0, len(labels), step)]
    accuracies = [(part[:, rows] == part[:, columns]) @ credit for part in parts]
    observed, *by_luck = np.concatenate(accuracies).tolist()
    as_good = sum(value >= observed - 1e-12 for value in by_luck)
    same = np.bincount(prompt_n)
    return {
        "retrieval_accuracy": observed,
        "retrieval_chance": float((same * (same - 1)).sum() / (size * (size - 1))),
        "retrieval_p_value": (1 + as_good) / (1 + permutations),
    }


def dependence(similarity_nn: FloatArray64, prompt_n: IntArray64) -> float:
    """A lower bound on I(X;Z) as a share of its ceiling ln N, at least 0.

    The bound is that of a classifier, on texts that it has not seen: ln N less its cross-entropy,
    ln N - E[-log q(prompt given text)] <= I(X;Z) for any classifier q (Barber, Agakov 2003).

    q is a kernel classifier over the similarities, q(c) ~ mean over the texts j of prompt c of
    exp(s k(z, j)), mixed with the uniform distribution. Sharpness s and mixture are those with the
    best leave-one-out likelihood inside the training folds, so that held-out texts choose nothing.
    It needs the same number M >= 3 of reasonings of each of N >= 2 prompts, prompt by prompt: one
    to test on, and two to fit on so that one of them can be left out.
    """
    num_prompts = int(prompt_n.max()) + 1
    num_siblings = len(prompt_n) // num_prompts
    fold_n = np.arange(len(prompt_n)) % num_siblings % min(_MAX_FOLDS, num_siblings)
    log_q_n = np.zeros(len(prompt_n))
    for fold in np.unique(fold_n):
        test, train = np.flatnonzero(fold_n == fold), np.flatnonzero(fold_n != fold)
        within = similarity_nn[np.ix_(train, train)]
        fitted = _log_scores(within, prompt_n[train], prompt_n[train], leave_one_out=True)
        sharpness, doubt = np.unravel_index(fitted.mean(axis=2).argmax(), fitted.shape[:2])
        held_out = _log_scores(similarity_nn[np.ix_(test, train)], prompt_n[train], prompt_n[test])
        log_q_n[test] = held_out[sharpness, doubt]
    ceiling = math.log(num_prompts)
    return max(0.0, ceiling + float(log_q_n.mean())) / ceiling


def _log_scores(
    similarity_ab: FloatArray64,
    train_b: IntArray64,
    truth_a: IntArray64,
    *,
    leave_one_out: bool = False,
) -> FloatArray64:
    """(sharpness, doubt, a) log q of the true prompt of each of `a` texts, from `b` known ones."""
    num_prompts = int(train_b.max()) + 1
    one_hot_bN = np.eye(num_prompts)[train_b]
    weights = np.exp(_SHARPNESS[:, None, None] * (similarity_ab - 1.0)[None])
    count_aN = np.broadcast_to(one_hot_bN.sum(0), (len(truth_a), num_prompts))
    if leave_one_out:
        diagonal = np.arange(len(truth_a))
        weights[:, diagonal, diagonal] = 0.0
        count_aN = count_aN - one_hot_bN
    mass = weights @ one_hot_bN / count_aN
    posterior = mass / mass.sum(axis=-1, keepdims=True)
    true_q = posterior[:, np.arange(len(truth_a)), truth_a]
    mixed = (1 - _DOUBT)[None, :, None] * true_q[:, None, :] + _DOUBT[None, :, None] / num_prompts
    return np.asarray(np.log(mixed))


_BLANKS = re.compile(r"\s\s+")
_CODE_POINTS = 1 << 21


def similarity(texts: Sequence[str]) -> FloatArray64:
    """(n, n) mean of two TF-IDF cosines: word 1-2 grams and character 3-5 grams.

    As scikit-learn's `TfidfVectorizer` with its default weights (a test), whose checks of its
    input alone would cost more. 0 where a text has neither a letter, a digit nor a sign. Equal
    texts are counted once.

    >>> similarity(["go up", "go up", "stay"]).round(2).tolist()[0]
    [1.0, 1.0, 0.0]
    """
    distinct = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    place_n = np.array([distinct[text] for text in texts], dtype=np.int64)
    if not any(text.strip() for text in distinct):
        return np.zeros((len(texts), len(texts)))
    copies_D = np.bincount(place_n).astype(np.float64)
    # The blank on both sides marks word ends and gives the shortest text one gram.
    padded = [_BLANKS.sub(" ", f" {text.lower()} ") for text in distinct]
    chars_L = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), dtype="<u4")
    by_char = _cosines(chars_L.astype(np.int64), [len(text) for text in padded], 3, 5, copies_D)
    spoken = [words(text) for text in distinct]
    index_of: dict[str, int] = {}
    words_L = [index_of.setdefault(word, len(index_of)) for tokens in spoken for word in tokens]
    by_word = _cosines(
        np.array(words_L, dtype=np.int64), [len(tokens) for tokens in spoken], 1, 2, copies_D
    )
    mean: FloatArray64 = (by_char + by_word) / 2
    return mean[np.ix_(place_n, place_n)]


_ROUNDED = 9
"""Decimals beyond which similarities of equal texts differ by rounding alone."""


def most_alike(similarity_nn: FloatArray64, prompt_n: IntArray64, size: int) -> IntArray64:
    """Indices of the most similar texts, one of each of `size` prompts at most; the first leads.

    Of equally similar texts those are taken that are like most other prompts' texts.

    >>> texts = ["go up", "stay", "go up", "go down", "go up"]
    >>> most_alike(similarity(texts), np.array([0, 0, 0, 1, 2]), 3).tolist()
    [0, 4, 3]
    """
    prompts = np.unique(prompt_n)
    if not len(prompts):
        return np.empty(0, np.int64)
    # (n, N): the best likeness of each text to a text of each prompt; none to its own prompt.
    by_prompt = [similarity_nn[:, prompt_n == prompt] for prompt in prompts]
    best_nN = np.round(np.stack([block.max(axis=1) for block in by_prompt], axis=1), _ROUNDED)
    best_nN[prompt_n[:, None] == prompts[None]] = -1.0
    order_nN = np.argsort(-best_nN, axis=1, kind="stable")[:, : size - 1]
    partners_n = np.take_along_axis(best_nN, order_nN, axis=1).sum(axis=1)
    lead = int(np.lexsort((-best_nN.sum(axis=1), -partners_n))[0])
    chosen = [lead]
    for index in order_nN[lead].tolist():
        members = np.flatnonzero(prompt_n == prompts[index])
        if prompts[index] != prompt_n[lead]:
            chosen.append(int(members[similarity_nn[lead, members].argmax()]))
    return np.array(chosen, np.int64)


def _cosines(
    items_L: IntArray64, lengths: list[int], low: int, high: int, copies_D: FloatArray64
) -> FloatArray64:
    """(D, D) cosines of the grams of `low` to `high` items, weighted as tf * (ln idf + 1).

    Items lie below `_CODE_POINTS`, or are fewer; document frequencies count each text's copies.
    """
    owner_L = np.repeat(np.arange(len(lengths)), lengths)
    owners, grams, num_grams = [], [], 0
    gram_L = items_L
    for size in range(1, high + 1):
        if size > 1:
            # Gram ids stay dense, so that one more item always fits into 64 bits.
            gram_L = gram_L[:-1] * _CODE_POINTS + items_L[size - 1 :]
        whole_L = owner_L[: len(gram_L)] == owner_L[size - 1 :]
        if size >= low:
            codes, dense = np.unique(gram_L, return_inverse=True)
            gram_L = dense.astype(np.int64)
            owners.append(owner_L[: len(gram_L)][whole_L])
            grams.append(gram_L[whole_L] + num_grams)
            num_grams += len(codes)
    row, column = np.concatenate(owners), np.concatenate(grams)
    counts = sparse.csr_array(
        (np.ones(len(row)), (row, column)), shape=(len(lengths), max(num_grams, 1))
    )
    counts.sum_duplicates()
    rows = np.repeat(np.arange(len(lengths)), np.diff(counts.indptr))
    frequency = np.bincount(counts.indices, weights=copies_D[rows], minlength=counts.shape[1])
    weights = counts.data * (np.log((1 + copies_D.sum()) / (1 + frequency)) + 1)[counts.indices]
    norm_D = np.sqrt(np.bincount(rows, weights=weights**2, minlength=len(lengths)))
    counts.data = weights / norm_D[rows]
    cosines: FloatArray64 = (counts @ counts.T).toarray()
    return cosines


_START, _END = "<start>", "<end>"
"""Marks that no word equals: words have no sign beside a letter."""


def ngram_entropy(texts: Sequence[Sequence[str]]) -> float:
    """Nats per word given the word before, H(pair) - H(first of the pair), both after Chao-Shen.

    Each text begins and ends with a mark, so that first words and the length count. Exact in the
    limit for texts that a first-order Markov chain writes; above the true rate otherwise.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    firsts: Counter[str] = Counter()
    for tokens in texts:
        pairs.update(pairwise((_START, *tokens, _END)))
        firsts.update((_START, *tokens))
    return chao_shen(pairs.values()) - chao_shen(firsts.values())


def chao_shen(counts: Iterable[int]) -> float:
    """Entropy in nats from counts, corrected for what was not seen (Chao and Shen 2003).

    Coverage C = 1 - f1 / n with f1 the number of outcomes seen once; p~ = C p^;
    H = -sum p~ ln p~ / (1 - (1 - p~)^n), a Horvitz-Thompson sum. Where everything was seen once,
    f1 = n - 1 keeps C above 0. NaN without counts.
    """
    array = np.array([count for count in counts if count > 0], dtype=np.float64)
    if not array.size:
        return float("nan")
    total = array.sum()
    singles = int((array == 1).sum())
    coverage = 1.0 - min(singles, total - 1) / total
    p = coverage * array / total
    seen = -np.expm1(total * np.log1p(-np.minimum(p, 1 - 1e-15)))
    return float(-(p * np.log(p) / seen).sum()) + 0.0
