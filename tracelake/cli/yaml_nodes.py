"""A DAG's text as nodes that know where they stand: what is put into the text goes there, and all else stays."""

from __future__ import annotations

from typing import Any


def composed(text: str) -> Any:
    """None for what is no YAML, or nests without end: that is left for the check to refuse."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, RecursionError):
        return None


def entry(node: Any, name: str) -> Any:
    return next((value for key, value in pairs(node) if key.value == name), None)


def pairs(node: Any) -> list[tuple[Any, Any]]:
    return node.value if getattr(node, "id", None) == "mapping" else []


def items(node: Any) -> list[Any]:
    return node.value if getattr(node, "id", None) == "sequence" else []
