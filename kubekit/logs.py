"""Structured logs, as key=value lines or JSON.

``log = logs.get("agent.capacity")`` then ``log.info("capacity published", rate_bps=10**9, source="ethtool")``. ``log.log_change(...)``
logs a lasting state only when it starts, changes and ends.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import IO

from kubekit.text import escape_control_characters, make_printable, mask_control_characters

_QUOTED_CHARACTERS = frozenset('\\"= \n\t')
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_MAX_STATES = 10_000
"""Limit of the lasting states of one `Log`. A further state replaces the oldest one, whose end is then not logged."""
_MAX_SILENCE_S = 3600.0
"""A state that was not reported for this long is logged again, because callers do not report the end of every state."""


class Log:
    """Writes structured logs under one name. Keyword arguments become fields."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._states: dict[str, tuple[str, float]] = {}
        """Topic -> its state, and the time of its last report, monotonic seconds."""

    def debug(self, message: str, **fields: object) -> None:
        """Log a detail for debugging."""
        self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        """Log a normal change of state."""
        self._emit(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Log a fault that the program handles."""
        self._emit(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        """Log a fault that a user must fix."""
        self._emit(logging.ERROR, message, fields)

    def log_exception(self, message: str, error: BaseException, **fields: object) -> None:
        """Log an unexpected error with its traceback."""
        self._logger.error(message, exc_info=error, extra={"fields": fields})

    def log_change(self, topic: str, state: str, message: str, *, level: str = "warning", **fields: object) -> bool:
        """Log only if the state of ``topic`` is new, or was not reported for an hour; returns whether it was logged.

        Args:
            topic: subject of the state, for example ``plan/zone-a``.
            state: any text; empty is the normal state, which is logged only after another state.
            message: text of the line.
            level: level of the line; a change to normal has level info.
            fields: as for the other methods.
        """
        now = time.monotonic()
        previous_state, reported_at_s = self._states.get(topic, ("", now))
        if state:
            if topic not in self._states and len(self._states) >= _MAX_STATES:
                self._states.pop(next(iter(self._states)))
            self._states[topic] = state, now
        else:
            self._states.pop(topic, None)
        if state == previous_state and now - reported_at_s < _MAX_SILENCE_S:
            return False
        self._emit(logging.getLevelName(level.upper()) if state else logging.INFO, message, fields)
        return True

    def _emit(self, level: int, message: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={"fields": fields})


def get(name: str) -> Log:
    """The log of one part of a program, for example ``agent.capacity``."""
    return Log(name)


def configure(*, format_: str = "text", level: str = "info", stream: IO[str] | None = None) -> None:
    """Write logs from ``level`` on (of asyncio and HTTP access from warning on) to ``stream`` or stderr, as ``text`` or ``json``."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if format_ == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for logger_name in ("asyncio", "aiohttp.access"):
        logging.getLogger(logger_name).setLevel(max(root.level, logging.WARNING))


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, "fields", {})


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            **_fields_of(record),
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return escape_control_characters(json.dumps(line, default=str, ensure_ascii=False))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {k}={_quote(v)}" for k, v in _fields_of(record).items())
        head = f"{_timestamp(record.created)} {record.levelname.lower():7} {record.name}: {make_printable(record.getMessage())}{fields}"
        # Indented, so that the text of an error cannot look like another log line.
        trace = mask_control_characters(self.formatException(record.exc_info)).splitlines() if record.exc_info else ()
        return "\n    ".join([head, *trace])


def _timestamp(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s)) + f".{int(unix_s % 1 * 1000):03d}Z"


def _quote(value: object) -> str:
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    needs_quotes = not text or not text.isprintable() or not _QUOTED_CHARACTERS.isdisjoint(text)
    return escape_control_characters(json.dumps(text, ensure_ascii=False)) if needs_quotes else text
