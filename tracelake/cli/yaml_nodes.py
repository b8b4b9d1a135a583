"""The YAML nodes of a DAG with their positions in the text."""

from __future__ import annotations

from typing import Any


def composed(text: str) -> Any:
    """None for invalid or too deeply nested YAML: the check reports it."""
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
