"""The Python of docs/handlers.md, as one program."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# httpx is the reader's choice, not a dependency of ours.
STAND_IN = """
from __future__ import annotations
from typing import Any
class Response:
    status_code: int
    def raise_for_status(self) -> None: ...
class AsyncClient:
    def __init__(self, timeout: float) -> None: ...
    async def __aenter__(self) -> AsyncClient: return self
    async def __aexit__(self, *error: object) -> None: ...
    async def post(self, url: str, *, json: dict[str, Any], headers: dict[str, str]) -> Response: raise NotImplementedError
"""


def write_program(folder: Path) -> Path:
    """Write the program and what it imports; returns its file."""
    (folder / "httpx.py").write_text(STAND_IN)
    blocks = BLOCK.findall((ROOT / "docs" / "handlers.md").read_text())
    path = folder / "handlers_page.py"
    path.write_text("\n\n".join(["from __future__ import annotations", *blocks]))
    return path
