"""A filter written as SQL, into its tree, or refused with the character at fault.

sqlglot cuts the text into tokens (quotes, comments, numbers: the parts that are easy to get wrong by hand); the grammar
below takes over from there. It knows nine kinds of token and no more, so what it does not know cannot slip through, and
every refusal has an exact position, which sqlglot's own tree does not keep.

    filter     := conjunction (OR conjunction)*
    conjunction:= negation (AND negation)*
    negation   := NOT negation | '(' filter ')' | predicate
    predicate  := column IS [NOT] NULL | column [NOT] IN '(' literal (',' literal)* ')'
                | column op literal | literal op column | column op column
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto

from sqlglot import Tokenizer, TokenType
from sqlglot.errors import TokenError

from tracelake.domain.filter.tree import (
    FLIPPED,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_VALUES,
    ColumnRef,
    Filter,
    InvalidFilter,
    IsNull,
    Literal,
    Op,
    Truth,
    all_of,
    any_of,
    check_size,
    column_name,
    compared,
    exact_literal,
    negated,
    one_of,
    text_literal,
    too_deep,
    whole_literal,
)

MAX_SQL = 65_536

_OPS = {"=": Op.EQ, "!=": Op.NE, "<>": Op.NE, "<": Op.LT, "<=": Op.LE, ">": Op.GT, ">=": Op.GE}
_SIGNS = frozenset("(),-")
_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
# Functions that SQL calls without parentheses, so that they look like columns.
_FUNCTION_WORDS = re.compile(r"current_\w+|localtime\w*|session_user|system_user", re.IGNORECASE)
_TELLING = {
    TokenType.PLACEHOLDER: ("parameter markers are not allowed", "write the value itself"),
    TokenType.PARAMETER: ("parameter markers are not allowed", "write the value itself"),
    TokenType.COLON: ("parameter markers are not allowed", "write the value itself"),
    TokenType.DOT: ("qualified names are not allowed", "write the column's name alone, and 0.5 for .5"),
    TokenType.DCOLON: ("casts are not allowed", "compare with a literal of the column's own type"),
    TokenType.SEMICOLON: ("a filter is one condition, without ';'", None),
    TokenType.EQ: ("'==' is not allowed", "use ="),
    TokenType.SELECT: ("subqueries are not allowed", "filter in a SQL job"),
    TokenType.NULLSAFE_EQ: ("'<=>' is not allowed", "use = and IS NULL"),
}
_INSTEAD = {
    "between": "write column >= low AND column <= high",
    "like": "compare with =, or filter in a SQL job",
    "ilike": "compare with =, or filter in a SQL job",
    "rlike": "compare with =, or filter in a SQL job",
}


class _Kind(Enum):
    TEXT = auto()
    NUMBER = auto()
    WORD = auto()
    QUOTED = auto()
    KEYWORD = auto()
    OP = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: _Kind
    text: str
    position: int

    def __str__(self) -> str:
        return "the end" if self.kind is _Kind.END else repr(self.text[:80])


def parse_sql(text: str) -> Filter:
    return check_size(_Grammar(_tokens(text)).whole())


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_SQL:
        raise InvalidFilter(f"the filter has {len(text)} characters", hint=f"at most {MAX_SQL}")
    tokens: list[_Token] = []
    end = 0
    for raw in _cut(text):
        _only_blanks(text, end, raw.start)
        end = raw.end + 1
        tokens.append(_known(raw.token_type, raw.text, text[raw.start : end], raw.start))
    _only_blanks(text, end, len(text))
    return [*tokens, _Token(_Kind.END, "", len(text))]


def _cut(text: str) -> list[_RawToken]:
    try:
        return [_RawToken(raw.token_type, raw.text, raw.start, raw.end) for raw in Tokenizer().tokenize(text)]
    except TokenError:
        position = max(text.rfind(opening) for opening in ("'", '"', "/*"))
        raise InvalidFilter("a quote or comment is not closed", position=max(position, 0)) from None


@dataclass(frozen=True, slots=True)
class _RawToken:
    token_type: TokenType
    text: str
    start: int
    end: int


def _only_blanks(text: str, start: int, end: int) -> None:
    """Between tokens stands nothing but plain blanks: no comment, no hint, no invisible character."""
    for position in range(start, end):
        if text[position] not in " \t\r\n":
            comment = text[position] in "-/#"
            reason = "comments are not allowed" if comment else f"the character {text[position]!a} is not allowed"
            raise InvalidFilter(reason, position=position)


def _known(kind: TokenType, value: str, source: str, position: int) -> _Token:
    if kind is TokenType.STRING and source.startswith("'"):
        return _Token(_Kind.TEXT, value, position)
    if kind is TokenType.NUMBER:
        return _Token(_Kind.NUMBER, source, position)
    if kind is TokenType.IDENTIFIER and source.startswith('"'):
        return _Token(_Kind.QUOTED, value, position)
    if source in _OPS:
        return _Token(_Kind.OP, source, position)
    if source in _SIGNS:
        return _Token(_Kind.SIGN, source, position)
    if _WORD.fullmatch(source) and kind is not TokenType.SELECT:
        return _Token(_Kind.KEYWORD if source.lower() in _KEYWORDS else _Kind.WORD, source, position)
    reason, hint = _TELLING.get(kind, (f"{source[:80]!a} is not allowed in a filter", None))
    raise InvalidFilter(reason, position=position, hint=hint)


class _Grammar:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> Filter:
        if self._peek().kind is _Kind.END:
            raise InvalidFilter("the filter is empty", position=0, hint="leave `where` out to read everything")
        tree = self._filter()
        if self._peek().kind is not _Kind.END:
            raise self._unexpected("AND, OR or the end")
        return tree

    def _filter(self) -> Filter:
        parts = [self._conjunction()]
        while self._take("or"):
            parts.append(self._conjunction())
        return any_of(parts)

    def _conjunction(self) -> Filter:
        parts = [self._negation()]
        while self._take("and"):
            parts.append(self._negation())
        return all_of(parts)

    def _negation(self) -> Filter:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_deep(self._peek().position)
        if self._take("not"):
            tree = negated(self._negation())
        elif self._take("("):
            tree = self._filter()
            self._must_take(")")
        else:
            tree = self._predicate()
        self._depth -= 1
        return tree

    def _predicate(self) -> Filter:
        if self._peek().kind in {_Kind.WORD, _Kind.QUOTED}:
            return self._about_column(self._column())
        literal = self._literal("a column")
        op = self._op()
        if self._peek().kind not in {_Kind.WORD, _Kind.QUOTED}:
            raise self._unexpected("a column", "one side of a comparison must be a column")
        return compared(self._column(), FLIPPED[op], literal)

    def _about_column(self, column: str) -> Filter:
        if self._take("is"):
            wanted = not self._take("not")
            self._must_take("null", "only IS NULL and IS NOT NULL; write column = TRUE for a truth value")
            return IsNull(column) if wanted else negated(IsNull(column))
        if self._take("not"):
            self._must_take("in", _INSTEAD.get(self._peek().text.lower()))
            return negated(one_of(column, self._values()))
        if self._take("in"):
            return one_of(column, self._values())
        op = self._op()
        if self._peek().kind is _Kind.WORD:
            return compared(column, op, ColumnRef(self._column()))
        return compared(column, op, self._literal("a literal or a column"))

    def _values(self) -> list[Literal]:
        self._must_take("(", "IN takes a list of literals in parentheses")
        values = [self._literal("a literal")]
        while self._take(","):
            if len(values) == MAX_VALUES:
                raise InvalidFilter(f"IN takes at most {MAX_VALUES} values", position=self._peek().position)
            values.append(self._literal("a literal"))
        self._must_take(")", "IN takes a list of literals in parentheses")
        return values

    def _column(self) -> str:
        token = self._advance()
        follows = self._peek()
        if follows.text == "(" and follows.kind is _Kind.SIGN:
            raise InvalidFilter("functions and subqueries are not allowed", position=token.position)
        if token.kind is _Kind.WORD and _FUNCTION_WORDS.fullmatch(token.text):
            raise InvalidFilter(f"{token} is a function, and functions are not allowed", position=token.position)
        return column_name(token.text, position=token.position)

    def _op(self) -> Op:
        token = self._peek()
        if token.kind is not _Kind.OP:
            raise self._unexpected("a comparison, IN or IS NULL", _INSTEAD.get(token.text.lower()))
        return _OPS[self._advance().text]

    def _literal(self, wanted: str) -> Literal:
        token = self._peek()
        try:
            return self._literal_value(wanted)
        except InvalidFilter as refusal:
            if refusal.position is None:  # the value was refused, not the grammar: it starts at this token
                raise InvalidFilter(refusal.message, position=token.position, hint=refusal.hint) from None
            raise

    def _literal_value(self, wanted: str) -> Literal:
        token = self._peek()
        if token.kind is _Kind.TEXT:
            return text_literal(self._advance().text)
        if token.kind is _Kind.NUMBER:
            return self._number()
        if token.kind is _Kind.SIGN and self._take("-"):
            return self._number(negative=True)
        for truth in (True, False):
            if self._take(str(truth).lower()):
                return Truth(truth)
        if token.kind is _Kind.QUOTED:
            raise self._unexpected(wanted, "text goes in single quotes; double quotes are for names of columns")
        if token.text.lower() == "null":
            raise self._unexpected(wanted, "nothing equals NULL; write column IS NULL")
        raise self._unexpected(wanted)

    def _number(self, *, negative: bool = False) -> Literal:
        token = self._advance()
        if token.kind is not _Kind.NUMBER or _NUMBER.fullmatch(token.text) is None:
            raise InvalidFilter(f"{token} is not a number here", position=token.position, hint="such as 12, -12 or 0.5")
        if len(token.text) > MAX_DIGITS + 1:
            raise InvalidFilter(f"a number has at most {MAX_DIGITS} digits", position=token.position)
        sign = -1 if negative else 1
        return exact_literal(sign * Decimal(token.text)) if "." in token.text else whole_literal(sign * int(token.text))

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _take(self, text: str) -> bool:
        token = self._peek()
        if token.kind in {_Kind.KEYWORD, _Kind.SIGN} and token.text.lower() == text:
            self._advance()
            return True
        return False

    def _must_take(self, text: str, hint: str | None = None) -> None:
        if not self._take(text):
            raise self._unexpected(repr(text) if text in _SIGNS else text.upper(), hint)

    def _unexpected(self, wanted: str, hint: str | None = None) -> InvalidFilter:
        token = self._peek()
        return InvalidFilter(f"{token} stands where {wanted} should", position=token.position, hint=hint)
