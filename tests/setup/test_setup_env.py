"""Set-up for real: `tools/setup_env.py` as a process, in small trees of its own with a few tiny packages, from a
folder of wheels and never from a network. What is about the real lock is at the end.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import http.server
import importlib.metadata
import io
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import ROOT
from tests.support.setup_tree import PYPROJECT, SETUP, Tree
from tests.support.waiting import SECONDS

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
PHASES = ["new environment", "pip", "build tools", "packages", "trace itself", "compiling", "Spark's classes"]
FULL_DISK = "def build_wheel(*_, **__):\n    with open('/dev/full', 'w') as file:\n        file.write('x')\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree that is set up, at the second attempt: the first was killed while it put pip there."""
    tree = Tree(tmp_path_factory.mktemp("base")).write()
    with tree.start() as first:
        while not tree.modules("pip"):
            assert first.poll() is None
            time.sleep(0.02)
        first.kill()
        first.communicate()
    assert tree.state() == "working"
    (tree.venv / "half-written").write_text("")
    done = tree.run()
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "Setting up Trace in .venv with pip for Python 3." in done.stdout
    assert re.findall(r"^  (\S.*)$", done.stdout, re.MULTILINE) == PHASES
    assert re.search(r"^Set up in \d+ s\.$", done.stdout, re.MULTILINE)
    assert not (tree.venv / "half-written").exists()
    return tree


@pytest.fixture
def tree(base: Tree, tmp_path: Path) -> Tree:
    return base.copy(tmp_path)


def refused(done: subprocess.CompletedProcess[str], sentence: str, code: int = 1) -> None:
    """One sentence on stderr, the exit code, and no trace of the program's insides anywhere."""
    assert done.returncode == code, done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@contextlib.contextmanager
def silent_index() -> Iterator[tuple[dict[str, str], socket.socket]]:
    """An index that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": f"http://127.0.0.1:{server.getsockname()[1]}/"}, server


def failing_uv(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'error: Failed to fetch: `tiny`' >&2\nexit 2\n")
    path.chmod(0o755)


# A set-up that succeeds


def test_it_puts_there_what_is_locked_and_the_second_run_touches_nothing(base: Tree) -> None:
    assert base.modules() == {"tiny_build", "tiny_base", "tiny_dev", "tiny_trace"}
    assert subprocess.check_output([base.venv / "bin" / "trace"], text=True) == "tiny_trace runs\n"
    before = base.picture()
    again = base.run()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert base.picture() == before


def test_a_killed_set_up_leaves_no_process_running(tree: Tree) -> None:
    tree.lock("tiny-build", "tiny-base", "tiny-dev", "tiny-late")
    with silent_index() as (env, server), tree.start(**env) as killed:
        connection, _ = server.accept()
        with connection:
            killed.kill()
            connection.settimeout(SECONDS)
            while connection.recv(65536):
                pass  # the request; then the end, when the orphan is gone too
        killed.communicate()
    assert tree.state() == "working"


def test_a_second_set_up_waits_and_a_stopped_one_says_so(tree: Tree) -> None:
    """And for the second there is a uv, which cannot fetch: it gives way to pip."""
    tree.lock("tiny-build", "tiny-base", "tiny-dev", "tiny-late")
    with silent_index() as (env, server), tree.start(**env) as first:
        connection, _ = server.accept()
        failing_uv(Path(tree.env["PATH"]) / "uv")
        with connection, tree.start() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "Another set-up is at work in this checkout; waiting for it.\n"
            first.send_signal(signal.SIGINT)
            out, err = first.communicate(timeout=SECONDS)
            refused(
                subprocess.CompletedProcess([], first.returncode, out, err),
                "Set-up stopped; run it again to go on.",
                130,
            )
            out, err = second.communicate(timeout=SECONDS)
            assert (second.returncode, err) == (0, "")
            assert "uv did not manage (The package index could not be reached" in out
            assert "Set up in" in out
    assert tree.state() == "done"
    assert "tiny_late" in tree.modules()


def test_a_changed_lock_changes_what_is_there_and_what_others_put_there_stays(tree: Tree) -> None:
    subprocess.run(
        [tree.venv / "bin" / "python", "-m", "pip", "install", "-q", tree.wheel_of("tiny-mine")],
        env=tree.env,
        check=True,
    )
    tree.lock("tiny-build", "tiny-base", "tiny-new")
    done = tree.run()
    assert done.returncode == 0, done
    assert "those that changed" in done.stdout
    assert tree.modules() == {"tiny_build", "tiny_base", "tiny_new", "tiny_mine", "tiny_trace"}
    assert tree.run().stdout == ""


def test_a_checkout_with_a_new_name_is_installed_under_that_name_alone(tree: Tree) -> None:
    (tree.root / "pyproject.toml").write_text(PYPROJECT.replace("tiny-trace", "tiny-lake"))
    done = tree.run()
    assert done.returncode == 0, done
    assert tree.modules() == {"tiny_build", "tiny_base", "tiny_dev", "tiny_lake"}
    assert subprocess.check_output([tree.venv / "bin" / "trace"], text=True) == "tiny_lake runs\n"


def test_a_connection_that_breaks_after_a_good_start_is_tried_again(tree: Tree) -> None:
    class Index(http.server.SimpleHTTPRequestHandler):
        broken: ClassVar[list[str]] = []

        def do_GET(self) -> None:
            name = self.path.strip("/")
            if name.startswith("tiny-"):
                file = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
                self.answer("text/html", f'<a href="/{file}">{file}</a>'.encode())
            elif (tree.wheels / name).is_file():
                self.answer("application/zip", (tree.wheels / name).read_bytes())
            else:
                self.send_error(404)

        def answer(self, kind: str, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if "tiny_late" in self.path and not self.broken:
                self.broken.append(self.path)
                self.wfile.write(content[:100])
                self.wfile.flush()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()  # a reset, in the middle of a file
                return
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    tree.lock("tiny-build", "tiny-base", "tiny-dev", "tiny-late")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever).start()
        env = {"PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/", "PIP_NO_INDEX": "0", "PIP_FIND_LINKS": ""}
        done = tree.run(**env)
        server.shutdown()
    assert Index.broken
    assert done.returncode == 0, (done, (tree.venv / "setup.log").read_text())
    assert tree.state() == "done"


# A set-up that cannot succeed


def test_no_network(tree: Tree) -> None:
    tree.lock("tiny-build", "tiny-late")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_RETRIES": "1"}
    done = tree.run(PIP_INDEX_URL=f"http://127.0.0.1:{port}/", **env)
    refused(done, "The package index could not be reached")
    assert done.stderr.endswith("Full output: .venv/setup.log\n")
    assert tree.state() == "ready"


def test_a_package_that_is_not_what_was_locked(tree: Tree) -> None:
    tree.lock("tiny-build", "tiny-base", "tiny-dev", "tiny-late")
    lock = tree.root / "requirements.lock"
    lock.write_text(re.sub("(late.*sha256:).*", rf"\g<1>{'0' * 64}", lock.read_text()))
    refused(tree.run(), "What the package index sent for tiny-late==1.0 is not what requirements.lock expects")
    assert "tiny_late" not in tree.modules()
    assert tree.state() == "ready"


def test_a_package_the_index_does_not_have(tree: Tree) -> None:
    tree.lock("tiny-build", "tiny-base", "tiny-dev", "tiny-late")
    (tree.wheels / "tiny_late-1.0-py3-none-any.whl").unlink()
    refused(tree.run(), "The package index shows no version of tiny-late")


def test_no_disk_to_begin_with(tmp_path: Path) -> None:
    tree = Tree(tmp_path).write()
    refused(tree.run("--needs-mb", str(10**12)), f"MB free, and set-up needs about {10**12} MB.")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_becomes_full(tree: Tree) -> None:
    with tarfile.open(tree.wheels / "tiny-full-1.0.tar.gz", "w:gz") as archive:
        for name, text in {
            "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-full\nVersion: 1.0\n",
            "pyproject.toml": PYPROJECT,
            "backend.py": FULL_DISK,
        }.items():
            entry = tarfile.TarInfo(f"tiny-full-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    digest = hashlib.sha256((tree.wheels / "tiny-full-1.0.tar.gz").read_bytes()).hexdigest()
    (tree.root / "requirements.lock").write_text(f"tiny-full==1.0 --hash=sha256:{digest}\n")
    refused(tree.run(), "became full.")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tree = Tree(tmp_path).write()
    tree.root.chmod(0o555)
    # Root may write anywhere, unless it lays that right down.
    humble = (
        [shutil.which("setpriv") or "setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    )
    done = subprocess.run([*humble, *tree.command()], env=tree.env, capture_output=True, text=True, check=False)
    tree.root.chmod(0o755)
    refused(done, f"{tree.root} cannot be written by this user.")


def test_an_environment_of_someone_else_is_not_removed(tmp_path: Path) -> None:
    tree = Tree(tmp_path).write()
    (tree.venv / "bin").mkdir(parents=True)
    refused(tree.run(), "There is a .venv here that set-up did not make and cannot use")
    assert (tree.venv / "bin").exists()


def run_as(prelude: str, tree: Tree, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The running Python, made to look like another."""
    script = tree.command()[1]
    code = f"import runpy, sys; {prelude}; sys.argv = {[script, *options]}; "
    command = [sys.executable, "-c", code + f"runpy.run_path({script!r}, run_name='__main__')"]
    return subprocess.run(
        command, env={**tree.env, **env}, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_a_python_without_the_means_to_make_an_environment(tmp_path: Path) -> None:
    tree = Tree(tmp_path).write()
    done = run_as("sys.modules['ensurepip'] = None", tree, "--needs-mb", "50")
    refused(done, "This Python has no ensurepip module, which makes environments: install python3-venv")


@pytest.mark.parametrize("version", ["3.9.2", "3.10.13", "3.14.0"])
def test_a_python_that_is_too_old_or_too_new(tmp_path: Path, version: str) -> None:
    tree = Tree(tmp_path).write()
    prelude = f"sys.version_info = ({version.replace('.', ', ')})"
    refused(run_as(prelude, tree), f"Trace needs Python 3.11, 3.12 or 3.13, and python3 is Python {version}:")
    refused(run_as(prelude, tree, PYTHON="mypython"), f"and mypython is Python {version}:")
    assert not tree.venv.exists()

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.12").symlink_to(sys.executable)
    done = run_as(prelude, tree, "--help")
    assert (done.returncode, done.stderr) == (0, ""), "a Python of the right version on PATH is taken instead"
    assert "Makes .venv from requirements.lock." in done.stdout


def test_old_pythons_can_read_the_script_far_enough_to_refuse() -> None:
    ast.parse(SETUP.read_text(encoding="utf-8"), feature_version=(3, 7))


def test_make_alone_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    shown = subprocess.check_output(["make", "-s", "-C", ROOT], text=True)
    assert [line.split()[1] for line in shown.splitlines()] == targets[1].split()


# The lock


def pinned() -> dict[str, Requirement]:
    pins = [Requirement(line.split(" --hash")[0]) for line in LOCK]
    return {pin.name: pin for pin in pins}


def test_the_lock_holds_each_package_once_with_version_and_hashes_and_nothing_else() -> None:
    for line in LOCK:
        assert re.fullmatch(r"[a-z0-9-]+==[^\s;]+( ; [^-]\S*( [^-]\S*)*)?( --hash=sha256:[0-9a-f]{64})+", line), line[
            :80
        ]
    assert len(pinned()) == len(LOCK)


def test_every_dependency_in_pyproject_has_a_pin_that_fits() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, pins = pyproject["project"], pinned()
    groups = [
        [*pyproject["build-system"]["requires"], "pip"],
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *pyproject["dependency-groups"].values(),
    ]
    for item in (Requirement(text) for group in groups for text in group):
        assert canonicalize_name(item.name) in pins, f"{item} is not in requirements.lock: run `make lock`"
        version = str(pins[canonicalize_name(item.name)].specifier).removeprefix("==")
        assert item.specifier.contains(version), f"{item} in requirements.lock is {version}: run `make lock`"


def test_the_lock_is_whole() -> None:
    """Packages are installed without their dependencies, so each of those must be locked too."""
    locked = pinned()
    for name, pin in locked.items():
        if pin.marker is not None and not pin.marker.evaluate():
            continue
        assert importlib.metadata.version(name) == str(pin.specifier).removeprefix("=="), name
        for needed in map(Requirement, importlib.metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in locked, f"{name} needs {needed}"
