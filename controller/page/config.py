"""Settings of the page: the section ``page`` of the controller's configuration file."""

from __future__ import annotations

import msgspec

from controller.prometheus import check_url
from kubekit.errors import ConfigError


class PageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What the page may cost.

    Attributes:
        enabled: whether it is served at all.
        prometheus_url: adds rates in use, verdicts and alerts; empty for none.
        refresh_s: while somebody looks, the page is computed anew at most once per this time.
        resync_s: and at least once per this time, since measurements age without any event.
        max_viewers: further ones are refused; each holds a connection.
        idle_s: this long after the last viewer left, what only the page reads is forgotten.
    """

    enabled: bool = True
    prometheus_url: str = ""
    refresh_s: float = 1.0
    resync_s: float = 15.0
    max_viewers: int = 64
    idle_s: float = 120.0

    def validate(self) -> None:
        """Raise `ConfigError` naming the first field that makes no sense."""
        if self.prometheus_url:
            check_url(self.prometheus_url, "page.prometheusUrl")
        for field, value, low, high in (
            ("refreshS", self.refresh_s, 0.1, 60),
            ("resyncS", self.resync_s, 1, 600),
            ("idleS", self.idle_s, 0, 86400),
            ("maxViewers", self.max_viewers, 1, 10_000),
        ):
            if not low <= value <= high:
                raise ConfigError(f"page.{field}", f"{value} is out of range", f"{low:g} to {high:g}")
