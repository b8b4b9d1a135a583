"""Spark's SQL as the gate reads and writes it: sqlglot's Spark dialect, with every function left as it is written.

The parser of sqlglot would translate many functions, and not always faithfully; here whatever is called stays a call of
that very name. Where Spark knows two spellings of one thing, the tree holds one of them, so that what is rendered is
read as the same tree again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.hive import HiveParser
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

SIZED_TEXTS: Final = (exp.DType.CHAR, exp.DType.VARCHAR)


def parse(text: str) -> list[exp.Expr]:
    """The statements of a text; sqlglot's errors are its caller's to translate."""
    return [_one_spelling(expr) for expr in _DIALECT.parse(text) if expr is not None]


def render(tree: exp.Expr) -> str:
    return _DIALECT.generate(tree, comments=False, normalize_functions=False, copy=False)


def _substring(parser: _Parser) -> exp.Anonymous:
    """Also `substring(text FROM 3 FOR 2)`."""
    arguments: list[exp.Expr | None] = [*parser._parse_csv(parser._parse_lambda)]  # noqa: SLF001 - its own parser
    for word in (TokenType.FROM, TokenType.FOR):
        if parser._match(word):  # noqa: SLF001
            if word is TokenType.FOR and len(arguments) == 1:
                arguments.append(exp.Literal.number(1))
            arguments.append(parser._parse_bitwise())  # noqa: SLF001
    return exp.Anonymous(this="substring", expressions=arguments)


def _position(parser: _Parser) -> exp.Anonymous:
    """Also `position('a' IN text)`."""
    arguments: list[exp.Expr | None] = [*parser._parse_csv(parser._parse_bitwise)]  # noqa: SLF001
    if parser._match(TokenType.IN):  # noqa: SLF001
        arguments.append(parser._parse_bitwise())  # noqa: SLF001
    return exp.Anonymous(this="position", expressions=arguments)


def _trim(parser: _Parser) -> exp.Expr:
    """Also `trim(LEADING '0' FROM text)`."""
    side = parser._prev.text.upper() if parser._match_texts(parser.TRIM_TYPES) else "BOTH"  # noqa: SLF001
    cut = [] if parser._curr.token_type is TokenType.FROM else parser._parse_csv(parser._parse_lambda)  # noqa: SLF001
    if not parser._match(TokenType.FROM):  # noqa: SLF001
        return exp.Anonymous(this="trim", expressions=cut)
    text = parser._parse_bitwise()  # noqa: SLF001
    if not cut:
        name = {"LEADING": "ltrim", "TRAILING": "rtrim", "BOTH": "trim"}[side]
        return exp.Anonymous(this=name, expressions=[text])
    return exp.Trim(this=text, expression=cut[0], position=side)


class _Parser(SparkParser):
    STRICT_CAST = True
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
        **{name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")},
        "POSITION": _position,
        "SUBSTR": _substring,
        "SUBSTRING": _substring,
        "TRIM": _trim,
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF", "ANY")
    }
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}  # array(1, 2)[0] is an element, not an array

    def _parse_types(
        self,
        check_func: bool = False,
        schema: bool = False,
        allow_identifiers: bool = True,
        with_collation: bool = False,
    ) -> exp.Expr | None:
        """CHAR(n) and VARCHAR(n) are STRING in a CAST, as in the method that this replaces.

        That one parses the words "char" and "varchar" again for each literal, a quarter of the work of reading a query.
        """
        found = super(HiveParser, self)._parse_types(check_func, schema, allow_identifiers, with_collation)
        for kind in found.find_all(exp.DataType) if found is not None and not schema else ():
            if kind.this in SIZED_TEXTS:
                kind.set("this", exp.DType.TEXT)
                kind.set("expressions", None)
        return found


class _Generator(SparkGenerator):
    """QUALIFY and shifts as they stand: sqlglot would write them in other ways, for the sake of older Sparks."""

    TRANSFORMS: ClassVar[dict[Any, Any]] = {
        **{kind: rule for kind, rule in SparkGenerator.TRANSFORMS.items() if kind is not exp.Select},
        exp.BitwiseLeftShift: lambda self, node: self.binary(node, "<<"),
        exp.BitwiseRightShift: lambda self, node: self.binary(node, ">>"),
    }


class _Dialect(Spark):
    Parser = _Parser
    Generator = _Generator

    def tokenize(self, sql: str, dialect: DialectType = None) -> list[Token]:
        tokens: list[Token] = []
        for token in super().tokenize(sql, dialect):
            last = tokens[-1] if tokens else None
            if last is not None and last.token_type is token.token_type is TokenType.STRING:
                last.text, last.end = _joined(last, token, sql), token.end
                continue
            if last is not None and last.token_type is TokenType.WINDOW and token.token_type is TokenType.L_PAREN:
                last.token_type = TokenType.VAR  # the function: the clause has a name before its parenthesis
            tokens.append(token)
        return tokens


_DIALECT: Final = _Dialect()


def _joined(left: Token, right: Token, sql: str) -> str:
    """Two texts side by side, as Spark reads them: '' inside a text is a quote, anything else one text."""
    quote = sql[right.start]
    doubled = left.end + 1 == right.start and sql[left.end] == quote
    return f"{left.text}{quote if doubled else ''}{right.text}"


def _one_spelling(tree: exp.Expr) -> exp.Expr:
    for raw in list(tree.find_all(exp.RawString)):
        raw.replace(exp.Literal.string(raw.this))
    for frame in tree.find_all(exp.WindowSpec):
        if not frame.args.get("end"):
            frame.set("end", "CURRENT ROW")  # what ROWS 6 PRECEDING means
    for pivot in list(tree.find_all(exp.Pivot)):
        if pivot.args.get("alias") and not pivot.unpivot:
            _as_subquery(pivot)
    return tree


def _as_subquery(pivot: exp.Pivot) -> None:
    """Spark takes no alias behind PIVOT: the pivoted table becomes a subquery of that name."""
    table = pivot.parent
    assert table is not None  # noqa: S101 - a pivot belongs to a table or subquery
    alias = pivot.args["alias"].pop()
    place = exp.Placeholder()
    table.replace(place)
    place.replace(exp.Subquery(this=exp.Select(expressions=[exp.Star()], from_=exp.From(this=table)), alias=alias))
