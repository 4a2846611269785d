"""The external commands and keys that this worker has leased, as far as it knows; the database may know of more.

Where the answer to a claim's COMMIT is lost, they are leased to this worker and nobody here has them: they may be claimed
again. Each is noted before the COMMIT, so that whoever sees the lease in the database finds it here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from onceward_consumer.deliveries import Address
    from onceward_consumer.items import Item


class Hands:
    """Written by the event loop's thread, read by all."""

    def __init__(self) -> None:
        self._commands: dict[UUID, Item] = {}
        self._keys: dict[Address, Item] = {}

    def take(self, items: Iterable[Item]) -> None:
        """Note commands that are about to be leased, and the keys of those that were parked."""
        for item in items:
            self._commands[item.id] = item
            if item.released and item.delivery.address is not None:
                self._keys[item.delivery.address] = item

    def drop(self, items: Iterable[Item]) -> None:
        """Their claim was not committed, or their end is durable."""
        for item in items:
            if self._commands.get(item.id) is item:
                del self._commands[item.id]
            address = item.delivery.address
            if address is not None and self._keys.get(address) is item:
                del self._keys[address]

    def hold(self, command_id: UUID) -> bool:
        """Whether the command is in hand."""
        return command_id in self._commands

    def keys(self) -> list[Address]:
        """The keys in hand."""
        return list(self._keys)
