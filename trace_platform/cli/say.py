"""How the command line speaks: tables for eyes, JSON for programs, refusals for both."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

from trace_platform.errors import TraceError

# A pipe has no width: what is cut off at 80 columns there is lost to whoever reads it.
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def as_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def refuse(refusal: TraceError, *, in_json: bool) -> None:
    if in_json:
        as_json({"error": refusal.as_dict()})
        return
    err.print(f"[bold red]{refusal.code}[/]: {_plain(refusal.message)}", markup=True)
    if refusal.where:
        err.print(f"  where: {refusal.where}", markup=False)
    if refusal.hint:
        err.print(f"  try:   {refusal.hint}", markup=False)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
