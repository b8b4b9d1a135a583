"""A home, `trace` as a user types it, and a running system."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.support.systems.command_line import Running, Said, Trace
from tests.support.systems.gateway import DAG, workers
from tracelake.cli import main
from tracelake.lite.home import Home


@pytest.fixture
def known_operators() -> Iterator[None]:
    with workers():
        yield


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = Home(tmp_path / "home")
    folder.make()
    return folder


@pytest.fixture
def trace(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    def run(*words: str, at_home: bool = True) -> Said:
        monkeypatch.setattr(sys, "argv", ["trace", *words, *(["--home", str(home.root)] if at_home else [])])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Said(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def running(home: Home, state_db: str, queue_db: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    # The system runs in this process: what it says for its log must not stand in what a verb prints.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    made = Running(home, state_db, queue_db)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        structlog.reset_defaults()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(DAG)
    return path
