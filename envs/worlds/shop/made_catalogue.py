"""The shop that ships: 360 products in 12 groups with 1,440 goals, made of words of our own.

Nothing is stored: the same numbers of one generator give the same catalogue in every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .products import Catalogue, Goal, Product, category_of, price_limits, with_limit

NUM_PRODUCTS = 360
GOALS_PER_PRODUCT = 4
_SEED = 20260
_PER_KIND = 6
_OWN_ATTRIBUTES = 4
"""Attributes of a product, of the eight that its group knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Kinds of products that share attributes, options, materials and prices in dollars."""

    department: tuple[str, ...]
    kinds: tuple[str, ...]
    attributes: tuple[str, ...]
    materials: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    prices: tuple[int, int]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


def _group(
    department: str,
    kinds: str,
    attributes: str,
    materials: str,
    options: dict[str, str],
    prices: tuple[int, int],
) -> Group:
    return Group(
        department=_listed(department),
        kinds=_listed(kinds),
        attributes=_listed(attributes),
        materials=_listed(materials),
        options=tuple((name, _listed(values)) for name, values in options.items()),
        prices=prices,
    )


GROUPS: tuple[Group, ...] = (
    _group(
        "Home, Lighting",
        "desk lamp, floor lamp, night light, wall lamp, lantern",
        "dimmable, energy saving, cordless, touch control, flicker free, easy to install, "
        "adjustable arm, weatherproof",
        "bamboo, brass, frosted glass, linen",
        {"color": "black, white, green", "size": "small, medium, large"},
        (12, 90),
    ),
    _group(
        "Home, Bedding",
        "pillow, duvet, bed sheet, blanket, mattress cover",
        "machine washable, hypoallergenic, quick drying, breathable, extra soft, wrinkle free, "
        "fade resistant, double stitched",
        "cotton, bamboo fibre, linen, wool",
        {"color": "white, grey, navy", "size": "twin, queen, king"},
        (15, 120),
    ),
    _group(
        "Kitchen, Cookware",
        "frying pan, saucepan, baking tray, wok, casserole dish",
        "non stick, dishwasher safe, oven safe, scratch resistant, heavy duty, induction ready, "
        "easy to clean, stay cool handle",
        "cast iron, stainless steel, aluminium, ceramic",
        {"diameter": "20 cm, 24 cm, 28 cm", "color": "black, red, copper"},
        (18, 110),
    ),
    _group(
        "Kitchen, Tableware",
        "mug, dinner plate, cereal bowl, water glass, teapot",
        "microwave safe, hand painted, stackable, chip resistant, freezer safe, lead free, "
        "thick walled, gift boxed",
        "stoneware, porcelain, glass, enamel",
        {"color": "blue, white, yellow", "pack": "single piece, set of two, set of six"},
        (8, 60),
    ),
    _group(
        "Clothing, Womenswear",
        "dress, blouse, skirt, cardigan, raincoat",
        "long sleeve, relaxed fit, side pockets, elastic waist, soft lining, hand wash, "
        "water repellent, hidden zip",
        "cotton, viscose, merino wool, linen",
        {"color": "red, teal, black", "size": "s, m, l, xl"},
        (20, 130),
    ),
    _group(
        "Clothing, Shoes",
        "running shoe, ankle boot, sandal, slipper, hiking boot",
        "slip resistant, arch support, memory foam, wide fit, rubber sole, removable insole, "
        "reflective, ankle padding",
        "leather, canvas, mesh, felt",
        {"size": "37, 39, 41, 43", "color": "brown, grey, white"},
        (25, 150),
    ),
    _group(
        "Electronics, Audio",
        "headphones, loudspeaker, microphone, record player, radio",
        "noise cancelling, wireless, long battery life, splash proof, deep bass, foldable, "
        "fast charging, voice control",
        "plastic, aluminium, walnut wood, fabric",
        {"color": "black, silver, orange"},
        (25, 220),
    ),
    _group(
        "Electronics, Accessories",
        "phone case, charging cable, power bank, keyboard, computer mouse",
        "shock absorbing, tangle free, ultra slim, silent keys, rechargeable, dust proof, "
        "overheat protection, left handed",
        "silicone, nylon, recycled plastic, aluminium",
        {"color": "black, pink, blue", "connector": "round, flat, magnetic"},
        (7, 75),
    ),
    _group(
        "Beauty, Skin and hair",
        "shampoo, face cream, hand soap, body lotion, sunscreen",
        "cruelty free, paraben free, fragrance free, dermatologist tested, fast absorbing, vegan, "
        "refillable, sensitive skin",
        "oat milk, shea butter, aloe vera, green clay",
        {"scent": "lavender, lemon, cedar", "volume": "75 ml, 200 ml, 500 ml"},
        (5, 45),
    ),
    _group(
        "Food, Pantry",
        "black tea, ground coffee, olive oil, granola, chocolate bar",
        "organic, sugar free, gluten free, fair trade, small batch, resealable bag, low salt, "
        "single origin",
        "hazelnut, cinnamon, orange peel, sea salt",
        {"weight": "trial size, family size, bulk sack"},
        (4, 40),
    ),
    _group(
        "Garden, Tools",
        "watering can, garden hose, pruning shears, plant pot, leaf rake",
        "rust proof, lightweight, ergonomic grip, frost resistant, telescopic, leak proof, "
        "self draining, sharp blade",
        "zinc, beech wood, terracotta, rubber",
        {"color": "green, terracotta, grey", "length": "short, standard, extended"},
        (9, 85),
    ),
    _group(
        "Sport, Outdoors",
        "yoga mat, drinking bottle, backpack, sleeping bag, jump rope",
        "non slip, leakproof lid, water resistant, padded straps, compact, insulated, "
        "easy to carry, rip proof",
        "cork, stainless steel, ripstop nylon, hemp",
        {"color": "purple, khaki, blue", "model": "junior, adult"},
        (10, 140),
    ),
)
WISHES: Mapping[str, str] = {
    "dimmable": "I can turn the brightness down",
    "energy saving": "it adds little to my electricity bill",
    "cordless": "it runs on batteries alone",
    "touch control": "a tap with a finger is enough",
    "flicker free": "it shines perfectly steadily",
    "easy to install": "anybody can put it up",
    "adjustable arm": "its neck bends to every side",
    "weatherproof": "storms do it no harm",
    "machine washable": "I do not want to scrub it myself",
    "hypoallergenic": "my allergies must not mind it",
    "quick drying": "an hour on the line is enough for it",
    "breathable": "nobody sweats in it",
    "extra soft": "it feels like a cloud",
    "wrinkle free": "it never needs pressing",
    "fade resistant": "its colours outlast the sun",
    "double stitched": "its seams must never come apart",
    "non stick": "nothing burns onto it",
    "dishwasher safe": "I never want to stand at the sink with it",
    "oven safe": "it can bake at 220 degrees",
    "scratch resistant": "metal spoons leave no marks",
    "heavy duty": "it must stand years of hard use",
    "induction ready": "it heats up on my magnet hob",
    "easy to clean": "one wipe is enough",
    "stay cool handle": "I can grab it without a glove",
    "microwave safe": "I warm up leftovers in it",
    "hand painted": "an artist has decorated each one",
    "stackable": "several must fit on top of each other",
    "chip resistant": "a knock must not break its rim",
    "freezer safe": "ice does not crack it",
    "lead free": "no poisonous metal is in its glaze",
    "thick walled": "what is hot stays hot for long",
    "gift boxed": "it comes ready as a present",
    "long sleeve": "my arms are covered to the wrists",
    "relaxed fit": "it is not tight anywhere",
    "side pockets": "there is room for my hands and my purse",
    "elastic waist": "it stretches around the belly",
    "soft lining": "the inside does not itch",
    "hand wash": "a basin and a sponge must do",
    "water repellent": "drops roll off it",
    "hidden zip": "nobody sees how it closes",
    "slip resistant": "it holds on to wet floors",
    "arch support": "my feet sink inwards",
    "memory foam": "it moulds itself to the foot",
    "wide fit": "my toes need plenty of room",
    "rubber sole": "it walks without a sound",
    "removable insole": "I put my own inlay into it",
    "reflective": "drivers must see me in the dark",
    "ankle padding": "it is cushioned above the heel",
    "noise cancelling": "the traffic outside must vanish",
    "wireless": "no cord may get in the way",
    "long battery life": "one charge lasts for days",
    "splash proof": "it stands next to my shower",
    "deep bass": "I want to feel the low notes",
    "foldable": "it collapses for travelling",
    "fast charging": "it is full again within minutes",
    "voice control": "it does what I say aloud",
    "shock absorbing": "it survives a fall",
    "tangle free": "it never ends up in knots",
    "ultra slim": "it is hardly thicker than a coin",
    "silent keys": "typing wakes nobody up",
    "rechargeable": "I never buy new batteries for it",
    "dust proof": "sand cannot get inside",
    "overheat protection": "it switches itself off before it burns",
    "left handed": "it suits people who do not use their right",
    "cruelty free": "no animal has suffered for it",
    "paraben free": "without that group of preservatives",
    "fragrance free": "it smells of nothing",
    "dermatologist tested": "a doctor has tried it out",
    "fast absorbing": "it sinks in at once",
    "vegan": "nothing in it comes from animals",
    "refillable": "I keep the container and pour in more",
    "sensitive skin": "I get a rash easily",
    "organic": "it is grown without pesticides",
    "sugar free": "my diabetes allows it",
    "gluten free": "people with coeliac disease can have it",
    "fair trade": "the farmers are paid properly",
    "small batch": "it is made a little at a time",
    "resealable bag": "I can close it again after opening",
    "low salt": "it is good for high blood pressure",
    "single origin": "all of it comes from one place",
    "rust proof": "moisture leaves no stains on it",
    "lightweight": "a child can lift it",
    "ergonomic grip": "my wrist does not ache from it",
    "frost resistant": "it may stay outside in winter",
    "telescopic": "it pulls out to reach further",
    "leak proof": "not a drop gets lost",
    "self draining": "what is too much runs off alone",
    "sharp blade": "it cuts at the first try",
    "non slip": "it does not slide away under me",
    "leakproof lid": "it can lie upside down among my papers",
    "water resistant": "a shower does not soak it",
    "padded straps": "it does not press on the shoulders",
    "compact": "it takes up hardly any room",
    "insulated": "the cold stays outside",
    "easy to carry": "I take it everywhere with me",
    "rip proof": "thorns do not tear it",
}
"""How a customer asks for an attribute: in words that neither a search nor a comparison finds."""
BRANDS: tuple[str, ...] = _listed(
    "Alderbrook, Brinlo, Calmere, Dovanti, Elmstead, Farrow Hill, Glenmoss, Havelin, Isenberg, "
    "Jorvik Lane, Kestrelle, Lumenor, Maplewick, Nordhafen, Ostrava Works, Pellerin, Quillon, "
    "Rowanmark, Sundvale, Tamsin, Umberly, Veldora, Willowby, Yarrowen"
)
_OPENINGS: tuple[str, ...] = (
    "I am looking for {article} {kind}: {wishes}",
    "I need {article} {kind}, {wishes}",
    "Find me {article} {kind} with these qualities: {wishes}",
    "Please buy {article} {kind} for me ({wishes})",
)


@lru_cache(maxsize=8)
def made_catalogue(num_products: int | None = None) -> Catalogue:
    """The catalogue, its products in a mixed order; the first `num_products` of it, or all."""
    rng = np.random.default_rng(_SEED)
    drafts = [(group, kind) for group in GROUPS for kind in group.kinds for _ in range(_PER_KIND)]
    products = []
    for number, place in enumerate(rng.permutation(len(drafts))):
        group, kind = drafts[place]
        products.append(_product(rng, f"P{number:03d}", group, kind))
    products = products[:num_products]
    goals = [_goal(rng, product) for product in products for _ in range(GOALS_PER_PRODUCT)]
    return Catalogue(products, goals)


def _product(rng: np.random.Generator, asin: str, group: Group, kind: str) -> Product:
    attributes = _some(rng, group.attributes, _OWN_ATTRIBUTES)
    material = _one(rng, group.materials)
    low, high = group.prices
    price = float(rng.integers(low, high + 1)) + float(rng.choice([0.0, 0.49, 0.95, 0.99]))
    options = {name: _in_stock(rng, values) for name, values in group.options}
    return Product(
        asin=asin,
        title=f"{_one(rng, BRANDS)} {kind}, {attributes[0]}, {attributes[1]}, {material}",
        kind=kind,
        category=category_of(*group.department, kind),
        price=price,
        price_text=f"${price:.2f}",
        attributes=attributes,
        features=tuple(f"{attribute.capitalize()}." for attribute in attributes),
        description=f"{kind.capitalize()} of {material}: {', '.join(attributes)}.",
        options=options,
    )


def _goal(rng: np.random.Generator, product: Product) -> Goal:
    attributes = _some(rng, product.attributes, int(rng.integers(1, 4)))
    chosen = {name: _one(rng, values) for name, values in product.options.items()}
    limit = price_limits(product.price)[int(rng.integers(2))]
    wishes = [WISHES[attribute] for attribute in attributes]
    article = "an" if product.kind[0] in "aeiou" else "a"
    wanted = _one(rng, _OPENINGS).format(
        article=article, kind=product.kind, wishes=_joined(wishes, "and")
    )
    of_group = next(dict(group.options) for group in GROUPS if product.kind in group.kinds)
    options = ", and ".join(
        f"{name}: {_choice_in_words(rng, value, of_group[name])}" for name, value in chosen.items()
    )
    return Goal(
        asin=product.asin,
        text=with_limit(f"{wanted}, with {options}", limit),
        kind=product.kind,
        title=product.title,
        category=product.category,
        attributes=attributes,
        options=tuple(chosen.values()),
        max_price=limit,
    )


def _choice_in_words(rng: np.random.Generator, wanted: str, values: tuple[str, ...]) -> str:
    """The wanted value, or as often all others: a value that is named may be the wrong one."""
    if rng.integers(2):
        return wanted
    return f"not {_joined([value for value in values if value != wanted], 'or')}"


def _joined(parts: Sequence[str], word: str) -> str:
    """`a, b and c`."""
    return f" {word} ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _in_stock(rng: np.random.Generator, values: tuple[str, ...]) -> tuple[str, ...]:
    """All values of an option, or all but one."""
    missing = values[int(rng.integers(len(values)))] if rng.integers(2) else ""
    return tuple(value for value in values if value != missing)


def _one(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(rng.integers(len(values)))]


def _some(rng: np.random.Generator, values: tuple[str, ...], number: int) -> tuple[str, ...]:
    return tuple(values[int(i)] for i in rng.choice(len(values), size=number, replace=False))
