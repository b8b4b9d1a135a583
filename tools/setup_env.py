"""Makes `.venv` as the lock files in `requirements/` say. `make` runs it before every target; when nothing has
changed it ends at once and touches nothing. Standard library only, and written so that it still parses on old
Pythons, which it leaves for a newer one or refuses with a sentence.

    EXTRAS="aws console" PYTHON=python3.12 make setup

`.venv/setup.json` says how far it came: `working` (an install was cut off: start over), `ready` (an empty
environment: go on), `done` (with what it was made from). It is written last and replaced in one step.
"""

import argparse
import contextlib
import errno
import hashlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TextIO

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
LOG, STATE, TEMP = VENV / "setup.log", VENV / "setup.json", VENV / "tmp"
OLDEST, NEWEST = (3, 11), (3, 13)


def version_of(python: str) -> str:
    """`3.12.1`, or nothing when it does not run (a pyenv shim without its Python, a dangling link)."""
    code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    try:
        out = subprocess.check_output([python, "-I", "-S", "-c", code], stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return out.decode().strip()


def supported(version: str) -> bool:
    return bool(version) and OLDEST <= tuple(int(part) for part in version.split(".")[:2]) <= NEWEST


def leave_unsupported_python() -> None:
    here = "{}.{}.{}".format(*sys.version_info[:3])
    if supported(here):
        return
    asked = os.environ.get("PYTHON", "")
    for name in [] if asked else [str(VENV_PYTHON), "python3.13", "python3.12", "python3.11"]:
        python = shutil.which(name)
        if python and supported(version_of(python)):
            os.execv(python, [python, *sys.argv])  # noqa: S606 - a list, and no shell is wanted
    sys.exit(
        f"Trace needs Python 3.11, 3.12 or 3.13, and {asked or 'python3'} is Python {here}: "
        "install one of these, or name one with `make PYTHON=/path/to/python3.12`."
    )


if __name__ == "__main__":
    leave_unsupported_python()  # before anything below that an old Python cannot evaluate

SIZES = "about 700 MB to fetch, 1.3 GB in the end"
NEEDS_MB = 3300  # at its peak, when pyspark is built
CACHE_MB = 1300  # more, for what pip or uv keeps outside the checkout
LARGE_MB = 20
FEW = 5
HEARTBEAT_SECONDS = 60
# Runs a command and ends it, with all that it started, when the set-up at the other end of stdin is gone.
GUARDIAN = """
import os, signal, subprocess, sys, threading
def watch():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
os._exit(code if code >= 0 else 128 - code)
"""
# What no process of ours imports is not compiled: a third of the time for all of the benefit.
NOT_COMPILED = (
    r"/site-packages/((pip|setuptools|mypyc?|botocore|docutils|pyspark/(ml|mllib|pandas|streaming))/"
    r"|(.+/)?(tests?|testing|lexers|examples)/)"
)
# Of the user's own pip and uv settings, those that would put packages elsewhere or change what is installed.
NOT_INHERITED = {
    *("PYTHONPATH", "PYTHONHOME", "FORCE_COLOR", "CLICOLOR_FORCE"),
    *("PIP_PYTHON", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_DRY_RUN", "PIP_QUIET", "PIP_VERBOSE"),
    *("PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_REQUIRE_HASHES", "PIP_EDITABLE"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_REQUIRE_HASHES"),
}


class Failure(Exception):
    """One sentence for the person at the keyboard."""

    kind = ""


class Wanted(NamedTuple):
    extras: list[str]
    packages: dict[str, str]
    locks: str
    project: str

    def files(self) -> list[Path]:
        return [ROOT / "requirements" / f"{name}.txt" for name in ("base", "dev", *self.extras)]


def wanted(asked: set[str], kept: set[str]) -> Wanted:
    """What the tree asks for, with a digest of the lock files and one of the parts of pyproject.toml that count.
    Extras once installed stay.
    """
    import tomllib

    try:
        tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"pyproject.toml cannot be read: {error}.") from error
    project = {key: tables[key] for key in ("build-system", "project")}
    known = project["project"].get("optional-dependencies", {}).keys()
    for extra in sorted(asked - known):
        raise Failure(f"There is no extra named {extra!r}: the extras are {', '.join(sorted(known)) or 'none'}.")
    extras = sorted(asked | kept & known)
    result = Wanted(extras, {}, "", hashlib.sha256(json.dumps(project, sort_keys=True).encode()).hexdigest())
    digest = hashlib.sha256()
    for file in (ROOT / "requirements" / "build.txt", *result.files()):
        content = file.read_bytes()
        digest.update(file.name.encode() + b"\0" + content + b"\0")
        result.packages.update(pins(content.decode()))
    return result._replace(locks=digest.hexdigest())


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE))


def interpreter() -> list[Any]:
    """What tells that the Python behind `.venv` was replaced, without starting it."""
    with contextlib.suppress(OSError):
        stat = VENV_PYTHON.stat()
        return [os.path.realpath(VENV_PYTHON), stat.st_mtime_ns, stat.st_size]
    return []


def read_state() -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        state = json.loads(STATE.read_text(encoding="utf-8"))
        if isinstance(state, dict):
            return state
    return {}


def write_state(state: str, **facts: object) -> None:
    new = STATE.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump({"state": state, "root": str(ROOT), **facts}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(STATE)


def asked_python() -> str:
    """Set when someone names the Python: only then is an environment of another Python replaced."""
    return "{}.{}".format(*sys.version_info[:2]) if os.environ.get("PYTHON") else ""


def is_done(state: dict[str, Any], want: Wanted) -> bool:
    return (
        state.get("state") == "done"
        and state.get("root") == str(ROOT)
        and state.get("locks") == want.locks
        and state.get("project") == want.project
        and state.get("interpreter") == interpreter() != []
        and asked_python() in {"", state.get("python")}
    )


class Screen:
    """One live line on a terminal; elsewhere a line for each phase and each large package."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self.began = self.shown = time.monotonic()

    def say(self, text: str) -> None:
        self.clear()
        print(text, file=self.stream, flush=True)
        self.shown = time.monotonic()

    def clear(self) -> None:
        if self.live:
            print("\r\033[2K", end="", file=self.stream, flush=True)

    def phase(self, text: str) -> None:
        if self.live:
            self.draw("", text)
        else:
            self.say(f"  {text}")

    def draw(self, count: str, text: str) -> None:
        now = time.monotonic()
        if self.live:
            line = f"{count}{text}, {now - self.began:.0f} s"
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[2K{line[:width]}", end="", file=self.stream, flush=True)
        elif now - self.shown > HEARTBEAT_SECONDS:
            self.say(f"    still {text}, {now - self.began:.0f} s")


class Watch:
    """Reads what pip or uv prints and turns it into progress."""

    def __init__(self, screen: Screen, text: str, total: int = 0) -> None:
        self.screen, self.text, self.total = screen, text, total
        self.fetched = 0
        self.tail = [""]
        self.ignored: set[str] = set()
        self.before = installed()
        self.installing = False

    def line(self, line: str) -> bool:
        """Whether the line is worth keeping in the log."""
        figures = re.fullmatch(r"Progress (\d+) of (\d+)", line)
        if figures:
            self.amount(int(figures[1]), int(figures[2]))
            return False
        self.tail = [*self.tail[-400:], line]
        with contextlib.suppress(IndexError, ValueError):  # a line of another shape is no reason to stop
            self.follow(line, line.split())
        return True

    def follow(self, line: str, words: list[str]) -> None:
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            self.fetched += 1
            self.text = "fetching " + re.split("[=<>~!;]", words[1] if words[0] == "Collecting" else words[3])[0]
        elif words[0] == "Ignoring" and words[1] not in self.ignored:  # not for this machine; may be in two locks
            self.ignored.add(words[1])
            self.total -= 1
        elif words[0] == "Downloading":
            self.download(words)
        elif words[0] == "Downloaded" and f" {words[1]} " in self.text:
            self.text = "fetching packages"
        elif line.startswith("  Building wheel for ") and words[-1] == "started":
            self.large(f"building {words[3]}")
        elif words[0] == "Building" and "==" in words[1]:
            self.large(f"building {words[1].split('==')[0]}")
        elif line.startswith("Installing collected packages: "):
            self.install(len(words) - 3)
        elif line.startswith("Prepared "):
            self.install(int(words[1]))

    def amount(self, done: int, total: int) -> None:
        if total >= LARGE_MB * 10**6:
            self.text = re.sub(r"( \d+ of)? \d+ MB$", "", self.text) + f" {done // 10**6} of {total // 10**6} MB"

    def download(self, words: list[str]) -> None:
        found = re.search(r"\(([\d.]+) ?([MG])i?B\)", " ".join(words))
        size = float(found[1]) * (1000 if found[2] == "G" else 1) if found else 0
        if size >= LARGE_MB:
            name = re.split(r"-\d", words[1].rsplit("/", 1)[-1])[0]
            self.large(f"fetching {name} {size:.0f} MB")

    def install(self, count: int) -> None:
        self.installing, self.total = True, count
        if count >= FEW:
            self.large(f"installing {count} packages")

    def large(self, text: str) -> None:
        self.text = text
        if not self.screen.live:
            self.screen.say(f"    {text}")

    def tick(self) -> None:
        done = len(installed() - self.before) if self.installing else self.fetched
        self.screen.draw(f"[{min(done, self.total)}/{self.total}] " if done and self.total else "", self.text)


def installed() -> set[str]:
    return {path.name.lower().replace("_", "-") for path in VENV.glob("lib/python3*/site-packages/*.dist-info")}


def entries() -> set[str]:
    return {str(path) for path in VENV.glob("lib/python3*/site-packages/*")}


class Setup:
    """One set-up, under the lock."""

    def __init__(self, screen: Screen, want: Wanted, lock: int) -> None:
        self.screen, self.want, self.lock = screen, want, lock
        self.version = ""
        # Run from inside an old .venv, the Python to use is the one that .venv was made from.
        inside = VENV in Path(sys.executable).parents
        self.python = os.path.realpath(sys.executable) if inside else sys.executable
        self.packages = set(want.packages)  # and, when an environment is kept, those it had
        self.uv = shutil.which("uv")
        self.env = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        # Temporary files go where the space was checked and where starting over finds them.
        self.env.update(PIP_USER="0", NO_COLOR="1", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
        self.env.update(TMPDIR=str(TEMP), PIP_ROOT_USER_ACTION="ignore")
        self.env.setdefault("PIP_RETRIES", "2")
        # pyspark comes as a source archive of jars: packing them again without compressing halves its build.
        self.env.setdefault("DIST_EXTRA_CONFIG", str(TEMP / "build.cfg"))

    # What to start from

    def run(self, state: dict[str, Any], needs_mb: int) -> None:
        keep = self.choose(state)
        new = not keep or state.get("state") != "done"
        self.screen.say(
            f"Setting up Trace in .venv with {'uv' if self.uv else 'pip'} for Python {self.version}: "
            f"{len(self.want.packages)} packages, {SIZES if new else 'of which those that changed are fetched'}. "
            "Full output: .venv/setup.log"
        )
        if keep:
            self.packages |= set(state.get("packages", ()))
        else:
            self.clear()
        if new:
            self.check_space(needs_mb)
        LOG.write_text("", encoding="utf-8")
        shutil.rmtree(TEMP, ignore_errors=True)
        TEMP.mkdir()
        try:
            (TEMP / "build.cfg").write_text("[bdist_wheel]\ncompression = stored\n", encoding="utf-8")
            if not keep:
                self.new_environment()
            self.install(same_locks=keep and state.get("locks") == self.want.locks)
            self.compile()
            self.archive()
        finally:
            shutil.rmtree(TEMP, ignore_errors=True)
        self.packages = set(self.want.packages)
        self.state("done", locks=self.want.locks, project=self.want.project, interpreter=interpreter())
        self.screen.say(f"Set up in {time.monotonic() - self.screen.began:.0f} s.")

    def state(self, state: str, **facts: object) -> None:
        write_state(state, python=self.version, extras=self.want.extras, packages=sorted(self.packages), **facts)

    def choose(self, state: dict[str, Any]) -> bool:
        """Settles the Python, and says whether the environment that is there can be kept."""
        found = version_of(str(VENV_PYTHON)) if VENV_PYTHON.exists() else ""
        minor = ".".join(found.split(".")[:2])
        keep = supported(found) and asked_python() in {"", minor}
        if state:
            made = [state.get(key) for key in ("root", "python")]
            keep = keep and state.get("state") in {"ready", "done"} and made == [str(ROOT), minor]
        elif not keep and VENV.exists() and any(path.name != "setup.new" for path in VENV.iterdir()):
            raise Failure(
                f"There is a .venv here that set-up did not make and cannot use (Python {found or 'missing'}): "
                "move it away, or remove it with `make clean`."
            )
        self.version = minor if keep else "{}.{}".format(*sys.version_info[:2])
        return keep

    def clear(self) -> None:
        VENV.mkdir(exist_ok=True)
        self.state("working")
        for path in VENV.iterdir():
            if path in {STATE, LOG, TEMP}:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def new_environment(self) -> None:
        self.check_pip_can_come()
        self.command("new environment", [self.python, "-m", "venv", "--without-pip", str(VENV)])
        self.state("ready")

    def check_pip_can_come(self) -> None:
        from importlib.util import find_spec

        missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
        if "venv" in missing or (missing and not self.uv):
            raise Failure(
                f"This Python has no {' and no '.join(missing)} module, which makes environments: "
                "install python3-venv (Debian, Ubuntu: apt install python3-venv), or name another with PYTHON."
            )

    def check_space(self, needs_mb: int) -> None:
        """A cache is a comfort: where it has no room, set-up does without."""
        free = free_mb(VENV)
        if free < needs_mb:
            raise Failure(f"The disk of {ROOT} has {free} MB free, and set-up needs about {needs_mb} MB.")
        for name, switch in (("pip", "PIP_NO_CACHE_DIR"), ("uv", "UV_NO_CACHE")):
            cache = existing(Path(self.env.get(f"{name.upper()}_CACHE_DIR") or cache_home() / name))
            same = cache.stat().st_dev == VENV.stat().st_dev
            if (free - needs_mb if same else free_mb(cache)) < CACHE_MB:
                self.env[switch] = "1"

    # What to install

    def install(self, *, same_locks: bool) -> None:
        if self.uv:
            try:
                self.install_with([self.uv, "pip"], ["--python", str(VENV_PYTHON)], same_locks=same_locks)
            except Failure as failure:
                if failure.kind in {"space", "hash"}:
                    raise
                self.screen.say(f"  uv did not manage ({failure}) Going on with pip, which has settings of its own.")
                self.uv = None
                if read_state().get("state") == "working":  # it had begun to install
                    same_locks, self.packages = False, set(self.want.packages)
                    self.clear()
                    self.new_environment()
            else:
                return
        self.check_pip_can_come()
        pip = [str(VENV_PYTHON), "-m", "pip"]
        if not any(name.startswith("pip-") for name in installed()):
            self.command("pip", [str(VENV_PYTHON), "-m", "ensurepip", "--upgrade", "--default-pip"], guard=True)
        self.install_with(pip, [], same_locks=same_locks)

    def install_with(self, tool: list[str], target: list[str], *, same_locks: bool) -> None:
        """Build tools first: with them here, and no build isolation, what builds is pinned by hash as well."""
        install = [*tool, "install", *target, "--no-deps", "--no-build-isolation"]
        locked = [*install, "--require-hashes"]
        gone = sorted(self.packages - set(self.want.packages))
        if gone:
            self.command("removing", [*tool, "uninstall", *target, *([] if target else ["-y"]), *gone], guard=True)
        if not same_locks:
            self.locked("build tools", [*locked, *self.how(target)], [ROOT / "requirements" / "build.txt"])
            self.locked("packages", [*locked, *self.how(target)], self.want.files())
        self.command("trace itself", [*install, "-e", "."], guard=True)

    def how(self, target: list[str]) -> list[str]:
        """pip: no bytecode yet, and figures as it downloads if it is a pip that can say them."""
        if target:
            return []
        versions = [re.findall(r"\d+", name)[:2] for name in installed() if name.startswith("pip-")]
        raw = any([int(part) for part in version] >= [24, 1] for version in versions)
        return ["--no-compile", "--progress-bar", "raw" if raw else "off"]

    def locked(self, text: str, command: list[str], files: list[Path]) -> None:
        """A broken connection after a good start is tried again: what was fetched is in the cache."""
        for file in files:
            command = [*command, "-r", str(file.relative_to(ROOT))]
        lock = "".join(file.read_text(encoding="utf-8") for file in files)
        if ";" not in lock and {f"{name}-{pin}.dist-info" for name, pin in pins(lock).items()} <= installed():
            return
        total = len(pins(lock))
        for attempt in (1, 2, 3):
            watch = Watch(self.screen, text, total)
            try:
                self.command(text, command, guard=True, watch=watch)
            except Failure as failure:
                if failure.kind != "network" or watch.fetched <= 1 or attempt == 3:  # noqa: PLR2004
                    raise
                self.screen.say(f"    the connection broke; trying again ({attempt + 1} of 3)")
            else:
                return

    def compile(self) -> None:
        """Once, here: every process starts a second or two sooner, and where Python may not write bytecode
        (PYTHONDONTWRITEBYTECODE) each of them would pay that every time.
        """
        folders = [str(path) for path in (*VENV.glob("lib/python3*/site-packages"), ROOT / "tracelake")]
        command = [str(VENV_PYTHON), "-m", "compileall", "-q", "-j", "0", "-x", NOT_COMPILED, *folders]
        self.command("compiling", command, codes=(0, 1))

    def archive(self) -> None:
        """Spark's Java starts with half the work when its classes lie ready. Without, it starts all the same."""
        self.command(
            "Spark's classes", [str(VENV_PYTHON), "-m", "tracelake.spark.class_archive"], codes=range(-64, 256)
        )

    # How a command runs

    def command(
        self,
        text: str,
        command: list[str],
        *,
        guard: bool = False,
        watch: Watch | None = None,
        codes: Container[int] = (0,),
    ) -> None:
        """Runs it with its output in the log. `guard`: while it may be half done, the state says `working`."""
        watch = watch or Watch(self.screen, text)
        self.screen.phase(text)
        before = entries()
        if guard:
            self.state("working")
        try:
            code = self.child(command, watch)
        except BaseException:
            if guard and entries() == before:
                self.state("ready")
            raise
        if guard and (code in codes or entries() == before):
            self.state("ready")
        if code not in codes:
            raise explain(text, "uv" if command[0] == self.uv else "pip", code, "\n".join(watch.tail))

    def child(self, command: list[str], watch: Watch) -> int:
        with LOG.open("a", encoding="utf-8") as log, self.start(command) as process:
            began = time.monotonic()
            log.write(f"$ {' '.join(command)}\n")
            try:
                for line in lines_of(process, watch.tick):
                    if watch.line(line):
                        log.write(line + "\n")
                log.write(f"  {time.monotonic() - began:.1f} s\n")
                return process.wait()
            finally:
                if process.poll() is None:
                    end_group(process)

    def start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [self.python, "-I", "-S", "-c", GUARDIAN, *command],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(self.lock,),  # the lock is held as long as anything works on .venv
        )


def end_group(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(5)


def lines_of(process: "subprocess.Popen[bytes]", tick: Callable[[], None]) -> Iterator[str]:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(0.25):
                chunk = os.read(process.stdout.fileno(), 65536)
                *lines, rest = re.split(rb"[\r\n]", rest + chunk)
                yield from (line.decode(errors="replace") for line in lines if line.strip())
                if not chunk:
                    break
            tick()
    if rest.strip():
        yield rest.decode(errors="replace")


def free_mb(path: Path) -> int:
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize // 10**6


def existing(path: Path) -> Path:
    while not os.access(path, os.F_OK) and path != path.parent:
        path = path.parent
    return path


def cache_home() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given)
    home = os.environ.get("HOME") or "/"
    return Path(home) / ("Library/Caches" if sys.platform == "darwin" else ".cache")


CERTIFICATE = (
    r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|confirming the ssl certificate|SSL module is not available"
)
NETWORK = re.compile(
    r"(?i)failed to establish a new connection|connection refused|name resolution|name or service not known"
    r"|max retries exceeded|read ?timed? ?out|connect(ion)? ?timed? ?out|connection (broken|reset|aborted|error)"
    r"|connectionerror|newconnectionerror|nameresolutionerror|network is unreachable|no route to host|incompleteread"
    r"|incomplete-download|remote end closed|error sending request|failed to fetch|dns error|could not fetch url"
    r"|failed to lookup address|proxyerror|cannot connect to proxy|tunnel connection failed"
    r"|50\d (server error|bad gateway|service unavailable|gateway time)"
)


def explain(text: str, tool: str, code: int, output: str) -> Failure:
    """The one sentence for what pip or uv said in pages."""
    kind, sentence = "", ""
    missing = re.search(
        r"No matching distribution found for (\S+)|Because (\S+==\S+) has no (?:usable )?wheels", output
    )
    bad = re.search(r"[Hh]ash mismatch for `?([^\s`]+)|^ +([\w.-]+==\S+) from ", output, re.MULTILINE)
    refusal = re.search(r"40[137] (Client Error|Unauthorized|Forbidden)|not a trusted or secure host", output)
    if re.search(r"No space left on device|os error 28|Errno 28|Disk quota exceeded", output):
        kind, sentence = "space", f"The disk of {ROOT} (or of {tool}'s cache) became full."
    elif re.search(r"DO NOT MATCH THE HASHES|[Hh]ash mismatch", output):
        which = bad[1] or bad[2] if bad else "a package"
        kind = "hash"
        sentence = f"What the package index sent for {which} is not what requirements/ expects (its hash differs)."
    elif re.search(CERTIFICATE, output):
        kind = "certificate"
        sentence = "The package index's certificate could not be checked: set SSL_CERT_FILE and PIP_CERT."
    elif refusal:
        sentence = f"The package index refused: {refusal[0].strip()}."
    elif NETWORK.search(output):
        kind = "network"
        sentence = "The package index could not be reached: check the network, the proxy, or PIP_INDEX_URL."
    elif missing and "(from versions: none)" in output:
        which = missing[1].split("==")[0]
        sentence = f"The package index shows no version of {which}: it is a partial one, or refuses without saying so."
    elif missing:
        which, machine = missing[1] or missing[2], f"{sys.platform} {os.uname().machine}"
        sentence = f"The package index has no {which} for this Python and machine ({machine})."
    elif code < 0 or code > 128:  # noqa: PLR2004 - as shells say it
        sentence = f"Signal {-code if code < 0 else code - 128} ended the step '{text}': out of memory?"
    else:
        errors = re.findall(r"(?i)^ *(?:error|\w+Error): *(.+)$", output, re.MULTILINE)
        why = f": {errors[-1].strip().rstrip('.')}" if errors else ""
        sentence = f"The step '{text}' failed{why}."
    failure = Failure(sentence)
    failure.kind = kind
    return failure


@contextlib.contextmanager
def only_one(screen: Screen) -> Iterator[int]:
    """The lock is this file itself: nothing to make, nothing to leave behind."""
    import fcntl

    descriptor = os.open(__file__, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            screen.say("Another set-up is at work in this checkout; waiting for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield descriptor
    finally:
        os.close(descriptor)


def os_sentence(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"The disk of {ROOT} became full."
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"{error.filename or VENV} cannot be written by this user."
    return f"{error.strerror or error}: {error.filename or ROOT}."


def stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/setup_env.py", description="Makes .venv from the lock files.")
    parser.add_argument("--extras", default=os.environ.get("EXTRAS", ""), help="names, by space or comma ($EXTRAS)")
    parser.add_argument("--needs-mb", type=int, default=NEEDS_MB, help="free disk to ask for (default %(default)s)")
    options = parser.parse_args()
    screen = Screen(sys.stdout)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, stop)
    try:
        state = read_state()
        want = wanted(set(re.split(r"[,\s]+", options.extras)) - {""}, set(state.get("extras", ())))
        if is_done(state, want):
            return 0
        if not os.access(ROOT, os.W_OK):
            raise Failure(f"{ROOT} cannot be written by this user.")  # noqa: TRY301
        with only_one(screen) as lock:
            state = read_state()
            if not is_done(state, want):
                Setup(screen, want, lock).run(state, options.needs_mb)
    except KeyboardInterrupt:
        screen.clear()
        print("Set-up stopped; run it again to go on.", file=sys.stderr)
        return 130
    except (Failure, OSError) as failure:
        screen.clear()
        sentence = os_sentence(failure) if isinstance(failure, OSError) else failure
        print(f"Set-up failed: {sentence}" + (" Full output: .venv/setup.log" if LOG.exists() else ""), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
