"""Reads an API server's audit log while the server writes it."""

import json
from pathlib import Path
from typing import Any


def audit_events(log: Path) -> list[dict[str, Any]]:
    """The events that are complete; the last line may be half written. Raises ValueError for a line that is no JSON."""
    complete, _, _ = log.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in complete.splitlines()]
