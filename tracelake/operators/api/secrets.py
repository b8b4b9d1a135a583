"""The secrets that a job names, with their values, for its code alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Secrets(Mapping[str, str]):
    """By the names that the DAG gives them. What is printed of it are the names."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        if name not in self._values:
            raise KeyError(f"this task was handed no secret {name!r}: does the job name it in `secrets`?")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"
