"""Settings of the page: the section ``page`` of the controller's configuration file."""

from __future__ import annotations

from typing import Literal

from kubekit.errors import ConfigError
from kubekit.settings import Section, join


class PageConfig(Section, frozen=True):
    """The read-only page at the manager's address.

    Attributes:
        enabled: whether it is served at all.
        allowed_hosts: names in public DNS that the page is reached under, such as that of an Ingress. Addresses, localhost and
            names inside the cluster need not be listed; other names are refused, since a web site could read the page by them.
        auth: ``token`` shows the page to those alone who send a token for the audience netaware-page of somebody with the right to
            get services/proxy of the controller's Service, as ``kubectl netaware page`` does; ``none`` to whoever reaches the port.
        runbook_url: where the runbook is, for links; empty for none.
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
