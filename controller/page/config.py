"""Settings of the page: the section ``page`` of the controller's configuration file."""

from __future__ import annotations

from typing import Literal

from kubekit.settings import Section


class PageConfig(Section, frozen=True):
    """The read-only page at the controller's address.

    Attributes:
        enabled: whether the page is served.
        auth: ``token`` requires a token as ``kubectl netaware page`` sends it; ``none`` serves everyone who reaches the port.
        allowed_hosts: public DNS names of the page, such as that of an Ingress; requests for other public names are refused.
    """

    enabled: bool = True
    auth: Literal["none", "token"] = "token"
    allowed_hosts: list[str] = []
