"""The probing secret, from the mounted file of ``--passphrase-file``.

Without a secret, anyone who can reach the port can make this node answer probes; a warning is logged once. The secret itself is never
logged.
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
    """Read the secret in a file; empty if the folder is empty or missing, as without the optional Secret.

    Raises:
        ConfigError: the file cannot be read, is blank or too short, or the folder has other files but not this one, as with a Secret
            without the key.
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
    """Reads the secret and polls for changes: the kubelet replaces mounted files within about a minute.

    An unusable secret never turns authentication off: the last good one stays, or the agent waits. Without a secret at the start,
    probes stay unauthenticated until a usable one is mounted.

    Attributes:
        problem: why the current secret cannot be used; empty otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""

    async def read(self) -> bytes:
        """The current secret, empty if none is mounted; waits while the mounted one is unusable."""
        while (secret := self._read_once()) is None:  # noqa: ASYNC110 - the kubelet replaces the file
            await asyncio.sleep(POLL_S)
        state = "" if secret else "none"
        log.change("secret/none", state, "probes are authenticated" if secret else "probes are not authenticated")
        return secret

    async def wait_for_change(self, current: bytes) -> bytes:
        """Wait for a usable secret other than ``current``, and return it; if the file is removed, the current secret stays in use."""
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
            self._set_problem(str(error))
            return None
        self._set_problem("the secret is gone" if current and not secret else "")
        return secret

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        message = "the probing secret cannot be used" if problem else "the probing secret can be used again"
        log.change("secret", problem, message, why=problem)
