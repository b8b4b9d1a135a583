"""Lists the audit of an organisation, and verifies its chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from tracelake.dispatcher.audit.link import link_hash
from tracelake.errors import InvalidRequest, NotFound
from tracelake.store.queries import Queryable, Row, find_row, queries
from tracelake.wire.user.audit import AuditEntry, AuditList, AuditProblem, AuditQuery, AuditVerified

PAGE = 1_000
END = 2**63 - 1


class Chain(Row, frozen=True):
    org_id: UUID
    seq: int
    hash: bytes
    pruned_seq: int
    pruned_hash: bytes
    unlinked: int


async def list_audit(database: Queryable, org_id: UUID, query: AuditQuery) -> AuditList:
    if query.before is not None and query.after is not None:
        raise InvalidRequest("a page is before an entry or after one, not both", where="query after")
    if query.after is not None:
        entries = await _entries(database, "list_after", org_id, query.after, query.limit + 1)
    else:
        entries = await _entries(database, "list_before", org_id, query.before or END, query.limit + 1)
    page = entries[: query.limit]
    return AuditList(entries=page, next=page[-1].seq if len(entries) > query.limit else None)


async def verify_audit(database: Queryable, org_id: UUID) -> AuditVerified:
    """From the beginning of the chain to its end; what is not linked yet is counted."""
    chain = await find_row(database, queries("audit")["show_chain"], Chain, org_id)
    if chain is None:
        raise NotFound("no such organisation", where=str(org_id))
    seq, before, problem = chain.pruned_seq, chain.pruned_hash, None
    while problem is None:
        entries = await _entries(database, "list_after", org_id, seq, PAGE)
        if not entries:
            break
        seq, before, problem = _follow(entries, seq, before)
    # Entries that were linked since the end was read are newer than the end, and verified too.
    if problem is None and seq < chain.seq:
        problem = AuditProblem(seq=seq + 1, what=f"the entries {seq + 1} to {chain.seq} are missing")
    return AuditVerified(
        entries=seq - chain.pruned_seq,
        first=chain.pruned_seq + 1,
        last=seq,
        last_hash=before.hex(),
        unlinked=chain.unlinked,
        problem=problem,
    )


def _follow(entries: Sequence[AuditEntry], seq: int, before: bytes) -> tuple[int, bytes, AuditProblem | None]:
    for entry in entries:
        if entry.seq != seq + 1:
            return seq, before, AuditProblem(seq=seq + 1, what=f"entry {seq + 1} is missing: {entry.seq} follows {seq}")
        found = link_hash(before, entry.text)
        if found.hex() != entry.hash:
            return seq, before, AuditProblem(seq=entry.seq, what=f"entry {entry.seq} is not the one that was linked")
        seq, before = entry.seq, found
    return seq, before, None


async def _entries(database: Queryable, statement: str, org_id: UUID, place: int, limit: int) -> list[AuditEntry]:
    records = await database.fetch(queries("audit")[statement], org_id, place, limit)
    return [_entry(**record) for record in records]


def _entry(*, detail: str, **fields: Any) -> AuditEntry:
    return AuditEntry(detail=msgspec.Raw(detail.encode()), **fields)
