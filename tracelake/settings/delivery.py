"""Settings of the delivery of alerts: retries, and which addresses may be reached."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Self

from pydantic import field_validator, model_validator

from tracelake.settings.base import Group, setting


class DeliverySettings(Group):
    """The delivery process: the only one that calls out to addresses that users choose."""

    host: str = setting("127.0.0.1", "The address its internal listener binds to.")
    internal_port: int = setting(0, "Port of its internal API; 0 takes a free one.", unit="port", ge=0, le=65535)
    concurrency: int = setting(16, "Alerts that are sent at once.", unit="count", ge=1, le=256)
    per_channel: int = setting(
        4, "Of these, how many to one channel: a slow receiver delays no other.", unit="count", ge=1, le=256
    )
    timeout_seconds: float = setting(
        10.0, "How long a receiver may take, from the look-up of its name to its answer.", unit="s", gt=0, le=300
    )
    lease_seconds: float = setting(
        60.0, "After so long an alert whose sender is lost is taken by another.", unit="s", gt=0, le=3600
    )
    attempts: int = setting(12, "How often an alert is tried before it has failed.", unit="count", ge=1, le=1000)
    backoff_seconds: float = setting(5.0, "Wait before the second attempt; it doubles.", unit="s", gt=0, le=3600)
    backoff_max_seconds: float = setting(
        900.0, "The longest wait between attempts, also when a receiver asks for more.", unit="s", gt=0, le=86400
    )
    answer_bytes: int = setting(
        65536, "How much of an answer is read; nothing of it but its status counts.", unit="bytes", ge=0
    )
    target_seconds: float = setting(5.0, "How long a channel's address and secret are cached.", unit="s", ge=0, le=300)
    beat_seconds: float = setting(
        30.0, "It looks for work after so long without a notification: one may be lost.", unit="s", gt=0
    )
    kept_days: int = setting(
        365,
        "How long a delivery stays after it has ended; so long its event is not sent again, though published again.",
        unit="days",
        ge=1,
        le=36500,
    )
    https_only: bool = setting(default=True, why="Whether alerts are sent to https:// alone.")
    ports: str = setting("443 8443", "The ports that may be reached, apart by blanks; empty: any.", unit="ports")
    allow: str = setting(
        "",
        "Networks that may be reached though they are not public, apart by blanks; there also by http, at any port.",
        unit="CIDR",
    )

    @field_validator("ports")
    @classmethod
    def _are_ports(cls, value: str) -> str:
        if not all(word.isdecimal() and 1 <= int(word) <= 65535 for word in value.split()):  # noqa: PLR2004 - the highest
            raise ValueError("ports are numbers from 1 to 65535, apart by blanks")
        return value

    @field_validator("allow")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for word in value.split():
            ip_network(word)
        return value

    @model_validator(mode="after")
    def _a_lease_outlasts_a_send(self) -> Self:
        if self.lease_seconds < 2 * self.timeout_seconds:
            raise ValueError("lease_seconds must be twice timeout_seconds or more: else two send the same at once")
        if self.backoff_max_seconds < self.backoff_seconds:
            raise ValueError("backoff_max_seconds must not be smaller than backoff_seconds")
        return self

    @property
    def open_ports(self) -> frozenset[int]:
        return frozenset(int(word) for word in self.ports.split())

    @property
    def allowed(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(word) for word in self.allow.split())
