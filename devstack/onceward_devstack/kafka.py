"""Apache Kafka in KRaft mode, one node that is broker and controller."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceward_devstack.downloads import KAFKA_COORDINATE, java_program, locked, pinned_version
from onceward_devstack.jvm import jvm_options
from onceward_devstack.launcher import clean_environment, launch
from onceward_devstack.ports import HOST, free_ports, is_open
from onceward_devstack.server import Server
from onceward_schemas.errors import DevstackError

CLUSTER_ID = "b25jZXdhcmQtZGV2LXN0YQ"
STARTUP_CACHE = "kafka.aot"
_TEMPLATE = "formatted"
_COORDINATOR_NOT_YET = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError._TIMED_OUT,
)


class Kafka(Server):
    """The broker; clients use `bootstrap`."""

    def __init__(self, home: Path, program: Path, *, port: int, controller_port: int, heap_mib: int = 256) -> None:
        super().__init__("kafka", home, version=pinned_version(KAFKA_COORDINATE), port=port)
        self.controller_port = controller_port
        self.heap_mib = heap_mib
        self.more_options: tuple[str, ...] = ()
        self.more_properties: dict[str, str] = {}
        """Further settings of the broker, which win over the usual ones."""
        self._proxied: dict[int, int] = {}
        self._program = program
        self._data = home / "data"
        self._settings = home / "server.properties"

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return self.bootstrap

    def listen_behind(self, advertised_port: int) -> int:
        """One more listener, for clients that shall reach the broker through a proxy at `advertised_port` only.

        Returns the port that the proxy passes on to. Call it before the start.
        """
        [port] = free_ports(1)
        self._proxied[port] = advertised_port
        return port

    def launch(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        more = "".join(f"{name}={value}\n" for name, value in self.more_properties.items())
        self._settings.write_text(_properties(self._data, self.port, self.controller_port, self._proxied) + more)
        if not self._data.exists():
            self._format()
        options = [*jvm_options(self.heap_mib, self._program / STARTUP_CACHE), *self.more_options]
        self._process = launch(
            [java_program(), *options, "-cp", f"{self._program}/kafka/*", "kafka.Kafka", self._settings],
            log=self.log,
            folder=self.home,
            death_signal=signal.SIGKILL,
        )

    def is_ready(self) -> bool:
        return is_open(self.port)  # the listener opens when the broker may serve

    def _format(self) -> None:
        staging = self.home / "data.new"
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(_formatted(self._program), staging)
        directory = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        lines = ["version=1", f"cluster.id={CLUSTER_ID}", "node.id=1", f"directory.id={directory}"]
        (staging / "meta.properties").write_text("\n".join(lines) + "\n")
        staging.rename(self._data)


def warm_groups(bootstrap: str, timeout_seconds: float = 60) -> None:
    """Make the broker create and load the topic of consumer groups, for which the first group else waits 3 s.

    Not by AdminClient.list_consumer_group_offsets, which can crash the process (librdkafka issue 5040).
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "onceward-devstack-warm", "log_level": 0})
    deadline = time.monotonic() + timeout_seconds
    try:
        while not _coordinator_answers(consumer):
            if time.monotonic() > deadline:
                raise DevstackError(
                    f"Kafka at {bootstrap} serves no consumer groups after {timeout_seconds:g} s.",
                    remedy="See its log: onceward dev logs kafka",
                )
            time.sleep(0.05)
    finally:
        consumer.close()


def _coordinator_answers(consumer: Consumer) -> bool:
    """Ask for offsets of a group; False while the group's topic is being made or loaded."""
    try:
        consumer.committed([TopicPartition("onceward-devstack-warm", 0)], timeout=10)
    except KafkaException as error:
        if error.args[0].code() not in _COORDINATOR_NOT_YET:
            raise
        return False
    return True


def _properties(data: Path, port: int, controller_port: int, proxied: Mapping[int, int] | None = None) -> str:
    fixed = files("onceward_devstack").joinpath("kafka.properties").read_text()
    listeners = {"PLAINTEXT": (port, port)}
    listeners |= {f"PROXIED{own}": (own, advertised) for own, advertised in (proxied or {}).items()}
    own = ",".join(f"{name}://{HOST}:{ports[0]}" for name, ports in listeners.items())
    advertised = ",".join(f"{name}://{HOST}:{ports[1]}" for name, ports in listeners.items())
    protocols = ",".join(f"{name}:PLAINTEXT" for name in ("CONTROLLER", *listeners))
    return (
        f"{fixed}\ncontroller.quorum.voters=1@{HOST}:{controller_port}\n"
        f"listeners={own},CONTROLLER://{HOST}:{controller_port}\nadvertised.listeners={advertised}\n"
        f"listener.security.protocol.map={protocols}\nlog.dirs={data}\n"
    )


def _formatted(program: Path) -> Path:
    """An empty data folder as Kafka's own tool formats it, made once and copied.

    A meta.properties written by hand also starts a broker, but one with all features at level 0.
    """
    template = program / _TEMPLATE
    with locked(program / "format.lock"):
        if template.exists():
            return template
        work = program / f"{_TEMPLATE}-{os.getpid()}"
        work.mkdir()
        settings = work / "server.properties"
        settings.write_text(_properties(work / "data", 2, 1))
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)]
        result = subprocess.run(
            [java_program(), *jvm_options(256), "-cp", f"{program}/kafka/*", *tool],
            check=False,
            capture_output=True,
            text=True,
            env=clean_environment({}),
        )
        if result.returncode:
            shutil.rmtree(work)
            raise DevstackError(
                f"Kafka could not format its data folder:\n{(result.stderr or result.stdout)[-1000:]}",
                remedy=f"If files are missing, delete {program} so that they are downloaded again.",
            )
        (work / "data").rename(template)
        shutil.rmtree(work)
    return template
