"""`python -m onceward_devstack.lock`: resolve the Java programs anew and write java_lock.txt. For maintainers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from onceward_devstack.downloads import KAFKA_COORDINATE, REGISTRY_COORDINATE, artifact, sha256

KAFKA_VERSION = "4.4.0"
REGISTRY_VERSION = "3.3.3"
_ROOTS = (
    f"{KAFKA_COORDINATE}:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",  # formats the data folder
    "org.slf4j:slf4j-simple:1.7.36",
)
_REGISTRY = f"{REGISTRY_COORDINATE}:{REGISTRY_VERSION}:tar.gz:all"


def resolve() -> str:
    """The text of the lock: a line for each file that the servers need at run time."""
    from jgo.maven import MavenContext

    with tempfile.TemporaryDirectory() as folder:
        context = MavenContext(repo_cache=Path(folder), local_repos=[], timeout=60)
        direct, transitive = context.resolver.resolve([context.create_dependency(root) for root in _ROOTS])
        lines = {f"{_REGISTRY} {sha256(artifact(context, _REGISTRY).resolve())}"}
        for dependency in [*direct, *transitive]:
            if dependency.scope in (None, "compile", "runtime"):
                found = dependency.artifact
                parts = (found.groupId, found.artifactId, found.version, found.packaging, found.classifier)
                coordinate = ":".join(part for part in parts if part)
                lines.add(f"{coordinate} {sha256(found.resolve())}")
    return "".join(f"{line}\n" for line in sorted(lines))


if __name__ == "__main__":
    (Path(__file__).parent / "java_lock.txt").write_text(resolve())
