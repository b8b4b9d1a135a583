"""Recomputes the hashes of a page of the ledger, and says which commits do not match them."""

from __future__ import annotations

from collections.abc import Iterator

from tracelake.domain.ledger import commit_hash, first_of_epoch
from tracelake.wire.user.ledger import Damage, LedgerEntry, LedgerPage

PARTS = {
    "files": ("partitions_changed", "the partitions or the checksums of files that this commit set"),
    "inputs": ("inputs_changed", "what its attempt read"),
    "code": ("code_changed", "the config hash or bundle of its job"),
}


def check_chain(page: LedgerPage, after: int) -> Iterator[Damage]:
    """`after`: the last commit of the page before."""
    yield from _missing(page, after)
    previous, number = page.before_hash, after
    for entry in page.entries:
        if entry.commit in (number + 1, first_of_epoch(entry.commit)):
            yield from _check_link(entry, previous)
        yield from _check_entry(entry, page)
        previous, number = entry.hash, entry.commit
    if (
        page.next is None
        and page.entries
        and page.entries[-1].commit == page.last_commit
        and previous != page.last_hash
    ):
        yield _damage(number, "chain_broken", "hash", "is not the hash that the dataset has as that of its last commit")


def _missing(page: LedgerPage, after: int) -> Iterator[Damage]:
    end = page.last_commit if page.next is None else page.next
    for number in [*(entry.commit for entry in page.entries), end + 1]:
        # A restore skips numbers up to the first of its epoch; the link shows whether the commit before it is there.
        for missing in range(max(after + 1, first_of_epoch(number)), number):
            yield _damage(missing, "entry_missing", "commits", "has no entry in the ledger")
        after = number


def _check_link(entry: LedgerEntry, previous: str | None) -> Iterator[Damage]:
    if entry.hash is None and previous is not None:
        yield _damage(entry.commit, "entry_changed", "hash", "has no hash, but the commit before it has")
    elif entry.hash is not None and entry.previous_hash != previous:
        yield _damage(entry.commit, "chain_broken", "previous_hash", "is not linked to the commit before it")


def _check_entry(entry: LedgerEntry, page: LedgerPage) -> Iterator[Damage]:
    if entry.hash is None:
        return
    if not _matches(entry, entry.commit):
        other = next((item.commit for item in page.entries if _matches(entry, item.commit)), None)
        if other is not None:
            yield _damage(entry.commit, "entries_swapped", "commits", f"has the entry of commit {other}")
        else:
            yield _damage(entry.commit, "entry_changed", "commits", "does not match its hash: a field was changed")
    for name, (stored, now) in entry.parts().items():
        if now is not None and stored != now.hex():
            kind, what = PARTS[name]
            yield _damage(entry.commit, kind, f"{name}_hash", f"does not match: {what} changed since")


def _matches(entry: LedgerEntry, number: int) -> bool:
    previous = bytes.fromhex(entry.previous_hash) if entry.previous_hash else None
    return commit_hash(previous, entry.fields(number)).hex() == entry.hash


def _damage(commit: int, kind: str, where: str, what: str) -> Damage:
    return Damage(commit=commit, kind=kind, where=where, message=f"commit {commit} {what}")
