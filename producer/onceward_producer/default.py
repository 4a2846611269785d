"""The outbox of this process, `outbox`: configured from the environment when it is first used, never at import."""

from __future__ import annotations

import os
import threading

from onceward_producer.outbox import Outbox
from onceward_runtime.registry import registry_client
from onceward_runtime.settings import Settings, load
from onceward_schemas.codec import Codec
from onceward_schemas.command import Command


class AmbientCodec:
    """The codec that the settings describe, made when first needed and anew in a forked process, for a connection to the
    registry must not be shared with the parent. Safe to share between threads."""

    def __init__(self) -> None:
        self._codec: Codec | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def encode(self, command: Command) -> bytes:
        """See `Codec.encode`. Raises: SettingsError, and what that raises."""
        return self._made().encode(command)

    def add(self, command: type[Command]) -> None:
        """See `Codec.add`."""
        self._made().add(command)

    def preload(self) -> None:
        """See `Codec.preload`."""
        self._made().preload()

    def _made(self) -> Codec:
        if self._pid != os.getpid():
            # A thread of the parent may have held the lock at the fork, so it is made anew too.
            self._codec, self._lock, self._pid = None, threading.Lock(), os.getpid()
        if self._codec is None:
            with self._lock:
                if self._codec is None:
                    self._codec = codec_for(load())
        return self._codec


def codec_for(settings: Settings) -> Codec:
    """A codec on the registry of the settings; connects to nothing yet."""
    return Codec(registry_client(settings))


outbox = Outbox(AmbientCodec())
"""`from onceward import outbox`; see Outbox."""
