"""Makes `.venv` as `requirements.lock` says. `make` runs it before every target; when nothing has changed it ends at
once and touches nothing. Standard library only, and written so that it still parses on old Pythons, which it leaves
for a newer one or refuses with a sentence.

`.venv/setup.json` says how far it came: `working` (an install was cut off: start over), `ready` (a sound environment:
go on), `done` (with what it was made from). It is replaced in one step.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
LOG, STATE, TEMP = VENV / "setup.log", VENV / "setup.json", VENV / "tmp"
OLDEST, NEWEST = (3, 11), (3, 13)


def version_of(python: str) -> str:
    """`3.12`, or nothing when it does not run (a pyenv shim without its Python, a dangling link)."""
    command = [python, "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=20).decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""


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

SIZES = "about 700 MB to fetch, 1.9 GB in the end"
NEEDS_MB = 3300  # at its peak, when pyspark is built
CACHE_MB = 1300  # more, for what pip or uv keeps outside the checkout
HEARTBEAT_SECONDS = 20
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
    r"/site-packages/((pip|setuptools|mypyc?|botocore|docutils|sympy|mpmath|networkx|cfnlint|mkdocs"
    r"|pyspark/(ml|mllib|pandas|streaming))/|(.+/)?(tests?|testing|lexers|examples)/)"
)
# Of the user's own pip and uv settings, those that would put packages elsewhere or change what is installed.
NOT_INHERITED = {
    *("PYTHONPATH", "PYTHONHOME", "FORCE_COLOR", "CLICOLOR_FORCE"),
    *("PIP_PYTHON", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_DRY_RUN", "PIP_QUIET", "PIP_VERBOSE"),
    *("PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_REQUIRE_HASHES", "PIP_EDITABLE"),
    *("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_REQUIRE_HASHES"),
}
# What pip or uv says in pages, in this order, and the one sentence for it. `{}` is what the pattern captured.
PATTERNS = {
    "space": r"No space left on device|os error 28|Errno 28|Disk quota exceeded",
    "hash": r"(?s)(?:DO NOT MATCH THE HASHES.*?\n +|[Hh]ash mismatch for `?)([^\s`]+)",
    "certificate": r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|ssl certificate|SSL module is not available",
    "refusal": r"(40[137] (?:Client Error|Unauthorized|Forbidden)|not a trusted or secure host)",
    "network": r"(?i)connect(?:ion)? ?(?:refused|broken|reset|aborted|error|timed? ?out)|establish a new connection"
    r"|name ?resolution|name or service not known|dns error|lookup address|network is unreachable|no route to host"
    r"|max retries exceeded|read ?timed? ?out|remote end closed|error sending request|(?:failed to|could not) fetch"
    r"|incompleteread|incomplete-download|proxyerror|to proxy|tunnel connection failed"
    r"|50\d (?:server error|bad gateway|service unavailable|gateway time)",
    "hidden": r"(?s)\(from versions: none\).*No matching distribution found for ([\w.-]+)",
    "missing": r"No matching distribution found for (\S+)|Because (\S+==\S+) has no (?:usable )?wheels",
}
SENTENCES = {
    "space": f"The disk of {ROOT}, or of the cache of pip or uv, became full.",
    "hash": f"What the package index sent for {{}} is not what {LOCK.name} expects (its hash differs).",
    "certificate": "The package index's certificate could not be checked: set SSL_CERT_FILE and PIP_CERT.",
    "refusal": "The package index refused: {}.",
    "network": "The package index could not be reached: check the network, the proxy, or PIP_INDEX_URL.",
    "hidden": "The package index shows no version of {}: it is a partial one, or refuses without saying so.",
    "missing": f"The package index has no {{}} for this Python and machine ({sys.platform} {os.uname().machine}).",
}


class Failure(Exception):
    """One sentence for the person at the keyboard."""

    def __init__(self, sentence: str, kind: str = "") -> None:
        super().__init__(sentence)
        self.kind = kind


class Wanted(NamedTuple):
    project: str
    lines: dict[str, str]  # of the lock, by the package's name
    build_tools: set[str]
    digest: str  # of the lock and of the parts of pyproject.toml that count


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/setup_env.py", description=f"Makes .venv from {LOCK.name}.")
    parser.add_argument("--needs-mb", type=int, default=NEEDS_MB, help="free disk to ask for (default %(default)s)")
    needs_mb = parser.parse_args().needs_mb
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, stop)
    screen = Screen()
    try:
        set_up(screen, needs_mb)
    except KeyboardInterrupt:
        return screen.refuse("Set-up stopped; run it again to go on.", 130)
    except (Failure, OSError) as failure:
        sentence = f"{failure.strerror}: {failure.filename or ROOT}." if isinstance(failure, OSError) else failure
        where = " Full output: .venv/setup.log" if LOG.exists() else ""
        return screen.refuse(f"Set-up failed: {sentence}{where}", 1)
    return 0


def set_up(screen: "Screen", needs_mb: int) -> None:
    want = wanted()
    if is_done(want):
        return
    if not os.access(ROOT, os.W_OK):
        raise Failure(f"{ROOT} cannot be written by this user.")
    with only_one(screen) as lock:
        if not is_done(want):  # another may have done it meanwhile
            Setup(screen, want, lock).run(read_state(), needs_mb)


def wanted() -> Wanted:
    import tomllib

    lock = LOCK.read_text(encoding="utf-8")
    try:
        tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"pyproject.toml cannot be read: {error}.") from error
    build, project = tables["build-system"], tables["project"]
    build_tools = {re.split(r"[^\w.-]", item)[0] for item in [*build["requires"], "pip"]}
    lines = {line.split("==")[0]: line for line in lock.splitlines()}
    facts = json.dumps([lock, build, project], sort_keys=True)
    return Wanted(project["name"], lines, build_tools, hashlib.sha256(facts.encode()).hexdigest())


def is_done(want: Wanted) -> bool:
    state = read_state()
    made = [state.get(key) for key in ("state", "root", "digest", "interpreter")]
    return made == ["done", str(ROOT), want.digest, interpreter()] and asked_python() in {"", state.get("python")}


def interpreter() -> list[Any]:
    """What shows that the Python behind `.venv` was replaced, without starting it."""
    with contextlib.suppress(OSError):
        stat = VENV_PYTHON.stat()
        return [os.path.realpath(VENV_PYTHON), stat.st_mtime_ns, stat.st_size]
    return ["none"]


def asked_python() -> str:
    """Set when someone names the Python: only then is an environment of another Python replaced."""
    return "{}.{}".format(*sys.version_info[:2]) if os.environ.get("PYTHON") else ""


def read_state() -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        state = json.loads(STATE.read_text(encoding="utf-8"))
        return state if isinstance(state, dict) else {}
    return {}


def site_packages(pattern: str) -> set[Path]:
    return set(VENV.glob(f"lib/python3*/site-packages/{pattern}"))


class Setup:
    """One set-up, while no other works on `.venv`."""

    def __init__(self, screen: "Screen", want: Wanted, lock: int) -> None:
        self.screen, self.want, self.lock = screen, want, lock
        self.version = "{}.{}".format(*sys.version_info[:2])
        # Run from inside an old .venv, the Python to use is the one that .venv was made from.
        inside = VENV in Path(sys.executable).parents
        self.python = os.path.realpath(sys.executable) if inside else sys.executable
        self.packages = set(want.lines)  # and, when an environment is kept, those it had
        self.uv = shutil.which("uv")
        self.env = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        # Temporary files go where the space was checked and where starting over finds them.
        self.env.update(PIP_USER="0", NO_COLOR="1", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
        self.env.update(TMPDIR=str(TEMP), PIP_ROOT_USER_ACTION="ignore", PIP_COMPILE="0", PIP_YES="1")
        self.env.setdefault("PIP_RETRIES", "2")
        # pyspark comes as a source archive of jars: packing them again without compressing halves its build.
        self.env.setdefault("DIST_EXTRA_CONFIG", str(TEMP / "build.cfg"))

    def run(self, state: dict[str, Any], needs_mb: int) -> None:
        keep = self.can_keep(state)
        new = not keep or state.get("state") != "done"
        self.screen.say(
            f"Setting up Trace in .venv with {'uv' if self.uv else 'pip'} for Python {self.version}: "
            f"{len(self.want.lines)} packages, {SIZES if new else 'of which those that changed are fetched'}. "
            "Full output: .venv/setup.log"
        )
        if keep:
            self.packages |= set(state.get("packages", ()))
        else:
            self.clear()
        if new:
            self.check_space(needs_mb)
        LOG.write_text("", encoding="utf-8")
        with self.temporary_folder():
            if not keep:
                self.new_environment()
            self.install()
            self.compile()
            self.archive()
        self.packages = set(self.want.lines)
        self.write_state("done", digest=self.want.digest, interpreter=interpreter())
        self.screen.say(f"Set up in {time.monotonic() - self.screen.began:.0f} s.")

    # What to start from

    def can_keep(self, state: dict[str, Any]) -> bool:
        """Settles the Python, and says whether the environment that is there can be kept."""
        found = version_of(str(VENV_PYTHON)) if VENV_PYTHON.exists() else ""
        keep = supported(found) and asked_python() in {"", found}
        if state:
            made = [state.get(key) for key in ("root", "python")]
            keep = keep and state.get("state") in {"ready", "done"} and made == [str(ROOT), found]
        elif not keep and VENV.exists() and any(path.name != "setup.new" for path in VENV.iterdir()):
            raise Failure(
                f"There is a .venv here that set-up did not make and cannot use (Python {found or 'missing'}): "
                "move it away, or remove it with `make clean`."
            )
        self.version = found if keep else self.version
        return keep

    def clear(self) -> None:
        VENV.mkdir(exist_ok=True)
        self.write_state("working")
        for path in set(VENV.iterdir()) - {STATE, LOG, TEMP}:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def check_space(self, needs_mb: int) -> None:
        """A cache is a comfort: where it has no room, set-up does without."""
        free = free_mb(VENV)
        if free < needs_mb:
            raise Failure(f"The disk of {ROOT} has {free} MB free, and set-up needs about {needs_mb} MB.")
        for name, switch in (("PIP_CACHE_DIR", "PIP_NO_CACHE_DIR"), ("UV_CACHE_DIR", "UV_NO_CACHE")):
            cache = cache_folder(self.env.get(name))
            same = cache.stat().st_dev == VENV.stat().st_dev
            if (free - needs_mb if same else free_mb(cache)) < CACHE_MB:
                self.env[switch] = "1"

    @contextlib.contextmanager
    def temporary_folder(self) -> Iterator[None]:
        shutil.rmtree(TEMP, ignore_errors=True)
        TEMP.mkdir()
        try:
            (TEMP / "build.cfg").write_text("[bdist_wheel]\ncompression = stored\n", encoding="utf-8")
            build_tools = [line for name, line in self.want.lines.items() if name in self.want.build_tools]
            (TEMP / "build.lock").write_text("\n".join(build_tools), encoding="utf-8")
            yield
        finally:
            shutil.rmtree(TEMP, ignore_errors=True)

    def new_environment(self) -> None:
        self.check_modules()
        self.command("new environment", [self.python, "-m", "venv", "--without-pip", str(VENV)])
        self.write_state("ready")

    def check_modules(self) -> None:
        from importlib.util import find_spec

        missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
        if "venv" in missing or (missing and not self.uv):
            raise Failure(
                f"This Python has no {' and no '.join(missing)} module, which makes environments: "
                "install python3-venv (Debian, Ubuntu: apt install python3-venv), or name another with PYTHON."
            )

    # What to install

    def install(self) -> None:
        if self.uv:
            try:
                return self.install_with([self.uv, "pip"], ["--python", str(VENV_PYTHON)])
            except Failure as failure:
                if failure.kind in {"space", "hash"}:
                    raise
                self.give_up_uv(failure)
        self.check_modules()
        if not site_packages("pip-*.dist-info"):
            self.command("pip", [str(VENV_PYTHON), "-m", "ensurepip", "--upgrade", "--default-pip"], guard=True)
        return self.install_with([str(VENV_PYTHON), "-m", "pip"], [])

    def give_up_uv(self, failure: Failure) -> None:
        self.screen.say(f"  uv did not manage ({failure}) Going on with pip, which has settings of its own.")
        self.uv = None
        if read_state().get("state") == "working":  # it had begun to install
            self.clear()
            self.new_environment()

    def install_with(self, tool: list[str], target: list[str]) -> None:
        """Build tools first: with them here, and no build isolation, what builds is pinned by hash as well."""
        install = [*tool, "install", *target, "--no-deps", "--no-build-isolation"]
        locked = [*install, "--require-hashes", "-r"]
        stale = sorted(self.stale())
        if stale:
            self.command("removing", [*tool, "uninstall", *target, *stale], guard=True)
        self.fetch("build tools", [*locked, str(TEMP / "build.lock")])
        if "pip" in self.want.lines:  # the one that comes with Python may be too old to print figures
            self.env["PIP_PROGRESS_BAR"] = "raw"
        self.fetch("packages", [*locked, str(LOCK)])
        self.command("trace itself", [*install, "-e", "."], guard=True)

    def stale(self) -> set[str]:
        """Packages that were locked before, and this checkout under an earlier name: it has the same scripts."""
        infos = {re.sub(r"[_.]+", "-", info.name.split("-")[0]).lower(): info for info in site_packages("*.dist-info")}
        kept = {*self.want.lines, self.want.project}
        return {
            name for name, info in infos.items() if name not in kept and (name in self.packages or is_checkout(info))
        }

    def fetch(self, text: str, command: list[str]) -> None:
        """A broken connection after a good start is tried again: what was fetched is in the cache."""
        for attempt in (2, 3, 0):
            try:
                return self.command(text, command, guard=True)
            except Failure as failure:
                if not (attempt and failure.kind == "network" and fetched(self.screen.output) > 1):
                    raise
                self.screen.say(f"    the connection broke; trying again ({attempt} of 3)")
        return None

    def compile(self) -> None:
        """Once, here: every process starts a second or two sooner, and where Python may not write bytecode
        (PYTHONDONTWRITEBYTECODE) each of them would pay that every time.
        """
        folders = [str(path) for path in (*VENV.glob("lib/python3*/site-packages"), ROOT / "tracelake")]
        command = [str(VENV_PYTHON), "-m", "compileall", "-q", "-j", "0", "-x", NOT_COMPILED, *folders]
        self.command("compiling", command, codes=(0, 1))

    def archive(self) -> None:
        """Spark's Java starts with half the work when its classes lie ready. Without, it starts all the same."""
        command = [str(VENV_PYTHON), "-m", "tracelake.spark.class_archive"]
        self.command("Spark's classes", command, codes=range(-64, 256))

    # How a command runs

    def command(self, text: str, command: list[str], *, guard: bool = False, codes: Container[int] = (0,)) -> None:
        """Runs it with its output in the log. `guard`: while it may be half done, the state says `working`."""
        self.screen.phase(text)
        before, code = site_packages("*"), -1
        if guard:
            self.write_state("working")
        try:
            code = self.child(command)
        finally:
            if guard and (code in codes or site_packages("*") == before):
                self.write_state("ready")
        if code not in codes:
            raise explain(text, code, self.screen.output)

    def child(self, command: list[str]) -> int:
        with LOG.open("a+", encoding="utf-8", errors="replace") as log:
            print("$", *command, file=log, flush=True)
            began = log.tell()
            process = self.start(command, log)
            try:
                while process.returncode is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.25)
                    log.seek(began)
                    self.screen.show(log.read())
                return process.returncode
            finally:
                end(process)

    def start(self, command: list[str], log: TextIO) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [self.python, "-I", "-S", "-c", GUARDIAN, *command],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(self.lock,),  # the lock is held as long as anything works on .venv
        )

    def write_state(self, state: str, **facts: object) -> None:
        facts.update(state=state, root=str(ROOT), python=self.version, packages=sorted(self.packages))
        new = STATE.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(STATE)


def is_checkout(info: Path) -> bool:
    """Whether what is installed is this checkout, by the file that pip and uv write for an editable install."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        url = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))["url"]
        return unquote(url) == f"file://{ROOT}"
    return False


def end(process: "subprocess.Popen[bytes]") -> None:
    """The guardian kills what still runs when its stdin is closed."""
    if process.stdin:
        process.stdin.close()
    process.wait()


class Screen:
    """One live line on a terminal; elsewhere a line for each phase and one now and then while it lasts."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self.began = self.shown = time.monotonic()
        self.text = self.output = ""
        self.before: set[Path] = set()

    def say(self, text: str, end: str = "\n") -> None:
        print(("\r\033[2K" if self.live else "") + text, end=end, flush=True)
        self.shown = time.monotonic()

    def refuse(self, sentence: str, code: int) -> int:
        self.say("", end="")
        print(sentence, file=sys.stderr)
        return code

    def phase(self, text: str) -> None:
        self.text, self.output, self.before = text, "", site_packages("*.dist-info")
        if not self.live:
            self.say(f"  {text}")

    def show(self, output: str) -> None:
        """How far the command is, from all that it has printed so far and from what lies in `.venv`."""
        self.output, now = output, time.monotonic()
        if self.live or now - self.shown > HEARTBEAT_SECONDS:
            width = shutil.get_terminal_size().columns - 12
            line = f"    {self.text}{self.figures()}"[:width] + f", {now - self.began:.0f} s"
            self.say(line, end="" if self.live else "\n")

    def figures(self) -> str:
        done = len(site_packages("*.dist-info") - self.before) or fetched(self.output)
        steps = re.findall(r"^ *((?:Collecting|Download|Buil[dt]|Install|Prepared).*)", self.output, re.MULTILINE)
        size = re.search(r"^Progress (\d+)\d{6} of (\d+)\d{6}\s*\Z", self.output, re.MULTILINE)
        count = f": {done} packages" if done else ""
        return count + (f", {steps[-1]}" if steps else "") + (f", {size[1]} of {size[2]} MB" if size else "")


def fetched(output: str) -> int:
    return len(re.findall(r"^(?:Collecting|Requirement already satisfied:) ", output, re.MULTILINE))


def explain(text: str, code: int, output: str) -> Failure:
    for kind, pattern in PATTERNS.items():
        found = re.search(pattern, output, re.MULTILINE)
        if found:
            return Failure(SENTENCES[kind].format(found[found.lastindex or 0]), kind)
    if code < 0 or code > 128:  # noqa: PLR2004 - as shells say it
        return Failure(f"Signal {-code if code < 0 else code - 128} ended the step '{text}': out of memory?")
    errors = re.findall(r"(?i)^ *(?:error|\w+Error): *(.+)$", output, re.MULTILINE)
    why = f": {errors[-1].strip().rstrip('.')}" if errors else ""
    return Failure(f"The step '{text}' failed{why}.")


def free_mb(path: Path) -> int:
    return shutil.disk_usage(path).free // 10**6


def cache_folder(given: "str | None") -> Path:
    """Where pip or uv keeps what it fetched, or the nearest folder above that is there."""
    path = Path(given or os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME") or "/").absolute()
    return next(folder for folder in (path, *path.parents) if os.access(folder, os.F_OK))


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


def stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
