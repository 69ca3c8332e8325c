"""Whatever a text holds, what is shown of it does nothing and hides nothing."""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.dashboard.escaping import attribute, escape, escape_with_code, visible

ANY_TEXT = st.text(alphabet=st.characters(codec=None), max_size=60)
"""Every code point, lone surrogates included."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a \"b\" 'c' & d", "a &quot;b&quot; &#x27;c&#x27; &amp; d"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("![x](http://x)", "![x](http://x)"),
    ],
)
def test_markup_is_text_and_lines_stay(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_what_cannot_be_seen_stands_in_a_box_by_name() -> None:
    assert escape("a\u202eb") == (
        'a<span class="es-ctl" title="U+202E">RIGHT-TO-LEFT OVERRIDE</span>b'
    )
    assert escape("\x1b[31m") == '<span class="es-ctl" title="U+001B">ESC</span>[31m'
    assert ">ZERO WIDTH SPACE x3<" in escape("\u200b\u200b\u200b")
    assert ">U+DC80<" in escape("\udc80")


def test_plain_text_has_the_names_in_brackets() -> None:
    assert visible("a\u202eb\x00\x00") == "a[RIGHT-TO-LEFT OVERRIDE]b[NUL x2]"


def test_a_long_text_is_cut_and_says_how_much_is_missing() -> None:
    assert escape("x" * 10, limit=4) == (
        'xxxx<span class="es-cut">[6 more characters are not shown]</span>'
    )
    assert visible("x" * 10, limit=4) == "xxxx [6 more characters are not shown]"
    assert "49,980,000 more characters" in escape("x" * 50_000_000)


@given(ANY_TEXT)
def test_html_of_any_text_is_well_formed_and_holds_only_our_boxes(text: str) -> None:
    root = ET.fromstring(f"<div>{escape(text)}</div>")
    for element in root:
        assert element.tag == "span"
        assert set(element.attrib) <= {"class", "title"}


@given(st.lists(st.one_of(st.just("`"), ANY_TEXT), max_size=6).map("".join), st.integers(0, 20))
def test_backticks_of_any_text_add_nothing_but_code(text: str, limit: int) -> None:
    root = ET.fromstring(f"<div>{escape_with_code(text, limit)}</div>")
    assert {element.tag for element in root.iter()} <= {"div", "span", "code"}


@given(ANY_TEXT)
def test_text_without_unseen_characters_comes_back_unchanged(text: str) -> None:
    seen = "".join(c for c in text if unicodedata.category(c)[0] in "LNPS" or c == " ")
    back = "".join(ET.fromstring(f"<div>{escape(seen)}</div>").itertext())
    assert back == seen


@given(ANY_TEXT)
def test_an_attribute_cannot_be_left(text: str) -> None:
    root = ET.fromstring(f'<div title="{attribute(text)}"/>')
    assert set(root.attrib) == {"title"}
    assert not [c for c in root.attrib["title"] if unicodedata.bidirectional(c) in ("RLO", "LRO")]
