"""Settings of pools of nodes: addresses, credentials, rate limits, and how far their answers are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Self

from pydantic import SecretStr, field_validator, model_validator

from tracelake.settings.base import Group, setting
from tracelake.settings.secrets.references import is_reference

_ADDRESS = re.compile(r"(?:(?P<name>[A-Za-z0-9][\w.-]*)=)?(?P<url>https?://[^/\s]+\S*)")
_HEADER = re.compile(r"(?:(?P<name>[A-Za-z0-9][\w.-]*)=)?(?P<header>[A-Za-z0-9-]+): *(?P<value>[\x21-\x7e ]+)")


class NodeAddress(NamedTuple):
    """One of a pool's nodes; without a name it is called by its host."""

    name: str
    url: str
    headers: tuple[tuple[str, str], ...]


class RpcPoolSettings(Group):
    """Nodes of one chain, by the name in a DAG's `rpc_pool`. Only workers get them."""

    endpoints: SecretStr | None = setting(
        None,
        "Addresses with their keys, apart by blanks; `name=https://...` gives one a name for logs and errors.",
        unit="URLs",
    )
    headers: SecretStr | None = setting(
        None,
        "For nodes that want their key in a header: `x-api-key: KEY`, or `name=x-api-key: KEY` for the one of several"
        " with that name; apart by semicolons.",
        unit="headers",
    )
    chain_id: int = setting(1, "What every node must say its chain is.", unit="number", ge=1, lt=2**63)
    max_concurrency: int = setting(
        8, "Requests under way at once, of all workers together.", unit="count", ge=1, le=256
    )
    batch_size: int = setting(
        100, "Calls in one request, at most those of a second; halved for a node that refuses it.", unit="count", ge=1
    )
    requests_per_second: float | None = setting(
        None,
        "Calls a second to each node, of all workers together; a batch counts as its calls; unset: no limit of ours.",
        unit="1/s",
        gt=0,
    )
    timeout_seconds: float = setting(30.0, "How long one request may take.", unit="s", gt=0)
    verify_roots: float = setting(
        1.0, "Blocks whose transactions and receipts are proved by the header's roots.", unit="0 to 1", ge=0, le=1
    )

    @field_validator("endpoints")
    @classmethod
    def _are_addresses(cls, given: SecretStr | None) -> SecretStr | None:
        if is_reference(given):
            return given
        words = given.get_secret_value().split() if given else []
        if given is not None and not words:
            raise ValueError("there is no address in it: name one, or leave the setting out")
        for place, word in enumerate(words, 1):
            if not _ADDRESS.fullmatch(word):
                raise ValueError(f"address {place} is not http:// or https:// and a host, with or without `name=`")
        return given

    @model_validator(mode="after")
    def _headers_have_a_node(self) -> Self:
        """A provider must not get another's key: among several nodes a header names its own."""
        if is_reference(self.endpoints) or is_reference(self.headers):
            return self
        names = [name for name, _, _ in self.addresses()]
        for place, entry in enumerate(self._header_entries(), 1):
            found = _HEADER.fullmatch(entry)
            if found is None:
                raise ValueError(f"headers: number {place} is not `header: value`, with or without `name=`")
            if found["name"] not in names and (found["name"] or len(names) != 1):
                raise ValueError(f"headers: number {place} must say whose it is: `name=header: value`, of an endpoint")
        return self

    def addresses(self) -> Iterator[NodeAddress]:
        """Of `https://one  name=https://two`; each with the headers that are for it."""
        for word in self.endpoints.get_secret_value().split() if self.endpoints else ():
            if found := _ADDRESS.fullmatch(word):
                name = found["name"] or ""
                yield NodeAddress(name, found["url"], tuple(self._headers_for(name)))

    def _headers_for(self, name: str) -> Iterator[tuple[str, str]]:
        for entry in self._header_entries():
            found = _HEADER.fullmatch(entry)
            if found and (found["name"] or name) == name:
                yield found["header"], found["value"].strip()

    def _header_entries(self) -> list[str]:
        text = self.headers.get_secret_value() if self.headers else ""
        return [entry.strip() for entry in text.split(";") if entry.strip()]
