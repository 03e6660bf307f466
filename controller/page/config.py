"""Settings of the page: the section ``page`` of the controller's configuration file."""

from __future__ import annotations

from typing import Literal

from kubekit.errors import ConfigError
from kubekit.settings import Section, join


class PageConfig(Section, frozen=True):
    """The read-only page at the manager's address.

    Attributes:
        enabled: whether it is served.
        allowed_hosts: public DNS names of the page, such as that of an Ingress; other public names are refused.
        auth: ``token`` requires a token as ``kubectl netaware page`` sends it; ``none`` serves anybody who reaches the port.
        runbook_url: base of links to the runbook; empty for none.
    """

    enabled: bool = True
    runbook_url: str = "https://netaware.io/docs/runbook.md"
    auth: Literal["none", "token"] = "token"
    allowed_hosts: list[str] = []

    def check(self, field: str) -> None:
        """Raise ConfigError when the runbook's address is none."""
        if self.runbook_url and not self.runbook_url.startswith(("http://", "https://")):
            where = join(field, "runbookUrl")
            raise ConfigError(where, f"{self.runbook_url!r} is no address", "write https://HOST/PATH")
