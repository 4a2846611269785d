"""The process's own codec is made once, when it is needed, and anew after a fork."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from onceward_producer import default
from onceward_producer.default import AmbientCodec, codec_for
from onceward_runtime import registry
from onceward_runtime.settings import Settings
from onceward_schemas.errors import SettingsError


class Made:
    """Stands in for a codec."""

    def preload(self) -> None: ...


def test_threads_share_one_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Made] = []

    def slowly(settings: Settings) -> Any:
        time.sleep(0.02)  # lets the other threads come to the lock
        made.append(Made())
        return made[-1]

    monkeypatch.setattr(default, "codec_for", slowly)
    codec = AmbientCodec()
    threads = [threading.Thread(target=codec.preload) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_forked_process_makes_its_own_even_if_a_thread_held_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def note(settings: Settings) -> Any:
        made.append(os.getpid())
        return Made()

    monkeypatch.setattr(default, "codec_for", note)
    codec = AmbientCodec()
    codec.preload()
    with codec._lock:
        child = os.fork()
        if child == 0:
            worker = threading.Thread(target=codec.preload, daemon=True)
            worker.start()
            worker.join(5)
            os._exit(0 if made == [os.getppid(), os.getpid()] else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_bad_setting_is_told_at_first_use_and_not_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = AmbientCodec()
    monkeypatch.setenv("ONCEWARD_REGISTRY_UR", "http://127.0.0.1:1")
    with pytest.raises(SettingsError, match="ONCEWARD_REGISTRY_URL"):
        codec.preload()
    monkeypatch.delenv("ONCEWARD_REGISTRY_UR")
    monkeypatch.setattr(default, "codec_for", lambda settings: Made())
    codec.preload()


def test_the_registrys_settings_are_all_used(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(registry, "RegistryClient", lambda url, **options: given.update(options, url=url))
    codec_for(
        Settings.model_validate(
            {
                "registry_url": "https://registry",
                "registry_user": "hr",
                "registry_password": "secret",
                "registry_ssl_ca": "/ca.pem",
                "registry_timeout": 2,
            }
        )
    )
    assert given == {
        "url": "https://registry",
        "user": "hr",
        "password": "secret",
        "ca_location": "/ca.pem",
        "timeout_seconds": 2.0,
    }
