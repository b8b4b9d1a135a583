"""Fixtures of the runtimes."""

from __future__ import annotations

import pytest

from tracelake.dispatcher.runtimes import call_functions


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed in every step, and an unreachable runner is retried soon."""
    monkeypatch.setattr(call_functions, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(call_functions, "AWAY_SECONDS", (0.01, 0.02))
