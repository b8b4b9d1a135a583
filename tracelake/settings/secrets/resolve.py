"""Which settings are references to secrets, and the settings with the values in their place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tracelake.errors import SettingsError
from tracelake.settings.load import settings_from_document, to_document
from tracelake.settings.root import Leaf, Settings, leaves_of, value_of
from tracelake.settings.secrets.references import SecretReference, is_reference, parse_reference


def references_in(settings: Settings) -> dict[str, SecretReference]:
    """By the path of the setting."""
    secret = [leaf for leaf in leaves_of(settings) if leaf.secret]
    return {leaf.path: _reference(settings, leaf) for leaf in secret if is_reference(value_of(settings, leaf))}


def with_values(settings: Settings, values: Mapping[str, str]) -> Settings:
    """Checked as if the values had been given in the first place."""
    document = json.loads(to_document(settings))
    for path, value in values.items():
        _put(document, path.split("."), value)
    return settings_from_document(json.dumps(document))


def _reference(settings: Settings, leaf: Leaf) -> SecretReference:
    found = parse_reference(value_of(settings, leaf).get_secret_value())
    if found is None:
        raise SettingsError(
            f"{leaf.path} is no reference to a secret of Secrets Manager",
            where=leaf.path,
            hint="write aws-secret:NAME, or aws-secret:NAME#KEY for a text in a JSON object; NAME may be an ARN",
        )
    return found


def _put(document: dict[str, Any], parts: list[str], value: str) -> None:
    for part in parts[:-1]:
        document = document[part]
    document[parts[-1]] = value
