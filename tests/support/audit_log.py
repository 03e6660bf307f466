"""Reads the audit log of a running API server."""

import json
from pathlib import Path
from typing import Any


def read_audit_events(log: Path) -> list[dict[str, Any]]:
    """The events of all complete lines; raises ValueError for a line that is not JSON."""
    complete, _, _ = log.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in complete.splitlines()]
