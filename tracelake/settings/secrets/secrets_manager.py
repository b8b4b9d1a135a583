"""Settings of AWS Secrets Manager."""

from __future__ import annotations

from tracelake.settings.base import URL, Group, setting


class SecretsManagerSettings(Group):
    """Where secrets that are given as `aws-secret:NAME` are fetched, with credentials by AWS's own chain."""

    region: str = setting("us-east-1", "The region of the secrets.", pattern=r"^[a-z0-9-]+$")
    endpoint: str | None = setting(None, "The server of Secrets Manager; unset: AWS.", unit="URL", pattern=URL)
