"""Every setting of Trace: read once, frozen, passed in.

Three places are read, the first that has a value wins: `TRACE_` environment variables (`TRACE_SPARK__MASTER` is
`spark.master`), `trace.toml` in the home folder, the default below, which for many settings the profile chooses. A
process under `trace up` gets its settings as a document on standard input instead, so that a secret is never in its
environment, arguments or files.

Secrets are not taken from `trace.toml`, only references to them (`aws-secret:NAME`): every process of the user can read
that file, and a worker must never be able to find the state database's address.
"""

from __future__ import annotations

from tracelake.settings.access import (
    ClientSettings,
    EndpointSettings,
    GatewaySettings,
    IdentitySettings,
    TlsSettings,
    TokenSettings,
)
from tracelake.settings.base import Group
from tracelake.settings.data_plane import QuerySettings, SinkSettings, WorkerSettings
from tracelake.settings.databases import DataSettings, QueueSettings, StateSettings
from tracelake.settings.delivery import DeliverySettings
from tracelake.settings.dispatcher import DispatcherSettings, FlowSettings, LoopSettings
from tracelake.settings.http import HttpSettings
from tracelake.settings.limits import LimitSettings
from tracelake.settings.lite import PostgresSettings, UpSettings
from tracelake.settings.load import (
    load_settings,
    origin,
    settings_from_document,
    stray_variables,
    to_document,
)
from tracelake.settings.login_rules import LoginRule
from tracelake.settings.profile import AwsSettings
from tracelake.settings.retention import RetentionSettings
from tracelake.settings.root import (
    ANY_NAME,
    Leaf,
    Settings,
    group_of,
    is_mapping,
    leaves,
    leaves_of,
    shown,
)
from tracelake.settings.rpc_pools import RpcPoolSettings
from tracelake.settings.runtimes import JOB_RUNS, RUNTIMES, SANDBOXES, EmrSettings, OperatorSettings, RuntimeSettings
from tracelake.settings.secrets.references import SecretReference
from tracelake.settings.secrets.resolve import references_in, with_values
from tracelake.settings.secrets.secrets_manager import SecretsManagerSettings
from tracelake.settings.spark import SparkSettings
from tracelake.settings.storage import BundleSettings, CredentialSettings, ObjectSettings
from tracelake.settings.telemetry import LogSettings, MetricsSettings, TracingSettings
from tracelake.settings.udf import UdfSettings

__all__ = [
    "ANY_NAME",
    "JOB_RUNS",
    "RUNTIMES",
    "SANDBOXES",
    "AwsSettings",
    "BundleSettings",
    "ClientSettings",
    "CredentialSettings",
    "DataSettings",
    "DeliverySettings",
    "DispatcherSettings",
    "EmrSettings",
    "EndpointSettings",
    "FlowSettings",
    "GatewaySettings",
    "Group",
    "HttpSettings",
    "IdentitySettings",
    "Leaf",
    "LimitSettings",
    "LogSettings",
    "LoginRule",
    "LoopSettings",
    "MetricsSettings",
    "ObjectSettings",
    "OperatorSettings",
    "PostgresSettings",
    "QuerySettings",
    "QueueSettings",
    "RetentionSettings",
    "RpcPoolSettings",
    "RuntimeSettings",
    "SecretReference",
    "SecretsManagerSettings",
    "Settings",
    "SinkSettings",
    "SparkSettings",
    "StateSettings",
    "TlsSettings",
    "TokenSettings",
    "TracingSettings",
    "UdfSettings",
    "UpSettings",
    "WorkerSettings",
    "group_of",
    "is_mapping",
    "leaves",
    "leaves_of",
    "load_settings",
    "origin",
    "references_in",
    "settings_from_document",
    "shown",
    "stray_variables",
    "to_document",
    "with_values",
]
