"""Records as no publisher of ours would write them, put on a topic as they are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka
from confluent_kafka import KafkaError, Message, Producer

from onceward_schemas.ids import new_id

Pairs = Sequence[tuple[str, str | bytes | None]]
_SECONDS = 15.0


def heads(kind: str, **changed: str | bytes | None) -> list[tuple[str, str | bytes | None]]:
    """The headers of a good record of a type, but for what is changed; a header given as None is left out."""
    found: dict[str, str | bytes | None] = {"id": str(new_id()), "type": kind, "version": "1", "attempt": "1"}
    return [(name, value) for name, value in (found | changed).items() if value is not None]


class RawProducer:
    """Produces one record at a time and waits for it."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "linger.ms": 0,
                "message.max.bytes": 2_000_000,
                "log_level": 0,
            }
        )

    def send(self, topic: str, key: bytes | None, payload: bytes | None, headers: Pairs = ()) -> tuple[int, int]:
        """Returns partition and offset."""
        reports: list[tuple[KafkaError | None, Message]] = []
        self._producer.produce(
            topic,
            value=payload,
            key=key,
            # As bytes: the client ends a text at its first NUL.
            headers=[(n, v.encode() if isinstance(v, str) else v) for n, v in headers],
            on_delivery=lambda error, message: reports.append((error, message)),
        )
        assert self._producer.flush(_SECONDS) == 0
        [(error, message)] = reports
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        return partition, offset

    def send_header_name(self, topic: str, key: bytes, payload: bytes, name: bytes) -> None:
        """A record with a header whose name may be any bytes: Python's client writes text only, so this one goes past it."""
        library = _librdkafka()
        problem = ctypes.create_string_buffer(512)
        config = library.rd_kafka_conf_new()
        assert library.rd_kafka_conf_set(config, b"bootstrap.servers", self._bootstrap.encode(), problem, 512) == 0
        assert library.rd_kafka_conf_set(config, b"partitioner", b"murmur2_random", problem, 512) == 0
        producer = library.rd_kafka_new(_PRODUCER, config, problem, 512)
        assert producer, problem.value
        try:
            headers = library.rd_kafka_headers_new(1)
            assert library.rd_kafka_header_add(headers, name, len(name), b"x", 1) == 0
            parts = (_Part * 4)(
                _Part(_TOPIC, _Value(text=topic.encode())),
                _Part(_KEY, _Value(memory=_Memory(key, len(key)))),
                _Part(_VALUE, _Value(memory=_Memory(payload, len(payload)))),
                _Part(_HEADERS, _Value(pointer=headers)),
            )
            assert library.rd_kafka_produceva(producer, parts, len(parts)) is None
            assert library.rd_kafka_flush(producer, int(_SECONDS * 1000)) == 0
        finally:
            library.rd_kafka_destroy(producer)


# The part of librdkafka's rdkafka.h that `send_header_name` needs.
_PRODUCER = 0
_TOPIC, _VALUE, _KEY, _HEADERS = 1, 4, 5, 10


class _Memory(ctypes.Structure):
    _fields_ = (("address", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Value(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("memory", _Memory),
        ("pointer", ctypes.c_void_p),
        ("room", ctypes.c_char * 64),
    )


class _Part(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("value", _Value))


def _librdkafka() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_conf_set.argtypes = [pointer, text, text, text, size]
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, text, size]
    library.rd_kafka_headers_new.restype = pointer
    library.rd_kafka_headers_new.argtypes = [size]
    library.rd_kafka_header_add.argtypes = [pointer, text, ctypes.c_ssize_t, text, ctypes.c_ssize_t]
    library.rd_kafka_produceva.restype = pointer
    library.rd_kafka_produceva.argtypes = [pointer, ctypes.POINTER(_Part), size]
    library.rd_kafka_flush.argtypes = [pointer, ctypes.c_int]
    library.rd_kafka_destroy.argtypes = [pointer]
    return library
