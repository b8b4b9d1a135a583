"""A group of settings, and how a setting is declared."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

URL: Final = r"^https?://"


def setting(default: Any, why: str, *, unit: str | None = None, **limits: Any) -> Any:
    return Field(default=default, description=why, json_schema_extra={"unit": unit} if unit else None, **limits)


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
