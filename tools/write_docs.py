"""Writes the pages of `docs/` that are made from the code: settings, command line, data model. `make docs` runs it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tests.support.postgres import running
from trace_platform.cli.app import app
from trace_platform.cli.grouped_help import GROUPS
from trace_platform.lite.ports import free_port
from trace_platform.lite.postgres import Cluster
from trace_platform.settings import ANY_NAME, Settings, group_of, is_mapping, leaves
from trace_platform.store.describe import describe
from trace_platform.store.migrate import migrate

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
MADE = "<!-- Made from the code by `make docs`; a test compares. -->"


def main() -> None:
    (REFERENCE / "settings.md").write_text(settings_page())
    (REFERENCE / "cli.md").write_text(cli_page())
    (REFERENCE / "data_model.md").write_text(data_model_page())


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        MADE,
        "",
        "Each is read from its variable, else from `trace.toml` in the home folder, else it is its default;",
        "secrets only from the environment. `trace config show` prints the values in force and where they come from.",
        "An unknown name or an impossible value stops the start, with the setting's name. A variable that is like",
        "none of them, such as the `TRACE_GATEWAY_PORT` of Kubernetes, is ignored with a warning.",
    ]
    group = None
    for leaf in leaves():
        name = leaf.path.rpartition(".")[0].removesuffix(f".{ANY_NAME}")
        if name != group:
            lines += _named_groups(group)
            group = name
            lines += ["", f"## {name or 'general'}", "", *_about(name)]
            lines += ["| setting | variable | default | unit | why |", "|---|---|---|---|---|"]
        default = "" if leaf.default is None else f"`{leaf.default}`"
        unit = "secret, " * leaf.secret + (leaf.unit or "")
        lines.append(f"| `{leaf.path}` | `{leaf.variable}` | {default} | {unit.rstrip(', ')} | {leaf.why} |")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    lines = ["# The command line", "", MADE, ""]
    lines += ["Every verb explains itself with `--help`. A refusal says what, where and what to try, and exits with 1;"]
    lines += ["`--json` gives the same to programs.", ""]
    lines += [
        "Text of others, such as errors of user code, values and names, is shown and never obeyed by the terminal:"
    ]
    lines += ["control characters, bidirectional controls and invisible characters are written as escapes (`\\x1b`)."]
    lines += ["CSV and YAML are made visible on a terminal only: into a pipe or a file they go as they are.", ""]
    trace: Any = typer.main.get_command(app)
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for path, command in (one for name in names for one in verbs(trace.commands[name], name)):
            lines += [f"### `trace {path}`", "", (command.help or "").strip(), *_options(command), ""]
    return "\n".join(lines).rstrip() + "\n"


def verbs(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every verb that does something, by the words that a person types."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    for name, one in inner.items():
        if one.hidden:  # another name for the same
            continue
        yield from verbs(one, f"{path} {name}")


def _options(command: Any) -> list[str]:
    options = [parameter for parameter in command.params if parameter.name != "help"]
    if not options:
        return []
    return ["", "| option | default | meaning |", "|---|---|---|", *map(_option_row, options)]


def data_model_page() -> str:
    """From databases that were migrated just now, so that it shows what is and not what was meant."""
    folder = Path(tempfile.mkdtemp(prefix="trace-docs-"))
    folder.chmod(0o711)
    try:
        with running(Cluster("docs", folder / "data", folder / "s", free_port(), settings={"fsync": "off"})) as server:
            dsns = [server.create_database(name) for name in ("state", "data", "queue")]
            migrate(dsns[0], "state")
            migrate(dsns[1], "data")
            migrate(dsns[2], "queue")
            return describe(*dsns)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _named_groups(group: str | None) -> list[str]:
    """The groups by name that there are when nobody says otherwise, as far as they differ from the table."""
    field = Settings.model_fields.get(group or "")
    if field is None or not is_mapping(field) or not field.default:
        return []
    lines = ["", "These are there anyway; any other name adds one:", "", "| name | where it differs |", "|---|---|"]
    for name, one in field.default.items():
        said = ", ".join(f"`{key}` = `{value}`" for key, value in one.model_dump(exclude_unset=True).items())
        lines.append(f"| `{name}` | {said} |")
    return lines


def _about(group: str) -> list[str]:
    if not group:
        return []
    field = Settings.model_fields[group]
    about = (getattr(group_of(field), "__doc__", None) or "").strip()
    if not is_mapping(field):
        return [about, ""]
    return [f"{about} Any number, each under a name: small letters, digits, single underscores.".strip(), ""]


def _option_row(parameter: Any) -> str:
    names = " ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    metavar = parameter.metavar
    shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    default = "" if shown in (None, "", False) else f"`{shown}`"
    return f"| {names}{f' {metavar}' if metavar else ''} | {default} | {getattr(parameter, 'help', '') or ''} |"


if __name__ == "__main__":
    main()
