"""Settings of the page: the section ``page`` of the controller's configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

from controller.prometheus import check_url
from kubekit.errors import ConfigError
from kubekit.settings import Range, Section, join


class PageConfig(Section, frozen=True):
    """What the page may cost.

    Attributes:
        enabled: whether it is served at all.
        prometheus_url: adds rates in use, verdicts and alerts; empty for none.
        refresh_s: while somebody looks, the page is computed anew at most once per this time, and in large clusters for a
            fifth of the time.
        resync_s: and at least once per this time, since measurements age without any event.
        max_viewers: further ones are refused; each holds a connection.
        allowed_hosts: names in public DNS that the page is reached under, such as that of an Ingress. Addresses, localhost and
            names inside the cluster need not be listed; other names are refused, since a web site could read the page by them.
        auth: ``token`` shows the page to those alone who send a token for the audience netaware-page of somebody with the right to
            get services/proxy of the controller's Service, as ``kubectl netaware page`` does; ``none`` to whoever reaches the port.
        runbook_url: where the runbook is, for links; empty for none.
        idle_s: this long after the last viewer left, what only the page reads is forgotten.
    """

    enabled: bool = True
    prometheus_url: str = ""
    refresh_s: Annotated[float, Range(0.1, 60)] = 1.0
    resync_s: Annotated[float, Range(1, 600)] = 15.0
    max_viewers: Annotated[int, Range(1, 10_000)] = 64
    idle_s: Annotated[float, Range(0, 86_400)] = 120.0
    runbook_url: str = "https://netaware.io/docs/runbook.md"
    auth: Literal["none", "token"] = "token"
    allowed_hosts: list[str] = []

    def check(self, field: str) -> None:
        """Raise ConfigError when Prometheus' address is none."""
        if self.prometheus_url:
            check_url(self.prometheus_url, join(field, "prometheusUrl"))
        if self.runbook_url and not self.runbook_url.startswith(("http://", "https://")):
            where = join(field, "runbookUrl")
            raise ConfigError(where, f"{self.runbook_url!r} is no address", "write https://HOST/PATH")
