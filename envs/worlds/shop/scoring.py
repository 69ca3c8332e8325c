"""How well a purchase fits a goal: the reward of WebShop (Yao et al. 2022, section 3.2).

    r = r_type (|matched attributes| + |matched options| + [price <= limit])
               / (|attributes| + |options| + 1)

`r_type` is 1, or 0.5 where neither the kind, nor two parts of the category, nor a fifth of the
title's words agree; 0.1 where less than a tenth of them agree, and 0 where none does.

Two things differ from WebShop's own code. Its title score counts the nouns that spaCy finds; this
one counts all words but numbers and stop words. Its colours are found anywhere in an option ("tan"
in "standard"); these are whole words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..search.bm25 import words_of
from .products import CATEGORY_MARK, Catalogue, Goal, Product

FUZZY_ABOVE = 85
"""Two phrases match where their token set ratio is larger, of 100."""
COLOURS: tuple[str, ...] = (
    "beige", "black", "blue", "bronze", "brown", "copper", "coral", "cream", "gold", "gray",
    "green", "grey", "ivory", "khaki", "maroon", "navy", "olive", "orange", "pink", "purple", "red",
    "rose", "silver", "tan", "teal", "turquoise", "violet", "white", "yellow",
)  # fmt: skip
_STOP_WORDS = frozenset({
    "a", "an", "and", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that",
    "the", "this", "to", "with", "your",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The parts of a reward. `total` lies in [0, 1]."""

    total: float
    type_factor: float
    matched_attributes: int
    matched_options: int
    is_affordable: bool


def score_purchase(product: Product, goal: Goal, chosen: Mapping[str, str]) -> Score:
    """The score of buying a product with the chosen options (name -> value)."""
    attributes = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    options = sum(
        any(is_same_option(value, option) for value in chosen.values()) for option in goal.options
    )
    is_affordable = goal.max_price is None or product.price <= goal.max_price
    factor = type_factor(product, goal)
    most = len(goal.attributes) + len(goal.options) + 1
    return Score(
        total=factor * (attributes + options + is_affordable) / most,
        type_factor=factor,
        matched_attributes=attributes,
        matched_options=options,
        is_affordable=is_affordable,
    )


def type_factor(product: Product, goal: Goal) -> float:
    """Whether a product is of the kind that the goal wants: 0, 0.1, 0.5 or 1."""
    share = title_share(product.title, goal.title)
    if share < 0.1:
        return 0.1 if share else 0.0
    same_parts = _parts(product.category) & _parts(goal.category)
    is_same = product.kind == goal.kind or len(same_parts) >= 2 or share > 0.2
    return 1.0 if is_same else 0.5


def title_share(title: str, target: str) -> float:
    """The share of the words of the wanted title that a title has; 0.2 where it has no words.

    >>> title_share("Fern oak desk", "Alder oak desk, 120 cm")
    0.5
    """
    wanted_words = _content_words(target)
    if not wanted_words:
        return 0.2
    return len({*wanted_words} & {*_content_words(title)}) / len(wanted_words)


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether a product has an attribute: in its list, nearly so, or word by word in its texts."""
    if any(is_alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.features), product.description)
    return any(attribute.casefold() in text.casefold() for text in texts)


def is_same_option(value: str, option: str) -> bool:
    """Whether an option's value is the wanted one, nearly so, or has the same colour."""
    return is_alike(_bare_colour(value), _bare_colour(option))


def is_alike(phrase: str, other: str) -> bool:
    """Whether two phrases agree but for the order of words, or for words that only one has."""
    from rapidfuzz import fuzz, utils  # an optional package

    ratio = fuzz.token_set_ratio(phrase, other, processor=utils.default_process)
    return round(ratio) > FUZZY_ABOVE


def _bare_colour(option: str) -> str:
    """The first colour of a text in the order of the alphabet, or all of the text."""
    option_words = set(words_of(option))
    return next((colour for colour in COLOURS if colour in option_words), option)


def _parts(category: str) -> set[str]:
    return {part.strip() for part in category.split(CATEGORY_MARK)}


def _content_words(title: str) -> list[str]:
    return [word for word in words_of(title) if word not in _STOP_WORDS and not word.isdigit()]


def winning_choice(product: Product, goal: Goal) -> Mapping[str, str] | None:
    """Options (name -> value) with which a product earns the full score; None if none do."""
    if goal.max_price is not None and product.price > goal.max_price:
        return None
    if type_factor(product, goal) < 1.0:
        return None
    if not all(has_attribute(product, attribute) for attribute in goal.attributes):
        return None
    choice: dict[str, str] = {}
    for option in goal.options:
        if any(is_same_option(value, option) for value in choice.values()):
            continue
        fitting = [
            (value != option, name, value)
            for name, values in product.options.items()
            for value in values
            if name not in choice and is_same_option(value, option)
        ]
        if not fitting:
            return None
        _, name, value = min(fitting)
        choice[name] = value
    return choice


def queries(goal: Goal) -> list[str]:
    """What a customer types: the kind with the attributes, the kind, then all of the title."""
    with_attributes = ", ".join([goal.kind, *goal.attributes])
    with_options = ", ".join([with_attributes, *goal.options])
    return [query for query in (with_attributes, with_options, goal.kind, goal.title) if query]


def best_search(catalogue: Catalogue, goal: Goal) -> tuple[str, int, Product] | None:
    """The query that shows a product with the full score first, its rank, and the product."""
    finds = []
    for query in queries(goal):
        for rank, product in enumerate(catalogue.search(query)):
            if winning_choice(product, goal) is not None:
                finds.append((rank, query, product))
                break
    if not finds:
        return None
    rank, query, product = min(finds, key=lambda find: find[0])
    return query, rank, product
