"""Code, SQL and tests use standard terms: the words of a former private vocabulary are refused."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.support import ROOT

SOURCES = ("tracelake", "tracelake_demo", "tracelake_devchain", "trace_udf", "bench", "tools", "deploy")
WORDS = (
    r"doors?|doorways?|told|promises?|owe[ds]?|handed|bells?|askers?|janitors?|reapers?|wish(es)?|knocks?|furnish\w*"
    r"|twins?|seams?|patiently|patience|in[ _]hand|in[ _]force|code[ _]of[ _]users"
)
IN_CODE = re.compile(rf"(?<![a-z])({WORDS}|for (one|each|some|thing) in)(?![a-z])", re.IGNORECASE)
"""Also as a part of a longer name."""
IN_TESTS = re.compile(rf"(?<![a-z])({WORDS}|tells?|telling|news|reap|victims?|strangers?)(?![a-z])", re.IGNORECASE)
VAGUE = {"one", "each", "some", "thing", "things", "somebody", "nobody"}


def test_code_and_statements_use_standard_terms() -> None:
    """Python and SQL; migrations stay as they were applied."""
    files = [
        file
        for folder in SOURCES
        for kind in ("*.py", "*.sql")
        for file in sorted((ROOT / folder).rglob(kind))
        if "migrations" not in file.parts
    ]
    lines = [(file, line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [f"{file.relative_to(ROOT)}: {line.strip()}" for file, line in lines if IN_CODE.search(line)] == []


def test_tests_use_standard_terms() -> None:
    """In file names, comments, docstrings and every name that is defined; strings may hold data of any kind."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in files
        for line, text in [(0, file.stem), *words_of(file.read_text(encoding="utf-8"))]
        if IN_TESTS.search(text) or text in VAGUE
    ] == []


def test_the_words_are_found_in_names_comments_and_docstrings_and_not_in_data() -> None:
    source = 'class Door:\n    """What it told."""\n    def ask(self, wish): return "told"  # who owed\n'
    found = [text for _, text in words_of(source) if IN_TESTS.search(text)]
    assert found == ["# who owed", "Door", "What it told.", "wish"]
    assert [text for _, text in words_of("[one for one in 'ab']") if text in VAGUE] == ["one"]


def words_of(source: str) -> Iterator[tuple[int, str]]:
    """Each comment, docstring and defined name, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        yield from ((getattr(node, "lineno", 0), text) for text in _texts(node))


def _texts(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
            return [name]
        case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
            return [name]
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text.splitlines()
        case _:
            return []
