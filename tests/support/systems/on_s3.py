"""What a walk needs to have its objects in a real S3 server, in place of a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.settings import CredentialSettings, load_settings
from tracelake.wiring import make_minter, s3_objects


def on_s3(seaweedfs: SeaweedFS, home: Path) -> dict[str, Any]:
    """For `walking`: the store, and the minter of keys for tasks."""
    places = seaweedfs.objects_for("dispatcher")
    settings = load_settings({}, home=home).model_copy(
        update={"objects": places, "credentials": seaweedfs.credentials(CredentialSettings())}
    )
    return {"objects": s3_objects(places), "minter": make_minter(settings), "places": places}
