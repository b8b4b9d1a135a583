"""What makes a query give other rows at another time: a clock or chance, called by name or by a word in a text."""

from __future__ import annotations

from sqlglot import exp

from tracelake.domain.sql.functions import CLOCK_COLUMNS, CLOCK_WORDS, CLOCKS_AND_CHANCE, TIMES


def is_clock_word(text: str) -> bool:
    """One of them, and perhaps a zone behind it."""
    word = text.strip().casefold()
    return any(word.startswith(item) and not word[len(item) : len(item) + 1].isalnum() for item in CLOCK_WORDS)


def is_clock_or_chance(call: exp.Anonymous) -> bool:
    name = str(call.this).casefold()
    return name in CLOCKS_AND_CHANCE and (name != "unix_timestamp" or not call.expressions)


def is_clock_column(column: exp.Column) -> bool:
    """`current_date` and the like: the clock, unless a table has a column of that name."""
    quoted = isinstance(column.this, exp.Identifier) and column.this.quoted
    return len(column.parts) == 1 and column.name.casefold() in CLOCK_COLUMNS and not quoted


def is_lasting(tree: exp.Query) -> bool:
    """Casts that are not written down are seen in Spark's plan, those inside of its functions of time are not."""
    calls = list(tree.find_all(exp.Anonymous))
    of_time = [argument for call in calls if str(call.this).casefold() in TIMES for argument in call.expressions]
    of_time += [extract.expression for extract in tree.find_all(exp.Extract)]
    clocks = any(is_clock_or_chance(call) for call in calls) or any(map(is_clock_column, tree.find_all(exp.Column)))
    return not clocks and all(_stands_still(item) for item in of_time)


def _stands_still(argument: exp.Expr) -> bool:
    """Whether no text in it can turn out to be 'now'; in doubt, no."""
    if isinstance(argument, exp.Literal):
        return not argument.name.strip().casefold().startswith(CLOCK_WORDS)
    return isinstance(argument, exp.Column) or (
        isinstance(argument, exp.Anonymous) and str(argument.this).casefold() in TIMES
    )
