"""The slots of a worker, shared by the priority tiers of its runtime (`domain/flow/tiers.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tracelake.domain.flow.pressure import Priority
from tracelake.domain.flow.tiers import TierShares, Wanted, queue_of_tier
from tracelake.ports import Delivery
from tracelake.runtime.receive_messages import Ask, FreeSlots
from tracelake.wire.task.lifecycle import MAX_CLAIMS


class TierSlots:
    def __init__(self, queue: str, slots: int, weight: int, reserved: int) -> None:
        self.slots = FreeSlots(slots)
        self._queues = {tier: queue_of_tier(queue, tier) for tier in Priority}
        self._shares = TierShares(slots, weight, reserved)
        self._wanted: list[Wanted] = []
        self._bulk_running = 0

    def ask(self, free: int) -> Ask:
        free = min(free, MAX_CLAIMS)
        self._wanted = self._shares.want(free, self._bulk_running)
        queues = {self._queues[tier]: most for tier, most in self._wanted}
        # A slot that bulk frees may be its only one, also while others are free.
        return Ask(queues, free, again_when_freed=self._bulk_running > 0)

    def take_for(self, deliveries: Sequence[Delivery]) -> None:
        """Each takes a slot, until it is freed."""
        bulk = sum(self._is_bulk(delivery) for delivery in deliveries)
        self._shares.took(self._wanted, len(deliveries) - bulk, bulk)
        self._bulk_running += bulk
        self.slots.take(len(deliveries))

    def free_after(self, task: asyncio.Task[Any], delivery: Delivery) -> None:
        task.add_done_callback(lambda _: self.free(delivery))

    def free(self, delivery: Delivery) -> None:
        self._bulk_running -= self._is_bulk(delivery)  # before the slot is free
        self.slots.release()

    def _is_bulk(self, delivery: Delivery) -> bool:
        return delivery.queue == self._queues[Priority.BULK]
