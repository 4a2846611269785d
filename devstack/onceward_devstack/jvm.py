"""Options with which the Java servers start fast and stay small."""

from __future__ import annotations

from pathlib import Path

_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


def jvm_options(heap_mib: int, startup_cache: Path | None = None) -> list[str]:
    """Options for one server. A start-up cache is used when it is there; Java ignores one that does not fit."""
    recorded = startup_cache is not None and startup_cache.exists()
    return [*_OPTIONS, f"-Xmx{heap_mib}m", *([f"-XX:AOTCache={startup_cache}"] if recorded else [])]
