"""`trace backup` and `trace restore`: a copy of a whole system, and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the backup.", show_default=False)]
Replace = Annotated[bool, typer.Option("--replace", help="Move the data that the home has aside, and restore.")]


def backup(folder: Folder, home: Home = None, json: Json = False) -> None:
    """Copy the databases and files of the running system into a new folder, as they are at one point in time.

    Work goes on meanwhile. Ctrl-C cancels the backup and removes the folder.
    """
    from tracelake.lite.backup.listener import request_backup
    from tracelake.lite.home import Home as HomeFolder

    with printing.waiting("backing up", quiet=json) as show:
        made = request_backup(HomeFolder(settings_of(home).home), folder.absolute(), show)
    if json:
        printing.as_json(
            {"id": str(made.id), "made_at": made.made_at.isoformat(), "objects": made.objects, "bytes": made.size}
        )
    else:
        size = f"{made.objects:,} files, {made.size / 1e6:,.1f} MB"
        printing.out.print(f"backup of {made.made_at:%Y-%m-%d %H:%M:%S %Z} in {folder}: {size}", markup=False)


def restore(folder: Folder, home: Home = None, replace: Replace = False, json: Json = False) -> None:
    """Restore a backup into a new home folder, or into a stopped one with --replace.

    What happened after the backup is lost: workers, tokens and leases of that time are refused.
    """
    from tracelake.lite.backup.restore import restore_backup
    from tracelake.wiring import with_secrets

    os.umask(0o077)  # only the owner can read the home
    settings = with_secrets(settings_of(home), "state", "data", "queue", "objects")
    with printing.waiting("restoring", quiet=json) as show:
        done = restore_backup(folder.absolute(), settings, replace=replace, note=show)
    if json:
        printing.as_json(
            {
                "backup_id": str(done.backup_id),
                "made_at": done.made_at.isoformat(),
                "epoch": done.epoch,
                "objects": done.objects,
                "replaced": done.replaced and str(done.replaced),
            }
        )
        return
    printing.out.print(
        f"restored the backup of {done.made_at:%Y-%m-%d %H:%M:%S %Z} into {settings.home}; `trace up` starts it",
        markup=False,
    )
    if done.replaced:
        printing.out.print(f"  the former data is in {done.replaced}; delete it when you need it no more", markup=False)
