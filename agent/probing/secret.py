"""The probing secret: from a mounted file, or from the Secret netaware-probe.

Without one everything still works, and anybody who can reach the port can have this node answer probes; that is said once
in the log. The secret itself is never logged.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from kubekit import logs
from kubekit.client import Client
from kubekit.errors import ApiError, ConfigError, KubekitError
from kubekit.waiting import Backoff
from kubekit.wire import SECRETS, Secret
from netperf.contract import PASSPHRASE_KEY, PROBE_SECRET
from netperf.probers.passphrase import check_secret

log = logs.get("agent.probing")

POLL_S = 60.0


def decode_secret(data: dict[str, str] | None) -> bytes:
    """The passphrase in a Secret's data.

    Raises:
        ConfigError: there is none, it is not base64, or it is too short to keep a secret.
    """
    text = (data or {}).get(PASSPHRASE_KEY, "")
    try:
        return check_secret(base64.b64decode(text, validate=True).strip())
    except ValueError as error:
        raise ConfigError(f"Secret {PROBE_SECRET}, key {PASSPHRASE_KEY}", "is not base64") from error


def read_secret_file(path: Path) -> bytes:
    """The passphrase in a file; empty when nothing is mounted, as with an optional volume whose Secret does not exist.

    Raises:
        ConfigError: the file cannot be read, is blank, or is too short to keep a secret; or there are others in its place, as with a
            Secret that lacks the key.
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
    """Reads the secret and says when it is another one; kubelets replace mounted files within a minute or so.

    A secret that cannot be used never turns authentication off: the last good one stays, and without one the agent waits.

    Attributes:
        problem: why the secret as it is now cannot be used; empty when it can.
    """

    def __init__(self, client: Client, namespace: str, path: Path | None) -> None:
        self._client, self._namespace, self._path = client, namespace, path
        self.problem = ""

    async def read(self) -> bytes:
        """The secret as it is now, empty where there is none; waits until it can be read and is good."""
        backoff = Backoff()
        while True:
            try:
                secret = await self._read_once()
            except ConfigError as error:
                self._note(str(error))
                await asyncio.sleep(POLL_S)
            except KubekitError as error:
                self._note(f"cannot read Secret {PROBE_SECRET}: {error}")
                await asyncio.sleep(backoff.next())
            else:
                self._note("")
                why = "" if secret else "there is none"
                log.change("secret/none", why, "probes go without a passphrase" if why else "probes have a passphrase")
                return secret

    async def changed(self, current: bytes) -> bytes:
        """Wait until there is a good secret other than ``current``, and return it; one that vanishes is kept."""
        while True:
            await asyncio.sleep(POLL_S)
            if self._path is None:
                continue  # a Secret that must be asked for would cost a request a minute on every node
            try:
                fresh = read_secret_file(self._path)
            except ConfigError as error:
                self._note(str(error))
                continue
            self._note("the secret is gone" if current and not fresh else "")
            if fresh and fresh != current:
                return fresh

    def _note(self, problem: str) -> None:
        self.problem = problem
        what = "the probing secret cannot be used" if problem else "the probing secret can be used again"
        log.change("secret", problem, what, why=problem)

    async def _read_once(self) -> bytes:
        if self._path is not None:
            return read_secret_file(self._path)
        try:
            found = await self._client.get(SECRETS, PROBE_SECRET, Secret, namespace=self._namespace)
        except ApiError as error:
            if error.not_found:
                return b""
            raise
        return decode_secret(found.data)
