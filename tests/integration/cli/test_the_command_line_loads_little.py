"""`onceward --help` loads no verb, and an install without the extra says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys

from onceward_cli.verbs import VERBS


def test_the_help_names_every_verb_and_loads_none() -> None:
    code = (
        "import sys\n"
        "from onceward_cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', [n for n in sys.modules if n.startswith(('onceward_consumer', 'onceward_cli.d', 'psycopg'))])"
    )
    environment = dict(os.environ, COLUMNS="120")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert all(name in done.stdout for name in VERBS)
    assert "LOADED []" in done.stdout


def test_a_publishing_install_says_what_the_command_line_needs() -> None:
    code = "import sys; sys.modules['typer'] = None; from onceward_cli.main import main; main(['relay'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'onceward[server]'" in done.stderr
    assert "Traceback" not in done.stderr
