"""Who only publishes needs no extra, and no settings before the first command."""

from __future__ import annotations

import os
import subprocess
import sys

EXTRAS = ["cronsim", "prometheus_client", "rich", "stamina", "structlog", "typer", "tzdata"]


def test_a_publishing_install_needs_no_extra() -> None:
    code = (
        f"import sys\nfor name in {EXTRAS}: sys.modules[name] = None\n"
        "from onceward import Command, Outbox, Published, Settings, errors, load_settings, outbox\n"
        "loaded = {n.partition('.')[0] for n in sys.modules if n.startswith('onceward')}\n"
        "assert loaded <= {'onceward', 'onceward_producer', 'onceward_runtime', 'onceward_schemas'}, loaded\n"
        "from onceward import App, Context, Discard, Retry, exponential, fixed, never\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_parts_a_publisher_imports_need_no_extra() -> None:
    blocked = ("prometheus_client", "structlog", "typer", "rich", "stamina", "cronsim", "alembic", "opentelemetry.sdk")
    code = (
        "import sys\n"
        f"for name in {blocked}: sys.modules[name] = None\n"
        "import onceward_runtime.settings, onceward_runtime.postgres, onceward_runtime.sql, onceward_runtime.tracing\n"
        "import onceward_runtime.kafka, onceward_runtime.migrate, onceward_runtime.alembic\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_outbox_reads_no_settings_and_loads_no_sqlalchemy() -> None:
    code = (
        "import sys, onceward_producer.default; from onceward_producer.default import outbox;"
        "assert not [name for name in sys.modules if name.startswith('sqlalchemy')]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"ONCEWARD_NO_SUCH_SETTING": "1"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
