"""Field types that the messages of the user API share."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from tracelake.domain.ids import ID_PREFIX
from tracelake.domain.ranges import MAX_END

MAX_PAGE = 500
OWN_ORG: Final = "-"
"""In a path, the organisation of the caller."""


Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]


# Postgres' text holds no NUL.
PlainText = Annotated[str, Meta(min_length=1, max_length=1000, pattern="^[^\\x00]*$")]


Name = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,127}$")]


IdPrefix = Annotated[str, Meta(pattern=ID_PREFIX)]


Edge = Annotated[int, Meta(ge=0, le=MAX_END)]


RowId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
