"""A folder becomes a bundle: the same files, the same bytes, with the SDK and without what is none of its business."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tracelake.domain.bundle.rules import check
from tracelake.errors import InvalidBundle
from tracelake.udf.pack import judged, pack


@pytest.fixture
def code(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    made.mkdir()
    (made / "main.py").write_text("def handler(event, context): ...\n")
    (made / "lib").mkdir()
    (made / "lib" / "rules.py").write_text("LIMIT = 5\n")
    return made


def paths(archive: bytes) -> set[str]:
    return {entry.path for entry in check(archive).files}


def test_the_same_files_are_packed_into_the_same_bytes_by_any_user_at_any_time(code: Path, tmp_path: Path) -> None:
    first = pack(code)
    other = tmp_path / "other"
    (other / "lib").mkdir(parents=True)
    for name in ("lib/rules.py", "main.py"):  # in another order, at another time, with other rights of a group
        (other / name).write_bytes((code / name).read_bytes())
        os.utime(other / name, (0, time.time() - 10_000))
        (other / name).chmod(0o600)
    assert pack(other).archive == first.archive
    (other / "main.py").write_text("def handler(event, context): return 1\n")
    assert pack(other).archive != first.archive


def test_the_sdk_is_put_in_unless_the_folder_has_its_own(code: Path) -> None:
    assert {"trace_udf/__init__.py", "trace_udf/task.py", "main.py", "lib/rules.py"} <= paths(pack(code).archive)
    (code / "trace_udf").mkdir()
    (code / "trace_udf" / "__init__.py").write_text("MINE = True\n")
    (code / "main.js").write_text("")
    assert "trace_udf.js" in paths(pack(code, "node").archive)
    assert not any(name.startswith("trace_udf/node") for name in paths(pack(code).archive))


def test_what_lies_beside_code_is_left_out(code: Path) -> None:
    before = pack(code).archive
    for name in ("__pycache__/main.pyc", ".git/config", ".venv/bin/python", ".env", "lib/rules.pyc", "main.py~"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("secret")
    (code / ".venv" / "link").symlink_to("/etc")
    assert pack(code).archive == before


def test_a_link_is_refused_and_never_followed(code: Path) -> None:
    (code / "lib" / "data").symlink_to("/etc")
    with pytest.raises(InvalidBundle, match="lib/data is a link"):
        pack(code)


def test_kind_and_handler_are_read_off_what_lies_at_the_root(tmp_path: Path) -> None:
    for name, kind, handler in (
        ("main.py", "python", "main.handler"),
        ("main.mjs", "node", "main.handler"),
        ("index.js", "node", "index.handler"),
        ("bootstrap", "bootstrap", "main.handler"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
        made = pack(folder)
        assert (made.kind, made.handler) == (kind, handler)
        assert judged(made.archive).kind == kind


def test_a_folder_without_its_handler_is_refused_with_what_there_is(code: Path) -> None:
    with pytest.raises(InvalidBundle, match="no module 'app'") as refusal:
        pack(code, handler="app.handler")
    assert "main" in (refusal.value.hint or "")
    with pytest.raises(InvalidBundle, match="no such folder"):
        pack(code / "nowhere")
