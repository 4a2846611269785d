"""Who is at the command line, for the record."""

from __future__ import annotations

import getpass
import socket


def user() -> str:
    """Name and host of the user of this machine."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError, ImportError):
        return f"unknown@{socket.gethostname()}"
