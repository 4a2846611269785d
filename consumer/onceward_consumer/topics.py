"""The topics that an app needs, how the cluster differs from that, and what to do about it.

Each lane has a main topic, a retry topic for each delay of its handlers, with as many partitions as the lane, and a
dead-letter topic. Comparing is pure; `plan`, `apply` and `check` talk to the cluster.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its names are not marked as exported
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from onceward_consumer.app import App
from onceward_consumer.policy import LONGEST_RETRY_AFTER, TOLERANCE
from onceward_runtime import kafka
from onceward_runtime.settings import Settings
from onceward_schemas import topics as names
from onceward_schemas.errors import AppError, BrokerError

Role: TypeAlias = Literal["lane", "retry", "dead letters", "scheduler"]
Kind: TypeAlias = Literal["missing", "few_partitions", "many_partitions", "setting", "leftover"]

DEFAULT_PARTITIONS: Final = 6
_WEEK: Final = timedelta(days=7)
_SETTLED_SECONDS: Final = 15.0
_LONGEST_OUTAGE: Final = timedelta(days=1)
"""For so long workers may be down at least without a record vanishing unread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A topic that the app needs."""

    name: str
    role: Role
    lane: str | None = None
    retention: timedelta
    """What a new topic gets."""
    shortest_retention: timedelta = timedelta(0)
    """Below this, records would vanish before they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A topic of the cluster. Settings are empty where they may not be read."""

    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as the app needs it."""

    topic: str
    role: Role
    kind: Kind
    says: str
    change: str | None
    """What `apply` does about it; None where a person has to decide."""
    partitions: int | None = None
    """For `missing` and `few_partitions`: how many it should have."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """For `missing` and `setting`: what to set."""
    repartitions: bool = False
    """Growing it moves keys to other partitions while older commands of theirs may be unread: order could break."""
    stops_workers: bool = True
    """Whether a worker refuses to start because of it."""


def desired(app: App) -> tuple[Wanted, ...]:
    """The topics that the app needs: lanes first, then their tiers and dead letters, the scheduler's last."""
    lanes: list[Wanted] = []
    others: list[Wanted] = []
    for lane in app.lanes:
        lanes.append(Wanted(name=lane, role="lane", lane=lane, retention=_WEEK, shortest_retention=_LONGEST_OUTAGE))
        for delay in app.tiers(lane):
            longest = max(delay, LONGEST_RETRY_AFTER) * (1 + TOLERANCE)
            others.append(
                Wanted(
                    name=names.tier(lane, app.name, delay),
                    role="retry",
                    lane=lane,
                    retention=_WEEK + longest,
                    shortest_retention=_LONGEST_OUTAGE + longest,
                )
            )
        others.append(
            Wanted(name=names.dead_letter(lane, app.name), role="dead letters", lane=lane, retention=4 * _WEEK)
        )
    if app.schedules:
        others.append(Wanted(name=names.SCHEDULER, role="scheduler", retention=_WEEK))
    return (*lanes, *others)


def leftover_tiers(app: App, existing: Iterable[str]) -> tuple[str, ...]:
    """Retry topics of the app's lanes that no policy names any more; records may still wait in them."""
    wanted = {topic.name for topic in desired(app)}
    prefixes = tuple(f"{lane}.{app.name}.retry." for lane in app.lanes)
    pattern = re.compile(rf"(?:{'|'.join(map(re.escape, prefixes))})\d+(?:ms|s|m|h|d)\Z")
    return tuple(sorted(name for name in existing if prefixes and name not in wanted and pattern.match(name)))


def differences(app: App, found: Mapping[str, Found], partitions: int | None = None) -> tuple[Difference, ...]:
    """Compare. `partitions` is what lanes should have at least; without it a lane that exists is left as it is."""
    lane_partitions: dict[str | None, int] = {None: partitions or DEFAULT_PARTITIONS}
    result: list[Difference] = []
    for topic in desired(app):
        actual = found.get(topic.name)
        if topic.role == "lane":
            there = actual.partitions if actual else 0
            lane_partitions[topic.name] = max(there, partitions or there or DEFAULT_PARTITIONS)
        count = lane_partitions[topic.lane]
        if actual is None:
            result.append(_missing(topic, count))
        else:
            result += _partitions_differ(topic, actual.partitions, count)
            result += _settings_differ(topic, actual.settings)
    for name in leftover_tiers(app, found):
        says = "no handler's retry policy names this delay any more; workers still read it"
        result.append(
            Difference(topic=name, role="retry", kind="leftover", says=says, change=None, stops_workers=False)
        )
    return tuple(result)


def require_handlers(app: App) -> None:
    """Refuse an app that consumes nothing; most often its handlers are in modules that nobody imports.

    Raises: AppError.
    """
    if not app.handlers:
        raise AppError(
            f"The app {app.name!r} has no handlers.",
            remedy="Import the modules that declare them in the module that you name.",
        )


def plan(app: App, settings: Settings, partitions: int | None = None) -> tuple[Difference, ...]:
    """Look at the cluster and say what differs; changes nothing.

    Raises: BrokerError; AppError where there are neither handlers nor schedules.
    """
    if not app.schedules:
        require_handlers(app)
    return differences(app, _look(app, settings), partitions)


def apply(
    app: App,
    settings: Settings,
    partitions: int | None = None,
    replication: int | None = None,
    *,
    allow_repartition: bool = False,
) -> tuple[Difference, ...]:
    """Make the changes of `plan` and wait until the cluster shows them; safe to call from several processes.

    `replication` is for new topics and defaults to the cluster's own. Returns the differences that were mended.
    Raises: BrokerError, before anything is changed, for what a person has to decide or allow.
    """
    planned = plan(app, settings, partitions)
    _refuse(planned, allow_repartition)
    todo = [difference for difference in planned if difference.change]
    client = kafka.admin(settings)
    for difference in todo:
        _carry_out(client, difference, replication)
    deadline = time.monotonic() + _SETTLED_SECONDS
    while left := [d for d in plan(app, settings, partitions) if d.change]:
        if time.monotonic() > deadline:
            raise BrokerError(f"{_lines(left)}", remedy="The cluster did not follow; see the broker's log.")
        time.sleep(0.1)
    return tuple(todo)


def check(app: App, settings: Settings) -> tuple[str, ...]:
    """See that a worker can run on the topics as they are, and return those to subscribe to, leftover tiers included.

    Raises: BrokerError with all that is wrong and the command that mends it.
    """
    found = _look(app, settings)
    wrong = [difference for difference in differences(app, found) if difference.stops_workers]
    if wrong:
        remedy = "Run `onceward topics apply` with this app."
        if not any(difference.change for difference in wrong):
            remedy = "Decide this by hand; `onceward topics plan` shows it again."
        raise BrokerError(
            f"The topics of {app.name} are not as its workers need them:\n{_lines(wrong)}\n", remedy=remedy
        )
    read = [topic.name for topic in desired(app) if topic.role in ("lane", "retry")]
    return (*read, *leftover_tiers(app, found))


def _missing(topic: Wanted, count: int) -> Difference:
    return Difference(
        topic=topic.name,
        role=topic.role,
        kind="missing",
        says="does not exist",
        change=f"create it with {count} partitions",
        partitions=count,
        settings={"cleanup.policy": "delete", "retention.ms": _milliseconds(topic.retention)},
    )


def _partitions_differ(topic: Wanted, actual: int, count: int) -> list[Difference]:
    if topic.role not in ("lane", "retry") or actual == count:
        return []
    if actual < count:
        lane = topic.role == "lane"
        return [
            Difference(
                topic=topic.name,
                role=topic.role,
                kind="few_partitions",
                says=f"has {actual} partitions, {'wanted' if lane else 'its lane has'} {count}",
                change=f"grow it to {count} partitions",
                partitions=count,
                repartitions=lane,
            )
        ]
    return [
        Difference(
            topic=topic.name,
            role=topic.role,
            kind="many_partitions",
            says=f"has {actual} partitions, its lane has {count}, and Kafka cannot take partitions away; "
            f"once nothing waits in it, delete it and apply again",
            change=None,
        )
    ]


def _settings_differ(topic: Wanted, settings: Mapping[str, str]) -> list[Difference]:
    result: list[Difference] = []

    def add(says: str, name: str, value: str) -> None:
        result.append(
            Difference(
                topic=topic.name,
                role=topic.role,
                kind="setting",
                says=says,
                change=f"set {name} to {value}",
                settings={name: value},
            )
        )

    policy = settings.get("cleanup.policy", "delete")
    if policy != "delete":
        add(f"has cleanup.policy={policy}, which drops commands of the same key", "cleanup.policy", "delete")
    retention = int(settings.get("retention.ms", "-1"))
    if 0 <= retention < int(_milliseconds(topic.shortest_retention)):
        kept, needed = timedelta(milliseconds=retention), topic.shortest_retention
        add(
            f"keeps records for {kept}, less than the {needed} they may wait",
            "retention.ms",
            _milliseconds(topic.retention),
        )
    if int(settings.get("retention.bytes", "-1")) >= 0 and topic.role in ("lane", "retry"):
        add("drops unread records when it grows past retention.bytes", "retention.bytes", "-1")
    return result


def _refuse(planned: Iterable[Difference], allow_repartition: bool) -> None:
    planned = tuple(planned)
    stuck = [d for d in planned if d.change is None and d.stops_workers]
    if stuck:
        raise BrokerError(
            f"Nothing was changed, since this needs a decision:\n{_lines(stuck)}\n", remedy="Decide it by hand."
        )
    moving = [d for d in planned if d.repartitions]
    if moving and not allow_repartition:
        raise BrokerError(
            f"Growing a lane moves keys to other partitions, so a key's new command may overtake an unread old one. "
            f"Nothing was changed:\n{_lines(moving)}\n",
            remedy="Stop publishing, let the workers empty the lane, then add --allow-repartition.",
        )


def _carry_out(client: AdminClient, difference: Difference, replication: int | None) -> None:
    topic = difference.topic
    match difference.kind:
        case "missing":
            new = NewTopic(topic, difference.partitions or 1, replication or -1, config=dict(difference.settings))
            _result(client.create_topics([new], operation_timeout=10), topic, KafkaError.TOPIC_ALREADY_EXISTS)
        case "few_partitions":
            grown = NewPartitions(topic, difference.partitions or 1)
            # INVALID_PARTITIONS: somebody else has just grown it.
            _result(client.create_partitions([grown], operation_timeout=10), topic, KafkaError.INVALID_PARTITIONS)
        case "setting":
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in difference.settings.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            _result(client.incremental_alter_configs([resource]), topic)


def _result(futures: Mapping[Any, Any], topic: str, fine: int | None = None) -> None:
    for future in futures.values():
        try:
            future.result(timeout=20)
        except KafkaException as error:
            if error.args[0].code() != fine:
                raise kafka.broker_error(error, f"The topic {topic} cannot be changed") from error


def _look(app: App, settings: Settings) -> dict[str, Found]:
    """The topics of the cluster that concern the app, with their settings where those may be read."""
    counts = kafka.topics(settings)
    concerned = [topic.name for topic in desired(app) if topic.name in counts]
    concerned += leftover_tiers(app, counts)
    read = _settings_of(kafka.admin(settings), concerned)
    return {name: Found(partitions=counts[name], settings=read.get(name, {})) for name in concerned}


def _settings_of(client: AdminClient, topics: list[str]) -> dict[str, dict[str, str]]:
    if not topics:
        return {}
    result: dict[str, dict[str, str]] = {}
    futures = client.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in topics])
    for resource, future in futures.items():
        try:
            entries = future.result(timeout=20)
        except KafkaException as error:
            if error.args[0].code() in _UNREADABLE:
                continue
            raise kafka.broker_error(error, f"The settings of {resource.name} cannot be read") from error
        result[resource.name] = {name: entry.value for name, entry in entries.items() if entry.value is not None}
    return result


_UNREADABLE = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART})


def _lines(found: Iterable[Difference]) -> str:
    return "\n".join(f"  {difference.topic}: {difference.says}" for difference in found)


def _milliseconds(value: timedelta) -> str:
    return str(value // timedelta(milliseconds=1))
