"""One trial: a group with its lane, tables, writer and processes; and the questions whether it has ended and how."""

from __future__ import annotations

import math
import time
from pathlib import Path

import psycopg

from onceward_consumer import dead_letter_decisions
from onceward_consumer.dead_letters import Identity
from onceward_schemas import topics
from tests.chaos.checker import Finding, findings, waiting
from tests.chaos.evidence import Evidence, gather
from tests.chaos.fleet import Fleet
from tests.chaos.handlers import MODES, application
from tests.chaos.lag import lag_of
from tests.chaos.plan import Plan, Stage
from tests.chaos.servers import Door
from tests.chaos.worker import TRANSACTION_SECONDS
from tests.chaos.writer import SCHEMA, Writer
from tests.support.consumers import Group, app_name, group_of
from tests.support.services import Services

_ENDED = "select count(*) from onceward.ledger where consumer_group = %s and state in ('done', 'dead', 'discarded')"
_UNDER_WAY = """
select (select count(*) from onceward.outbox) as outbox,
    (select count(*) from onceward.outbox_parked where state in ('parked', 'replaying')) as refused_by_kafka,
    (select count(*) from onceward.holds where state <> 'dead') as holds,
    (select count(*) from onceward.parked) as parked,
    (select count(*) from onceward.ledger where state = 'retrying') as retrying,
    (select count(*) from onceward.ledger where state = 'running') as running"""
_OPEN = "select command_id from onceward.dead_letters where consumer_group = %s and state = 'open' limit 200"


class Trial:
    """`logs` is a folder, in which the gateway's file lies too."""

    def __init__(
        self, plan: Plan, services: Services, dsn: str, prefix: str, logs: Path, *, doors: tuple[Door, ...] = ()
    ) -> None:
        self.plan = plan
        self.stage = Stage(plan, app_name(prefix), f"{prefix}counter", str(logs / "gateway.jsonl"))
        self.group: Group = group_of(application(self.stage), services, dsn)
        self.group.query(SCHEMA)
        self.writer = Writer(self.stage, self.group.codec, dsn)
        self.fleet = Fleet(self.stage, services, dsn, logs, doors)
        self.external = MODES[plan.mode].external

    def published(self) -> int:
        """How many commands were committed."""
        return self.group.count("select count(*) from chaos.published")

    def ended(self) -> int:
        """How many have an end in the ledger."""
        return self.group.count(_ENDED, self.stage.group)

    def under_way(self) -> dict[str, int]:
        """What is not finished, by where it is."""
        with psycopg.connect(self.group.dsn, autocommit=True) as connection:
            cursor = connection.execute(_UNDER_WAY)
            assert cursor.description is not None
            names = [column.name for column in cursor.description]
            row = cursor.fetchone()
            assert row is not None
        return {name: count for name, count in zip(names, row, strict=True) if count}

    def drained(self) -> bool:
        """Whether every command has ended and nothing is left anywhere. Strict: or waits behind a dead letter."""
        left = self.under_way()
        behind_dead = left.pop("parked", 0)
        if left or (behind_dead and self.plan.order != "strict"):
            return False
        return self.ended() + behind_dead == self.published() and not self.lag()

    def lag(self) -> int:
        """Records of the lane and its tiers that the group has not committed."""
        handler = next(iter(self.group.app.handlers.values()))
        tiers = [topics.tier(self.stage.lane, self.stage.group, delay) for delay in handler.retry.tiers]
        return lag_of(self.group.settings, self.stage.group, [self.stage.lane, *tiers])

    def topics(self, names: list[str]) -> list[str]:
        """The lane and its tiers."""
        lane = self.stage.lane
        return [name for name in names if name == lane or name.startswith(f"{lane}.{self.stage.group}.retry.")]

    def discard(self) -> int:
        """Decide on some open dead letters, as an operator does. Returns how many."""
        with psycopg.connect(self.group.dsn, autocommit=True) as connection:
            named = [Identity(self.stage.group, row[0]) for row in connection.execute(_OPEN, (self.stage.group,))]
            if not named:
                return 0
            return len(dead_letter_decisions.discard(connection, named, by="chaos", because="a trial").done)

    def evidence(self) -> Evidence:
        """What was left."""
        with psycopg.connect(self.group.dsn, autocommit=True) as connection:
            return gather(connection, self.stage.group, self.stage.gateway)

    def problems(self, evidence: Evidence | None = None) -> list[Finding]:
        """Every broken promise."""
        # A transaction that PostgreSQL ends may have been waiting for a processor; one that outlives a freeze is longer.
        longest = math.inf if self.external else TRANSACTION_SECONDS + 2.0
        return findings(self.plan, evidence or self.evidence(), longest_transaction=longest)

    def waiting(self, evidence: Evidence) -> int:
        """How many commands wait rightly; see `checker.waiting`."""
        return len(waiting(self.plan, evidence))


def wait_until(moment: float) -> None:
    """Sleep until a monotonic instant: the rhythm of an attack."""
    time.sleep(max(0.0, moment - time.monotonic()))
