"""Only files that the lock names are ever used: anything else is thrown away and fetched again, or refused."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from onceward_devstack.downloads import Downloads
from onceward_schemas.errors import DevstackError

JAR = b"a jar" * 1000
JAR_PATH = "/org/example/thing/1.0/thing-1.0.jar"
REGISTRY_PATH = "/io/apicurio/apicurio-registry-app/1.0/apicurio-registry-app-1.0-all.tar.gz"


def archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo("quarkus-run.jar")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"run"))
    return out.getvalue()


REGISTRY = archive()
LOCK = (
    f"io.apicurio:apicurio-registry-app:1.0:tar.gz:all {hashlib.sha256(REGISTRY).hexdigest()}\n"
    f"org.example:thing:1.0:jar {hashlib.sha256(JAR).hexdigest()}\n"
)


@dataclass
class Repository:
    """A Maven repository on this machine whose first answers for the jar may be bad."""

    bad_answers: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""

    def answer(self, path: str) -> bytes | None:
        self.asked[path] += 1
        if path == JAR_PATH and self.asked[path] <= self.bad_answers:
            return JAR[:-1] + b"?"
        return {JAR_PATH: JAR, REGISTRY_PATH: REGISTRY}.get(path)

    @contextmanager
    def serving(self) -> Iterator[None]:
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = repository.answer(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_port}"
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


@pytest.fixture
def repository() -> Iterator[Repository]:
    found = Repository()
    with found.serving():
        yield found


def downloads(repository: Repository, cache: Path) -> Downloads:
    return Downloads(cache, LOCK, {"local": repository.url}, pause_seconds=0)


def test_all_files_of_the_lock_are_fetched_once(repository: Repository, tmp_path: Path) -> None:
    folder = downloads(repository, tmp_path).fetch()
    assert (folder / "kafka" / "thing-1.0.jar").read_bytes() == JAR
    assert (folder / "registry" / "quarkus-run.jar").read_bytes() == b"run"
    downloads(repository, tmp_path).fetch()
    assert repository.asked[JAR_PATH] == 1


def test_a_corrupted_file_is_fetched_again(repository: Repository, tmp_path: Path) -> None:
    repository.bad_answers = 1
    folder = downloads(repository, tmp_path).fetch()
    assert (folder / "kafka" / "thing-1.0.jar").read_bytes() == JAR
    assert repository.asked[JAR_PATH] == 2


def test_a_file_that_stays_corrupted_is_refused(repository: Repository, tmp_path: Path) -> None:
    repository.bad_answers = 100
    with pytest.raises(DevstackError, match=r"org\.example:thing:1\.0:jar .*SHA-256") as refused:
        downloads(repository, tmp_path).fetch()
    assert "--maven-repository" in str(refused.value.remedy)
    assert not downloads(repository, tmp_path).folder.exists()


def test_what_was_damaged_on_disk_is_fetched_again(repository: Repository, tmp_path: Path) -> None:
    jar = downloads(repository, tmp_path).fetch() / "kafka" / "thing-1.0.jar"
    jar.write_bytes(JAR[:10])
    downloads(repository, tmp_path).fetch()
    assert jar.read_bytes() == JAR


def test_what_an_interrupted_fetch_left_is_not_used(repository: Repository, tmp_path: Path) -> None:
    half = tmp_path / "staging" / "maven" / JAR_PATH[1:]
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    folder = downloads(repository, tmp_path).fetch()
    assert (folder / "kafka" / "thing-1.0.jar").read_bytes() == JAR


def test_several_at_once_download_each_file_once(repository: Repository, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: downloads(repository, tmp_path).fetch(), range(4)))
    assert len(set(folders)) == 1
    assert repository.asked[JAR_PATH] == 1
    assert repository.asked[REGISTRY_PATH] == 1


def test_a_repository_out_of_reach_is_named_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(DevstackError, match="the repository did not give it") as refused:
        Downloads(tmp_path, LOCK, {"local": "http://127.0.0.1:9"}, pause_seconds=0).fetch()
    assert "HTTPS_PROXY" in str(refused.value.remedy)


def test_progress_hears_of_every_byte(repository: Repository, tmp_path: Path) -> None:
    heard: Counter[str] = Counter()

    @contextmanager
    def progress(name: str, size: int) -> Iterator[object]:
        yield lambda count: heard.update({name: count})

    downloads(repository, tmp_path).fetch(progress)  # type: ignore[arg-type]
    assert heard["thing-1.0.jar"] == len(JAR)
