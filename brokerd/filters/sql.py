"""The SQL92 subset of subscriptions: parsing, and evaluation over a message's properties (pure).

    or          = and { OR and }
    and         = equality { AND equality }
    equality    = comparison { (= | <>) comparison | IS [NOT] NULL }
    comparison  = unary { (< | <= | > | >=) unary | [NOT] BETWEEN unary AND unary | [NOT] IN ( 'text' , ... )
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) 'text' }
    unary       = (+ | - | NOT) unary | primary
    primary     = number | 'text' | TRUE | FALSE | NULL | property | ( or )

A property is a text; where a number or a truth value is needed it is converted. Logic has three values: a missing property is
NULL, a comparison with NULL is unknown (None), and an expression that ends unknown does not match. What cannot be evaluated (an
order of things that are no numbers) does not match as a whole. Length and nesting are bounded; chains do not nest. So are the
conditions, which are what the evaluation of one message costs: comparisons, NOTs, and values that stand for a condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import contains, ge, gt, le, lt
from typing import Final, NamedTuple

from brokerd.filters.sql_tokens import MAX_DIGITS, SqlError, Token, tokens_of

MAX_DEPTH: Final = 32
MAX_CHAIN: Final = 4
MAX_CONDITIONS: Final = 128
MAX_LISTED: Final = 1024

Value = str | int | float | bool | None
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]

_NUMBER = re.compile(r"[+-]?(?:\d+|(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)")


class _NotComparable(Exception):
    """Evaluation met values that have no order."""


class _Node(NamedTuple):
    """A parsed part. `kind` is what is known before evaluation: number, text, boolean, null, property."""

    kind: str
    evaluate: Evaluate
    constant: Value = None
    property_name: str = ""


class Expression(NamedTuple):
    """`matches` says whether a message with these properties is wanted, and never raises; it tests so many `conditions`."""

    matches: Callable[[Properties], bool]
    conditions: int


def parse(text: str) -> Expression:
    """Raises SqlError."""
    parser = _Parser(tokens_of(text))
    evaluate = parser.whole()

    def matches(properties: Properties) -> bool:
        try:
            return _truth(evaluate(properties)) is True
        except _NotComparable:
            return False

    return Expression(matches, parser.conditions)


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._index = 0
        self._depth = 0
        self._listed = 0
        self.conditions = 0

    def whole(self) -> Evaluate:
        if self._peek().kind == "end":
            raise SqlError("it is empty")
        node = self._or()
        self._expect("end", "the end")
        return self._condition(node, 0)

    # ---- grammar

    def _or(self) -> _Node:
        return self._chain(self._and, "OR", decisive=True)

    def _and(self) -> _Node:
        return self._chain(self._equality, "AND", decisive=False)

    def _chain(self, part: Callable[[], _Node], word: str, *, decisive: bool) -> _Node:
        first = part()
        if not self._is("keyword", word):
            return first
        conditions = [self._condition(first, self._peek().position)]
        while self._take("keyword", word):
            position = self._peek().position
            conditions.append(self._condition(part(), position))
        return _Node("boolean", _combined(conditions, decisive))

    def _equality(self) -> _Node:
        left = self._comparison()
        for _ in range(MAX_CHAIN):
            token = self._peek()
            if self._take("symbol", "="):
                self._count(token.position)
                left = _Node("boolean", _equal(left, self._comparison()))
            elif self._take("symbol", "<>"):
                self._count(token.position)
                left = _Node("boolean", _not(_equal(left, self._comparison())))
            elif self._take("keyword", "IS"):
                self._count(token.position)
                negated = self._take("keyword", "NOT")
                self._expect("keyword", "NULL")
                left = _Node("boolean", _is_null(left.evaluate, negated))
            else:
                return left
        raise self._too_long()

    def _comparison(self) -> _Node:
        left = self._unary()
        for _ in range(MAX_CHAIN):
            token = self._peek()
            if token.kind == "symbol" and token.value in _ORDER:
                self._index += 1
                self._count(token.position)
                left = _Node(
                    "boolean", _ordered(token.value, _orderable(left, token), _orderable(self._unary(), token))
                )
            elif self._starts_set():
                self._count(token.position)
                negated = self._take("keyword", "NOT")
                evaluate = self._set(left)
                left = _Node("boolean", _not(evaluate) if negated else evaluate)
            else:
                return left
        raise self._too_long()

    def _starts_set(self) -> bool:
        ahead = 1 if self._is("keyword", "NOT") else 0
        token = self._tokens[min(self._index + ahead, len(self._tokens) - 1)]
        return token.kind == "keyword" and token.value in _SET_WORDS

    def _set(self, left: _Node) -> Evaluate:
        token = self._next()
        if token.value == "BETWEEN":
            low = _orderable(self._unary(), token)
            self._expect("keyword", "AND")
            high = _orderable(self._unary(), token)
            if low.kind == high.kind == "number" and _as_number(low.constant) > _as_number(high.constant):
                raise SqlError(f"the lower bound at character {token.position} is above the upper one")
            value = _orderable(left, token)
            return _combined([_ordered(">=", value, low), _ordered("<=", value, high)], decisive=False)
        if left.kind != "property":
            raise SqlError(f"{token.value} at character {token.position} needs a property on its left")
        if token.value == "IN":
            return _text_test(left.property_name, self._texts().__contains__)
        text, test = self._expect("text", "a text in quotes").value, _TEXT_TESTS[token.value]
        return _text_test(left.property_name, lambda value: test(value, text))

    def _texts(self) -> frozenset[str]:
        self._expect("symbol", "(")
        texts = [self._listed_text()]
        while self._take("symbol", ","):
            texts.append(self._listed_text())
        self._expect("symbol", ")")
        return frozenset(texts)

    def _listed_text(self) -> str:
        token = self._expect("text", "a text in quotes")
        self._listed += 1
        if self._listed > MAX_LISTED:
            raise SqlError(f"more than {MAX_LISTED} texts in lists of IN at character {token.position}")
        return token.value

    def _unary(self) -> _Node:
        token = self._peek()
        if token.kind == "symbol" and token.value in "+-":
            self._index += 1
            return self._nested(token, lambda: _signed(token, self._unary()))
        if self._take("keyword", "NOT"):
            self._count(token.position)
            return self._nested(token, lambda: _Node("boolean", _not(_as_condition(self._unary(), token.position))))
        return self._primary()

    def _primary(self) -> _Node:
        token = self._next()
        if token.kind == "integer":
            return _constant("number", int(token.value))
        if token.kind == "float":
            return _constant("number", float(token.value))
        if token.kind == "text":
            return _constant("text", token.value)
        if token.kind == "word":
            name = token.value
            return _Node("property", lambda properties: properties.get(name), property_name=name)
        if token.kind == "keyword" and token.value in _CONSTANTS:
            return _constant(*_CONSTANTS[token.value])
        if token.kind == "symbol" and token.value == "(":
            node = self._nested(token, self._or)
            self._expect("symbol", ")")
            return node
        raise SqlError(f"expected a value at character {token.position}, not {token.value}")

    # ---- bounds

    def _condition(self, node: _Node, position: int) -> Evaluate:
        evaluate = _as_condition(node, position)
        if node.kind != "boolean" or node.constant is not None:  # a value alone, which no comparison counted
            self._count(position)
        return evaluate

    def _count(self, position: int) -> None:
        self.conditions += 1
        if self.conditions > MAX_CONDITIONS:
            raise SqlError(
                f"more than {MAX_CONDITIONS} conditions at character {position} (each comparison and each NOT is one; "
                "IN with many texts is one, too)"
            )

    def _nested(self, token: Token, part: Callable[[], _Node]) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SqlError(f"more than {MAX_DEPTH} levels of nesting at character {token.position}")
        node = part()
        self._depth -= 1
        return node

    def _too_long(self) -> SqlError:
        """Such chains nest their evaluation, unlike those of AND and OR; nobody writes a long one."""
        return SqlError(f"too many comparisons without AND or OR before character {self._peek().position}")

    # ---- tokens

    def _peek(self) -> Token:
        return self._tokens[self._index]

    def _next(self) -> Token:
        token = self._tokens[self._index]
        if token.kind != "end":
            self._index += 1
        return token

    def _is(self, kind: str, value: str) -> bool:
        token = self._tokens[self._index]
        return token.kind == kind and token.value == value

    def _take(self, kind: str, value: str) -> bool:
        if not self._is(kind, value):
            return False
        self._index += 1
        return True

    def _expect(self, kind: str, value: str) -> Token:
        token = self._next()
        if token.kind != kind or (kind not in ("text", "end") and token.value != value):
            raise SqlError(f"expected {value} at character {token.position}, not {token.value}")
        return token


_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_TEXT_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_SET_WORDS: Final = ("BETWEEN", "IN", *_TEXT_TESTS)
_CONSTANTS: Final[Mapping[str, tuple[str, Value]]] = {
    "TRUE": ("boolean", True),
    "FALSE": ("boolean", False),
    "NULL": ("null", None),
}


def _constant(kind: str, value: Value) -> _Node:
    return _Node(kind, lambda properties: value, value)


def _signed(token: Token, node: _Node) -> _Node:
    if node.kind not in ("number", "property"):
        raise SqlError(f"{token.value} at character {token.position} needs a number")
    sign = -1 if token.value == "-" else 1
    if node.kind == "number":
        return _constant("number", sign * _as_number(node.constant))
    operand = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = operand(properties)
        return None if value is None else sign * _as_number(value)

    return _Node("signed", evaluate)


def _orderable(node: _Node, token: Token) -> _Node:
    if node.kind in ("text", "boolean"):
        raise SqlError(f"{token.value} at character {token.position} compares numbers and properties only")
    return node


def _as_condition(node: _Node, position: int) -> Evaluate:
    if node.kind not in ("boolean", "property", "null"):
        raise SqlError(f"expected a condition before character {position}" if position else "it is not a condition")
    return node.evaluate


def _truth(value: Value) -> bool | None:
    """A value as a condition; only truth values and the texts that spell them are ever true."""
    if value is None or isinstance(value, bool):
        return value
    return isinstance(value, str) and value.lower() == "true"


def _combined(conditions: Sequence[Evaluate], decisive: bool) -> Evaluate:
    """Of three-valued conditions: the decisive value where one of them has it, else unknown where one is."""

    def evaluate(properties: Properties) -> Value:
        result: bool | None = not decisive
        for condition in conditions:
            truth = _truth(condition(properties))
            if truth is decisive:
                return decisive
            if truth is None:
                result = None
        return result

    return evaluate


def _not(condition: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        truth = _truth(condition(properties))
        return None if truth is None else not truth

    return evaluate


def _is_null(operand: Evaluate, negated: bool) -> Evaluate:
    return lambda properties: (operand(properties) is None) is not negated


def _equal(left: _Node, right: _Node) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        a, b = left.evaluate(properties), right.evaluate(properties)
        if a is None or b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            return a == b
        if isinstance(a, bool) or isinstance(b, bool):
            return _boolean(a) is not None and _boolean(a) == _boolean(b)
        try:
            return _as_number(a) == _as_number(b)
        except _NotComparable:
            return False

    return evaluate


def _ordered(operator: str, left: _Node, right: _Node) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        a, b = left.evaluate(properties), right.evaluate(properties)
        if a is None or b is None:
            return None
        return _ORDER[operator](_as_number(a), _as_number(b))

    return evaluate


def _text_test(name: str, test: Callable[[str], bool]) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else test(value)

    return evaluate


def _boolean(value: Value) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return None


def _as_number(value: Value) -> int | float:
    if isinstance(value, str):
        if len(value) > MAX_DIGITS or _NUMBER.fullmatch(value) is None:
            raise _NotComparable
        return float(value) if any(letter in value for letter in ".eE") else int(value)
    if value is None or isinstance(value, bool):
        raise _NotComparable
    return value
