"""Reads the probing passphrase from the mounted file of ``--passphrase-file``.

Without a passphrase, which is logged, anyone who reaches the port can have probes answered. The passphrase itself is never logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from kubekit import logs
from kubekit.errors import ConfigError

log = logs.get("agent.probing")

POLL_INTERVAL_S = 60.0
MIN_PASSPHRASE_BYTES = 16  # 128 bits
MAX_LISTED_CHARACTERS = 80
"""Longest list of file names in an error."""


def read_passphrase_file(path: Path) -> bytes:
    """Read the passphrase in a file; empty if the directory is empty or missing, because the Secret is optional.

    Raises:
        ConfigError: the file cannot be read, is blank or too short, or is missing beside other files (a Secret without the key).
    """
    try:
        passphrase = path.read_bytes().strip()
    except FileNotFoundError:
        other_names = sorted(
            file.name for file in path.parent.glob("[!.]*")
        )  # The kubelet's own names begin with two dots.
        if not other_names:
            return b""
        listed = ", ".join(other_names)[:MAX_LISTED_CHARACTERS]
        raise ConfigError("--passphrase-file", f"there is no {path.name} in {path.parent}, but {listed}") from None
    except OSError as error:
        raise ConfigError("--passphrase-file", f"{path}: {error.strerror}") from error
    if len(passphrase) < MIN_PASSPHRASE_BYTES:
        problem = f"has {len(passphrase)} bytes"
        raise ConfigError("probing passphrase", problem, f"use at least {MIN_PASSPHRASE_BYTES} random bytes")
    return passphrase


class PassphraseSource:
    """Reads the passphrase and polls for changes: the kubelet replaces mounted files within about a minute.

    An unusable passphrase never turns authentication off: the last usable one stays; without one the agent waits. If no passphrase is
    mounted at the start, probes are unauthenticated until a usable one is mounted.

    Attributes:
        problem: why the mounted passphrase cannot be used, or that it is gone; else empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""

    async def watch(self) -> AsyncIterator[bytes]:
        """Yield the mounted passphrase once it is usable (empty if none is mounted), and each usable one that replaces it."""
        current: bytes | None = None
        while True:
            passphrase = self._read(current)
            if passphrase is not None and passphrase != current:
                if current:
                    log.info("the probing passphrase was replaced")
                state = "" if passphrase else "absent"  # Empty is the normal state.
                log.log_change("passphrase/absent", state, f"probes are {'' if passphrase else 'not '}authenticated")
                yield passphrase
                current = passphrase
            await asyncio.sleep(POLL_INTERVAL_S)

    def _read(self, current: bytes | None) -> bytes | None:
        """Read the passphrase, and set `problem`; returns ``current`` if the mounted one is gone or cannot be used."""
        try:
            passphrase: bytes | None = read_passphrase_file(self._path)
            problem = "the passphrase is gone" if current and not passphrase else ""
        except ConfigError as error:
            passphrase, problem = None, str(error)
        self.problem = problem
        message = "the probing passphrase cannot be used" if problem else "the probing passphrase can be used again"
        log.log_change("passphrase", problem, message, why=problem)
        return current if problem else passphrase
