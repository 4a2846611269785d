"""The application as child processes import it: its stage is in an environment variable."""

from __future__ import annotations

import os

from tests.chaos.handlers import application
from tests.chaos.plan import Stage

app = application(Stage.from_text(os.environ["CHAOS_STAGE"]))
