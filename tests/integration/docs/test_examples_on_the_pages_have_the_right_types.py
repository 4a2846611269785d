"""The Python of docs/handlers.md passes mypy in strict mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.handlers_page import ROOT, write_program


def test_the_types_are_right(tmp_path: Path) -> None:
    page = write_program(tmp_path)
    search = os.pathsep.join([str(page.parent), str(ROOT / "examples")])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--strict", str(page)],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
