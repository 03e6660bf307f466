"""Logs the hosts that send without the probing passphrase."""

from __future__ import annotations

from kubekit.logs import Log

MAX_LOGGED_HOSTS = 100
"""Maximum number of hosts that a `RejectionLog` logs, because a sender of datagrams can forge its address."""


class RejectionLog:
    """Logs a message for each rejected host, once, and for at most `MAX_LOGGED_HOSTS` of them."""

    def __init__(self, log: Log, message: str) -> None:
        self._log, self._message = log, message
        self._logged_hosts: set[str] = set()

    def add(self, host: str) -> None:
        """Log a rejected host unless it was logged before."""
        if host not in self._logged_hosts and len(self._logged_hosts) < MAX_LOGGED_HOSTS:
            self._logged_hosts.add(host)
            self._log.warning(self._message, peer=host)
