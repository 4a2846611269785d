"""Options with which the Java servers start fast and stay small."""

from __future__ import annotations

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


def jvm_options(heap_mib: int) -> list[str]:
    """Options for one server."""
    return [*_OPTIONS, f"-Xmx{heap_mib}m"]
