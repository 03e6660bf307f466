"""The probing secret, from a mounted file.

Without one everything works, but anybody who reaches the port can have this node answer probes; a log line warns once. The secret
itself is never logged.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from kubekit import logs
from kubekit.errors import ConfigError
from netperf.probers.passphrase import check_secret

log = logs.get("agent.probing")

POLL_S = 60.0


def read_secret_file(path: Path) -> bytes:
    """The passphrase in a file; empty if nothing is mounted, as without the optional Secret.

    Raises:
        ConfigError: the file cannot be read, is blank or too short, or is missing beside others, as with a Secret that lacks the
        key.
    """
    try:
        return check_secret(path.read_bytes().strip())
    except FileNotFoundError:
        others = sorted(file.name for file in path.parent.glob("[!.]*"))  # the kubelet's own names begin with two dots
    except OSError as error:
        raise ConfigError("--passphrase-file", f"{path}: {error.strerror}") from error
    if others:
        raise ConfigError(
            "--passphrase-file", f"there is no {path.name} in {path.parent}, but {', '.join(others)[:80]}"
        )
    return b""


class SecretSource:
    """Reads the secret, and reports when it changes; kubelets replace mounted files within about a minute.

    An unusable secret never turns authentication off: the last good one stays, or the agent waits.

    Attributes:
        problem: why the current secret cannot be used; empty otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""

    async def read(self) -> bytes:
        """The current secret, empty if none is mounted; waits until it is usable."""
        while (secret := self._read_once()) is None:  # noqa: ASYNC110 - the kubelet replaces the file
            await asyncio.sleep(POLL_S)
        why = "" if secret else "there is none"
        log.change("secret/none", why, "probes go without a passphrase" if why else "probes have a passphrase")
        return secret

    async def wait_for_change(self, current: bytes) -> bytes:
        """Wait for a usable secret other than ``current``, and return it; a removed one is kept."""
        while True:
            await asyncio.sleep(POLL_S)
            secret = self._read_once(current)
            if secret and secret != current:
                return secret

    def _read_once(self, current: bytes = b"") -> bytes | None:
        """Read the secret; None if it cannot be used."""
        try:
            secret = read_secret_file(self._path)
        except ConfigError as error:
            self._note(str(error))
            return None
        self._note("the secret is gone" if current and not secret else "")
        return secret

    def _note(self, problem: str) -> None:
        self.problem = problem
        what = "the probing secret cannot be used" if problem else "the probing secret can be used again"
        log.change("secret", problem, what, why=problem)
