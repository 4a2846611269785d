"""A broker that speaks only TLS and asks for a password: the ONCEWARD_KAFKA_* settings reach it with every process, and what
is wrong with them is said without a secret."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from onceward_devstack.downloads import Downloads
from onceward_devstack.kafka import Kafka
from onceward_devstack.ports import HOST, free_ports
from onceward_producer.rows import INSERT_MANY, arrays, row
from onceward_runtime import kafka
from onceward_runtime.settings import Settings
from onceward_schemas.codec import Codec
from onceward_schemas.errors import BrokerError
from onceward_schemas.registry import RegistryClient
from tests.support import onceward_command as cli
from tests.support.commands import Increment
from tests.support.consumers import eventually
from tests.support.services import Services

PASSWORD = "right-of-way"
WRONG = "hunter2-of-nobody"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings that are let in."""
    folder = tmp_path_factory.mktemp("secured")
    make_certificates(folder)
    port, controller_port = free_ports(2)
    broker = Kafka(folder / "kafka", Downloads().fetch(), port=port, controller_port=controller_port)
    broker.more_properties = {
        "listeners": f"SECURED://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"SECURED://{HOST}:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SECURED:SASL_SSL",
        "inter.broker.listener.name": "SECURED",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.secured.plain.sasl.jaas.config": (
            f'{_PLAIN} username="broker" password="inner" user_broker="inner" user_service="{PASSWORD}";'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
    }
    try:
        broker.start()
        yield Settings(
            kafka_bootstrap_servers=broker.bootstrap,
            kafka_security_protocol="SASL_SSL",
            kafka_sasl_mechanism="PLAIN",
            kafka_sasl_username="service",
            kafka_sasl_password=SecretStr(PASSWORD),
            kafka_ssl_ca=folder / "ca.pem",
        )
    finally:
        broker.stop()


def make_certificates(folder: Path) -> None:
    """An authority, another one that nobody knows, and the broker's key with its chain, all in PEM."""

    def openssl(line: str) -> None:
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl(f"req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {name}.key -out {name}.pem -subj /CN={name}")
    openssl("req -newkey rsa:2048 -nodes -keyout broker.key -out broker.csr -subj /CN=broker")
    (folder / "names.txt").write_text(f"subjectAltName=IP:{HOST},DNS:localhost\n")
    signing = "x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
    openssl(f"{signing} -out broker.crt -extfile names.txt")
    parts = ("broker.key", "broker.crt", "ca.pem")
    (folder / "broker.pem").write_text("".join((folder / part).read_text() for part in parts))


def variables(services: Services, database: str, settings: Settings) -> dict[str, str]:
    assert settings.kafka_sasl_password is not None
    return cli.environment(
        services,
        database,
        kafka_bootstrap_servers=settings.kafka_bootstrap_servers,
        kafka_security_protocol=settings.kafka_security_protocol,
        kafka_sasl_mechanism="PLAIN",
        kafka_sasl_username="service",
        kafka_sasl_password=settings.kafka_sasl_password.get_secret_value(),
        kafka_ssl_ca=str(settings.kafka_ssl_ca),
        slot=f"secured_{database[-12:]}",
    )


WAYS_IN: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong password": (
        {"kafka_sasl_password": SecretStr(WRONG)},
        "ONCEWARD_KAFKA_SASL_USERNAME, _PASSWORD or _MECHANISM",
    ),
    "an authority that did not sign": ({"kafka_ssl_ca": "other.pem"}, "ONCEWARD_KAFKA_SSL_CA"),
    "no password at all": (
        {"kafka_security_protocol": "SSL", "kafka_sasl_mechanism": None},
        "ONCEWARD_KAFKA_SECURITY_PROTOCOL agrees with the listener",
    ),
    "no TLS": (
        {"kafka_security_protocol": "SASL_PLAINTEXT"},
        "ONCEWARD_KAFKA_SECURITY_PROTOCOL agrees with the listener",
    ),
}


@pytest.mark.parametrize("what", WAYS_IN)
def test_whoever_is_not_let_in_is_told_which_setting_to_correct(secured: Settings, what: str) -> None:
    changed, phrase = WAYS_IN[what]
    assert secured.kafka_ssl_ca is not None
    folder = secured.kafka_ssl_ca.parent
    changed = {name: folder / value if isinstance(value, str) and value.endswith(".pem") else value
               for name, value in changed.items()}  # fmt: skip
    with pytest.raises(BrokerError) as caught:
        kafka.check(secured.model_copy(update=changed))
    assert phrase in str(caught.value.remedy)
    assert WRONG not in str(caught.value)


def test_a_wrong_password_ends_the_worker_with_a_word_on_it(
    services: Services, database: str, secured: Settings, tmp_path: Path
) -> None:
    target = cli.write_application(tmp_path, "secured", "secured.lane")
    settings = variables(services, database, secured.model_copy(update={"kafka_sasl_password": SecretStr(WRONG)}))
    for ended in cli.run_all(tmp_path, settings, f"topics plan {target}", f"worker {target}"):
        ended.check_refusal("ONCEWARD_KAFKA_SASL_USERNAME")
        assert WRONG not in ended.err + ended.out


def test_the_settings_carry_a_command_from_the_outbox_to_its_effect(
    services: Services, database: str, secured: Settings, tmp_path: Path
) -> None:
    registry = RegistryClient(services.registry_url)
    registry.register(Increment.SCHEMA.name, Increment.SCHEMA.avro)
    target = cli.write_application(tmp_path, "secured", "secured.lane")
    settings = variables(services, database, secured)
    assert cli.run(tmp_path, settings, "topics", "apply", target, "--replication", "1").code == 0
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(cli.EFFECT)
        made = row(Increment(counter="a", amount=7), Codec(registry))._replace(topic="secured.lane")
        connection.execute(INSERT_MANY, arrays([made]))
        with cli.running(tmp_path, settings, "relay"), cli.running(tmp_path, settings, "worker", target):
            eventually(lambda: connection.execute("select amount from effect").fetchall() == [(7,)], "effect")
