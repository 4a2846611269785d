"""Connections lost while handlers ran: an outage costs no attempt, a handler whose doing it is costs its own command one.

PostgreSQL ends a session whose transaction outlives `transaction_timeout`. Whoever was called in it is run again alone; a
command that loses its transaction that way again has failed. In a pipeline the server's word is not seen, alone it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from onceward_consumer.connections import ConnectionLostError
from onceward_consumer.failures import OverrunError
from onceward_consumer.items import Engine, Item
from onceward_consumer.outcomes import Busy
from onceward_consumer.redaction import describe

_MOST_LOSSES: Final = 3
_MOST_OVERRUNS: Final = 2
_TIMED_OUT: Final = frozenset({"25P03", "25P04"})
"""idle_in_transaction_session_timeout, transaction_timeout"""
_NEARLY: Final = 0.9


class SessionTimedOutError(ConnectionLostError):
    """PostgreSQL ended the session, since its transaction took too long. The database itself is well."""


def lost(called: Sequence[Item], engine: Engine, error: BaseException, began: float) -> ConnectionLostError:
    """Note that the connection was lost by `error` in a transaction that began at `began`, by time.monotonic()."""
    told = _says_timed_out(error)
    for item in called:
        engine.losses[item.id] = engine.losses.get(item.id, 0) + 1
    if told and len(called) == 1:
        engine.overran.add(called[0].id)
    spent = time.monotonic() - began >= engine.transaction_timeout.total_seconds() * _NEARLY
    kind = SessionTimedOutError if called and (told or spent) else ConnectionLostError
    return kind(describe(error))


def forget(items: Iterable[Item], engine: Engine) -> None:
    """They are innocent, or have their verdict."""
    if engine.losses or engine.given_up:
        for item in items:
            if not isinstance(item.outcome, Busy):
                engine.losses.pop(item.id, None)
                engine.overran.discard(item.id)
                engine.given_up.pop(item.id, None)


def verdict(item: Item, engine: Engine) -> BaseException | None:
    """An error for a command whose call was given up, or whose runs lose their connection: that is its handler's doing."""
    if engine.given_up and item.id in engine.given_up:
        attempt, error = engine.given_up[item.id]
        if attempt == item.attempt:
            return error
    if not engine.losses:
        return None
    count = engine.losses.get(item.id, 0)
    if count >= _MOST_OVERRUNS and item.id in engine.overran:
        return OverrunError("transaction_timeout", "It runs longer than PostgreSQL lets a transaction last.")
    if count >= _MOST_LOSSES:
        return ConnectionLostError("Its runs lose their connection to PostgreSQL, one after the other.")
    return None


def _says_timed_out(error: BaseException) -> bool:
    """Whether the server said so, also if the handler wrapped it."""
    found: BaseException | None = error
    for _ in range(16):
        if found is None:
            break
        if getattr(found, "sqlstate", None) in _TIMED_OUT:
            return True
        found = found.__cause__ or found.__context__
    return False
