"""A recorded start-up cache is used when it is there, and never asked for when it is not."""

from __future__ import annotations

from pathlib import Path

from onceward_devstack.jvm import jvm_options


def test_a_cache_is_used_once_recorded(tmp_path: Path) -> None:
    cache = tmp_path / "kafka.aot"
    assert not any("AOTCache" in option for option in jvm_options(256, cache))
    cache.touch()
    assert f"-XX:AOTCache={cache}" in jvm_options(256, cache)


def test_the_heap_is_bounded() -> None:
    assert "-Xmx256m" in jvm_options(256)
