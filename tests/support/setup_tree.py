"""A small checkout of its own with a few tiny packages, to set up from a folder of wheels."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support import ROOT
from tests.support.waiting import SECONDS

SETUP = ROOT / "tools" / "setup_env.py"

PYPROJECT = """
[build-system]
requires = ["tiny-build>=1"]
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny-trace"
"""
BACKEND = """
import tomllib, zipfile
def build_wheel(folder, settings=None, metadata=None):
    name = tomllib.load(open("pyproject.toml", "rb"))["project"]["name"].replace("-", "_")
    info, file = name + "-1.0.dist-info/", name + "-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + file, "w") as wheel:
        wheel.writestr(name + ".py", "def main(): print('" + name + " runs')")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: " + name + "\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "entry_points.txt", "[console_scripts]\\ntrace = " + name + ":main\\n")
        wheel.writestr(info + "RECORD", "")
    return file
build_editable = build_wheel
"""


class Tree:
    """A checkout with nothing in it but set-up, and the wheels its lock names."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a b" / "trace"
        self.wheels = folder / "wheels"
        self.venv = self.root / ".venv"
        self.env = {
            "HOME": str(folder),
            "PATH": str(folder / "bin"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def write(self) -> Tree:
        for folder in ("tools", "tracelake"):
            (self.root / folder).mkdir(parents=True)
        self.wheels.mkdir()
        shutil.copy(SETUP, self.root / "tools")
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        (self.root / "backend.py").write_text(BACKEND)
        self.lock("tiny-build", "tiny-base", "tiny-dev")
        return self

    def copy(self, folder: Path) -> Tree:
        """An environment finds its packages from where it lies, so one made once serves every test."""
        new = Tree(folder)
        ours = shutil.ignore_patterns("setup.*", ".venv")
        shutil.copytree(self.root, new.root, ignore=ours)
        shutil.copytree(self.wheels, new.wheels)
        shutil.copytree(self.venv, new.venv, symlinks=True, ignore=ours, copy_function=os.link)
        for file in new.venv.glob("lib/python3*/site-packages/tiny_trace*/direct_url.json"):
            file.unlink()  # a link to the other's
            file.write_text(json.dumps({"url": new.root.as_uri(), "dir_info": {"editable": True}}))
        state = json.loads((self.venv / "setup.json").read_text())
        (new.venv / "setup.json").write_text(json.dumps({**state, "root": str(new.root)}))
        return new

    def lock(self, *packages: str) -> None:
        lines = [f"{package}==1.0 --hash=sha256:{self.wheel(package)}\n" for package in packages]
        (self.root / "requirements.lock").write_text("".join(lines))

    def wheel(self, name: str) -> str:
        return hashlib.sha256(self.wheel_of(name).read_bytes()).hexdigest()

    def wheel_of(self, name: str) -> Path:
        module = name.replace("-", "_")
        path = self.wheels / f"{module}-1.0-py3-none-any.whl"
        if not path.exists():
            info = f"{module}-1.0.dist-info"
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr(f"{module}.py", "")
                wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
        return path

    def command(self, *options: str) -> list[str]:
        return [sys.executable, str(self.root / "tools" / "setup_env.py"), "--needs-mb", "50", *options]

    def run(self, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.env, **env}
        return subprocess.run(
            self.command(*options), env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def start(self, **env: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command(), env={**self.env, **env}, stdout=pipe, stderr=pipe, text=True)

    def state(self) -> str:
        return str(json.loads((self.venv / "setup.json").read_text())["state"])

    def modules(self, name: str = "tiny_*.py") -> set[str]:
        return {path.stem for path in self.venv.glob(f"lib/python3*/site-packages/{name}")}

    def picture(self) -> dict[str, tuple[int, int, int]]:
        stats = {str(path): path.lstat() for path in self.root.rglob("*")}
        return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
