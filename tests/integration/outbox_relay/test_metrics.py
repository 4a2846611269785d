"""What the relay does can be read from its metrics, and its health says whether it can work."""

from __future__ import annotations

from prometheus_client import REGISTRY

from tests.support.relay import make_topic, outbox_rows, publish, running_relay, slot_name, until
from tests.support.services import Services


def test_rows_transactions_and_lag_are_counted(services: Services, database: str, topic_prefix: str) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "counted")
    slot = slot_name(database)

    def value(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"onceward_relay_{name}", {"slot": slot, **labels})

    with running_relay(database, services.bootstrap) as relay:
        assert relay.alive()
        assert relay.ready()
        assert value("active") == 1
        publish(database, topic, ("a", b"1"), ("b", b"2"), ("c", b"3"))
        publish(database, "no such/topic!", ("a", b"1"))
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
        until(lambda: value("rows_total", outcome="relayed") == 3, 5, "relayed rows are counted")
        assert value("rows_total", outcome="parked") == 1
        until(lambda: value("transactions_total") == 4, 5, "transactions are counted")
        assert value("pending_rows") == 0
        assert value("lag_seconds") == 0
        assert (value("bytes_total") or 0) > 100
    assert not relay.ready()
    assert value("active") == 0
