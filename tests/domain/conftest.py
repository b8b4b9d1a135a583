"""A catalog with one operator of each kind, for DAGs in tests."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict

from tracelake.domain.dag.catalog import Catalog, Count, OperatorSpec, PublishedDataset, RuntimeSpec, checked_by
from tracelake.domain.dag.model import SourceKind, Storage


class Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PullConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 1
    tables: list[str] = []


class SqlConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    query: str = "SELECT 1"


PLATFORM = frozenset({"platform"})


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog(
        operators={
            "pull": OperatorSpec(
                checked_by(PullConfig),
                PLATFORM,
                source_kinds=frozenset(SourceKind),
                reactive=False,
                outputs=Count(1, 3),
            ),
            "follow": OperatorSpec(
                checked_by(PullConfig),
                PLATFORM,
                source_kinds=frozenset({SourceKind.ALWAYS_ON}),
                reactive=False,
                outputs=Count(1, None),
                storages=(Storage.POSTGRES,),
            ),
            "sql": OperatorSpec(
                checked_by(SqlConfig),
                PLATFORM,
                storages=(Storage.PARQUET, Storage.BUFFERED, Storage.POSTGRES),
                takes_secrets=True,
                narrows=lambda config, inputs: () if config.get("query") == "SELECT nothing" else inputs,
            ),
            "join": OperatorSpec(checked_by(Nothing), PLATFORM, inputs=Count(2, 2)),
            "check": OperatorSpec(checked_by(Nothing), frozenset({"platform", "dispatcher"}), outputs=Count(0, 0)),
            "bundle": OperatorSpec(checked_by(Nothing), frozenset({"lambda", "ecs_udf"}), runs_bundle=True),
            "spark": OperatorSpec(checked_by(Nothing), frozenset({"platform", "emr_serverless"})),
            "anything": OperatorSpec(
                checked_by(Nothing), frozenset({"lambda"}), storages=(Storage.PARQUET, Storage.POSTGRES)
            ),
            "loose": OperatorSpec(checked_by(Nothing), frozenset({"lambda", "platform"}), runs_bundle=True),
        },
        runtimes={
            "platform": RuntimeSpec(),
            "dispatcher": RuntimeSpec(),
            "lambda": RuntimeSpec(untrusted=True),
            "ecs_udf": RuntimeSpec(untrusted=True),
            "emr_serverless": RuntimeSpec(untrusted=True, files_only=True),
        },
        published={
            "prices": PublishedDataset("market"),
            "rates": PublishedDataset("market", upstream=frozenset({"daily"})),
            "shop_orders": PublishedDataset("shop"),
        },
    )
