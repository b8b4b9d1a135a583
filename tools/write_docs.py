"""Writes the pages of `docs/reference/` that are generated from the code. `make docs` runs it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from tests.support.postgres import running
from tracelake.cli.app import app
from tracelake.cli.grouped_help import GROUPS
from tracelake.domain.crash_points import POINTS
from tracelake.lite.network_ports import free_port
from tracelake.lite.postgres import Cluster
from tracelake.settings import ANY_NAME, Settings, group_of, is_mapping, leaves
from tracelake.store.describe import describe
from tracelake.store.migrate import migrate
from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.service.calls import DISPATCHER, SERVICE_CALLS, SERVICES, ServiceCall

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
GENERATED = "<!-- Generated from the code by `make docs`; a test compares. -->"
SETTINGS_HEAD = f"""\
# Settings: which are there, and what are their defaults?

{GENERATED}

The value of a setting comes from its environment variable, else from `trace.toml` in the home folder, else it is the
default, which for many settings is another with the [profile `aws`](../how-to/run_on_aws.md#one-settings-file);
secrets come only from the environment. `trace config show` prints the current values and their origin. An
unknown name or an invalid value prevents the start, and the error names the setting. A variable that resembles none of
them, such as the `TRACE_GATEWAY_PORT` of Kubernetes, is ignored with a warning.
"""
CLI_HEAD = f"""\
# Command line: which commands are there?

{GENERATED}

Every command has `--help`. An error says what is wrong, where, and what to do, and the command exits with 1; `--json`
prints the same for programs.

Text from outside, such as errors of user code, values and names, cannot control the terminal: control characters,
bidirectional controls and invisible characters are written as escapes (`\\x1b`). CSV and YAML are escaped on a terminal
only, and unchanged in a pipe or a file.
"""
CRASH_POINTS_HEAD = f"""\
# Crash points: how do I kill a process at an exact place?

{GENERATED}

A call such as `crash_point("trigger.after_commit")` stands before and after each commit and each side effect. It does
nothing unless the process was configured with that point, and only a settings document on standard input can do that:

```sh
echo '{{"faults": {{"point": "trigger.after_commit", "nth": 2, "how": "kill"}}, ...}}' | trace dispatcher --settings -
```

The environment and `trace.toml` are refused as a source, so a leftover variable or a copied file has no effect;
`trace up` passes no such setting on. `how` is `kill` (SIGKILL, like a power cut) or `stop` (SIGSTOP, like a machine
that freezes, until SIGCONT). A new commit or side effect gets a point in the code and in `POINTS`; a test compares the
two.
"""
PERMISSIONS_HEAD = f"""\
# Permissions: which role may make which call?

{GENERATED}

A user has the role `reader`, `writer` or `admin`, each with the rights of those before it; a platform admin is an admin
who may also manage organisations. A call without a token is answered with 401, one that the role does not allow with
403, and one about an object of another organisation with 404. A personal access token has at most its own role.
`POST /v1/query` and `GET /v1/me` are open to every role; `POST /v1/hooks/...` takes no token, because it is signed.
[Manage access](../how-to/manage_access.md) says how roles are given.
"""
CALLERS = ("reader", "writer", "admin", "platform admin")
SERVICES_HEAD = f"""\
# Services: which process may make which internal call?

{GENERATED}

Every process has a token of its own, and may make the calls of its own column. Any other call is answered with 403, and
with 401 if the token is unknown, expired or revoked. A caller with a user's token, a task's capability or no token
opens only the calls that need none. "For a user" means: only with a proof of the Gateway, which is bound to one
user, one service and an hour. `worker` and `runner` claim and fetch tasks of the runtimes that their token names; to
them, other tasks do not exist. [Tokens of services](../how-to/manage_service_tokens.md) says how tokens are made and
rotated.
"""


def main() -> None:
    (REFERENCE / "settings.md").write_text(settings_page())
    (REFERENCE / "cli.md").write_text(cli_page())
    (REFERENCE / "crash_points.md").write_text(crash_points_page())
    (REFERENCE / "permissions.md").write_text(permissions_page())
    (REFERENCE / "services.md").write_text(services_page())
    (REFERENCE / "data_model.md").write_text(data_model_page())


def settings_page() -> str:
    lines = SETTINGS_HEAD.splitlines()
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
    lines = [*CLI_HEAD.splitlines(), ""]
    trace: Any = typer.main.get_command(app)
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for path, command in (verb for name in names for verb in verbs(trace.commands[name], name)):
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
    for name, item in inner.items():
        if item.hidden:  # another name for the same
            continue
        yield from verbs(item, f"{path} {name}")


def _options(command: Any) -> list[str]:
    options = [parameter for parameter in command.params if parameter.name != "help"]
    if not options:
        return []
    return ["", "| option | default | meaning |", "|---|---|---|", *map(_option_row, options)]


def crash_points_page() -> str:
    lines = [*CRASH_POINTS_HEAD.splitlines(), "", "| where | points |", "|---|---|"]
    for where, points in groupby(POINTS, key=lambda point: point.partition(".")[0]):
        lines.append(f"| `{where}` | {', '.join(f'`{point}`' for point in points)} |")
    return "\n".join(lines) + "\n"


def permissions_page() -> str:
    lines = [*PERMISSIONS_HEAD.splitlines(), "", f"| call | {' | '.join(CALLERS)} | what |", "|---" * 6 + "|"]
    for call in sorted(CALLS.values(), key=lambda call: (call.path, call.method)):
        least = CALLERS.index("platform admin" if call.platform else call.role)
        cells = " | ".join("yes" if place >= least else "no" for place in range(len(CALLERS)))
        lines.append(f"| `{call.method} /v1{call.path}` | {cells} | {call.summary} |")
    return "\n".join(lines) + "\n"


def services_page() -> str:
    lines = [*SERVICES_HEAD.splitlines(), "", "| service | is |", "|---|---|"]
    lines += [f"| `{service}` | {what} |" for service, what in SERVICES.items()]
    lines.append(f"| `{DISPATCHER}` | `trace dispatcher`, at the runner, by `udf.invoke_token` |")
    columns = [*SERVICES, DISPATCHER]
    for listener in dict.fromkeys(call.listener for call in SERVICE_CALLS.values()):
        lines += ["", f"## At the listener of `{listener}`", "", f"| call | {' | '.join(columns)} |"]
        lines.append("|---" * (len(columns) + 1) + "|")
        calls = [call for call in SERVICE_CALLS.values() if call.listener == listener]
        for call in sorted(calls, key=lambda call: (call.path, call.method)):
            cells = " | ".join(_cell(call, service) for service in columns)
            lines.append(f"| `{call.method} {call.path}` | {cells} |")
    return "\n".join(lines) + "\n"


def _cell(call: ServiceCall, service: str) -> str:
    if not call.services:
        return "needs none"
    if service not in call.services:
        return ""
    return "for a user" if service in call.proven else "yes"


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
    lines = ["", "These exist by default; any other name adds one:", "", "| name | where it differs |", "|---|---|"]
    for name, item in field.default.items():
        values = ", ".join(f"`{key}` = `{value}`" for key, value in item.model_dump(exclude_unset=True).items())
        lines.append(f"| `{name}` | {values} |")
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
