"""A stack comes back on its old ports, unless somebody else took them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from onceward_devstack.ports import HOST, choose_ports, free_ports, is_free
from onceward_schemas.errors import DevstackError

NAMES = ("kafka", "postgres")


def test_ports_are_remembered(tmp_path: Path) -> None:
    assert choose_ports(tmp_path, NAMES) == choose_ports(tmp_path, NAMES)


def test_only_a_taken_port_is_replaced(tmp_path: Path) -> None:
    before = choose_ports(tmp_path, NAMES)
    with socket.create_server((HOST, before["kafka"])):
        after = choose_ports(tmp_path, NAMES)
    assert after["kafka"] != before["kafka"]
    assert after["postgres"] == before["postgres"]


def test_a_wanted_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DevstackError, match=f"Port {port}, asked for kafka, is taken"):
            choose_ports(tmp_path, NAMES, {"kafka": port})


def test_a_damaged_file_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("{")
    assert set(choose_ports(tmp_path, NAMES)) == set(NAMES)


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(map(is_free, ports))
