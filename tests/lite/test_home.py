"""A home belongs to one `trace up`, and its secrets to one user."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tracelake.errors import HomeInUse, SetupError
from tracelake.lite.home import Home, ensure_issuer_key, ensure_service_tokens, held, holder, public_pem, socket_folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home with a space")
    made.make()
    return made


def test_the_error_for_a_second_holder_names_the_first(home: Home) -> None:
    with held(home), pytest.raises(HomeInUse, match=f"process {os.getpid()}"), held(home):
        pass
    with held(home):
        assert holder(home) == os.getpid()
    assert holder(home) is None


def test_a_killed_holder_holds_nothing(home: Home) -> None:
    code = (
        "import sys, os, pathlib; from tracelake.lite.home import *\n"
        "with held(Home(pathlib.Path(sys.argv[1]))): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, home.root], check=False).returncode == -9
    assert holder(home) is None
    with held(home):
        pass


def test_keys_and_tokens_are_made_once_and_only_for_their_user(home: Home) -> None:
    made = ensure_service_tokens(home, ("worker", "sink"))
    assert made == ensure_service_tokens(home, ("worker", "sink"))
    assert made["worker"] != made["sink"]
    assert public_pem(ensure_issuer_key(home)) == public_pem(ensure_issuer_key(home))
    for path in (*home.keys.glob("*.pem"), *(home.keys / "services").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700


def test_a_home_that_others_could_read_is_closed_to_them(home: Home) -> None:
    """As one that an earlier version or a user made."""
    home.objects.mkdir()
    for folder in (home.root, home.objects, home.logs, home.keys):
        folder.chmod(0o755)
    home.make()
    for folder in (home.root, home.objects, home.logs, home.keys):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_an_empty_token_file_of_a_killed_start_is_made_good(home: Home) -> None:
    home.service_token("worker").parent.mkdir()
    home.service_token("worker").touch()
    assert len(ensure_service_tokens(home, ("worker",))["worker"]) > 40


def test_the_token_that_all_processes_shared_is_removed_from_a_former_home(home: Home) -> None:
    (home.keys / "worker.token").write_text("shared")
    assert "shared" not in ensure_service_tokens(home, ("worker",)).values()
    assert not (home.keys / "worker.token").exists()


def test_a_damaged_issuer_key_is_said_not_replaced(home: Home) -> None:
    (home.keys / "issuer.pem").write_text("not a key")
    with pytest.raises(SetupError, match="cannot be read"):
        ensure_issuer_key(home)
    assert (home.keys / "issuer.pem").read_text() == "not a key"


def test_a_home_that_cannot_be_made_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="cannot be created"):
        Home(tmp_path / "file" / "home").make()


def test_a_note_that_names_anything_but_our_own_folder_removes_nothing(home: Home, tmp_path: Path) -> None:
    """The note says which socket folder a killed `trace up` left; a damaged one must not delete anything else."""
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (home.lock.parent / "sockets").write_text(str(treasure))
    folder = socket_folder(home)
    assert treasure.exists()
    assert folder.name.startswith("trace-")
    left = socket_folder(home)
    assert not folder.exists()
    left.rmdir()
