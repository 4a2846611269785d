"""A generated module passes the project's own style and type checks, whatever the schema holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from onceward_schemas.generate import generated_module
from tests.support.avro_values import AWKWARD, command_file

ROOT = Path(__file__).parents[3]


def test_the_module_passes_ruff_and_mypy_strict(tmp_path: Path) -> None:
    path = tmp_path / "awkward.py"
    path.write_text(generated_module([command_file(AWKWARD)], folder="made"))
    config = str(ROOT / "pyproject.toml")
    for command in (
        ["ruff", "format", "--diff", "--config", config, str(path)],
        ["ruff", "check", "--config", config, str(path)],
        [
            "mypy",
            "--strict",
            "--config-file",
            config,
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path),
            str(path),
        ],
    ):
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
