"""Arithmetic from text that nobody trusts: + - * / and brackets, exact, in bounded time."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

MAX_CHARS = 80
"""Of an expression: the product of its numbers then stays short, too."""
_DECIMALS = 6

_BINARY: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Fraction], Fraction]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class CalculationError(ValueError):
    """An expression that has no value; one sentence says why."""


def calculate(expression: str) -> Fraction:
    """The exact value of an expression of numbers, + - * / and round brackets.

    >>> calculate("2 * (3 + 0.5)")
    Fraction(7, 1)

    Raises:
        CalculationError: anything else, or a division by zero.
    """
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"an expression has at most {MAX_CHARS} characters")
    if not expression.isascii() or set(expression) - set("0123456789.+-*/() "):
        raise CalculationError("an expression holds numbers, + - * / and brackets only")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, expression.strip())
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, CalculationError):
            raise
        raise CalculationError("this is not an expression") from None


def number_text(value: Fraction) -> str:
    """A value as people write it, with at most six decimals.

    >>> number_text(Fraction(5, 2)), number_text(Fraction(8, 2))
    ('2.5', '4')
    """
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(value * 10**_DECIMALS)
    whole, part = divmod(abs(scaled), 10**_DECIMALS)
    sign = "-" if scaled < 0 else ""
    return f"{sign}{whole}.{part:0{_DECIMALS}d}".rstrip("0").rstrip(".")


def read_number(text: str) -> Fraction | None:
    """A plain number, decimals and sign allowed; None for any other text.

    >>> read_number(" 12.50 "), read_number("1e9")
    (Fraction(25, 2), None)
    """
    digits = text.strip().removeprefix("-")
    if len(digits) > MAX_CHARS or not digits.isascii() or not digits.replace(".", "", 1).isdigit():
        return None
    number = text.strip()
    return Fraction(int(number) if number.lstrip("-").isdigit() else number)


def _value(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, text), _value(node.right, text))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand, text))
    if isinstance(node, ast.Constant):
        number = read_number(text[node.col_offset : node.end_col_offset])  # one line of ASCII
        if number is not None:
            return number
    raise CalculationError("an expression holds numbers, + - * / and brackets only")
