"""Verifies a page of a dataset's commits: the hashes of the ledger, and the bytes and rows of files.

The Dispatcher lists the commits that the user may see; the control plane does not read files, so they are read here. A
page ends after some seconds, and the caller goes on behind it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracelake.ports import ObjectStore
from tracelake.query.verify.chain import check_chain
from tracelake.query.verify.files import FileChecker, VerifiedCommit, missing
from tracelake.wire.client import DispatcherClient
from tracelake.wire.service.headers import ServiceUser
from tracelake.wire.user.ledger import LedgerEntry, LedgerPage, LedgerQuery, VerifyPage, VerifyQuery

PAGE_SECONDS: Final = 10.0
AT_ONCE: Final = 2
LOOKS, LOOK_SECONDS = 3, 1.0
"""How often a missing file is looked up again: retention deletes files just before it marks them as removed."""


class DatasetVerifier:
    """Belongs to one event loop."""

    def __init__(self, dispatcher: DispatcherClient, objects: ObjectStore, folder: Path) -> None:
        self._dispatcher, self._objects, self._folder = dispatcher, objects, folder
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def verify(self, user: ServiceUser, dataset: str, query: VerifyQuery) -> VerifyPage:
        async with self._slots:
            asked = LedgerQuery(after=query.after, limit=query.limit)
            page = await self._dispatcher.ledger(user, dataset, asked)
            stop = threading.Event()
            self._folder.mkdir(parents=True, exist_ok=True)
            checker = FileChecker(self._objects, self._folder, stop)
            try:
                return await self._verify(page, checker, user, query)
            finally:
                stop.set()

    async def _verify(
        self, page: LedgerPage, checker: FileChecker, user: ServiceUser, query: VerifyQuery
    ) -> VerifyPage:
        until = time.monotonic() + PAGE_SECONDS
        checked: list[tuple[LedgerEntry, VerifiedCommit]] = []
        for entry in page.entries:
            found = await asyncio.to_thread(checker.check, entry, rows=query.rows)
            if missing(found.damages) and any(part.replaced for part in entry.partitions):
                found = await self._look_again(entry, checker, user, query)
            checked.append((entry, found))
            if time.monotonic() > until:
                break
        return _page(page, checked, query.after)

    async def _look_again(
        self, entry: LedgerEntry, checker: FileChecker, user: ServiceUser, query: VerifyQuery
    ) -> VerifiedCommit:
        found = VerifiedCommit()
        for _ in range(LOOKS):
            await asyncio.sleep(LOOK_SECONDS)
            asked = LedgerQuery(after=entry.commit - 1, limit=1)
            page = await self._dispatcher.ledger(user, str(entry.dataset_uuid), asked)
            again = next((item for item in page.entries if item.commit == entry.commit), entry)
            found = await asyncio.to_thread(checker.check, again, rows=query.rows)
            if not missing(found.damages):
                break
        return found


def _page(page: LedgerPage, checked: Sequence[tuple[LedgerEntry, VerifiedCommit]], after: int) -> VerifyPage:
    entries = [entry for entry, _ in checked]
    is_whole = len(entries) == len(page.entries)
    rest = page.next if is_whole else entries[-1].commit
    chain = check_chain(
        LedgerPage(
            dataset_uuid=page.dataset_uuid,
            last_commit=page.last_commit,
            last_hash=page.last_hash,
            before_hash=page.before_hash,
            entries=entries,
            next=rest,
        ),
        after,
    )
    found = [item for _, item in checked]
    return VerifyPage(
        last_commit=page.last_commit,
        next=rest,
        commits=len(entries),
        unchained=sum(entry.hash is None for entry in entries),
        files=sum(item.files for item in found),
        bytes=sum(item.bytes for item in found),
        rows=sum(item.rows for item in found),
        removed=sum(item.removed for item in found),
        damages=sorted([*chain, *(damage for item in found for damage in item.damages)], key=lambda item: item.commit),
    )
