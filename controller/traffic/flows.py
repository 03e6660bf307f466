"""The type of a traffic flow: client, server, zones, mean and peak rates."""

from __future__ import annotations

import msgspec


class WorkloadId(msgspec.Struct, frozen=True, order=True):
    """A workload as metrics name it. ``kind`` is empty if the source lacks it; an empty ``name`` is an unknown workload."""

    namespace: str = ""
    name: str = ""
    kind: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``, for people, and to compare sources with and without kinds."""
        return f"{self.namespace}/{self.name}"

    @property
    def known(self) -> bool:
        """Whether this is a workload of the cluster, and not an external end."""
        return bool(self.namespace and self.name)


class Flow(msgspec.Struct, frozen=True):
    """Traffic from a client to a server and back, over a window.

    Attributes:
        client: who opens the connection or sends the request.
        server: who answers.
        bytes_per_s: both ways, mean over the window.
        peak_bytes_per_s: both ways, the 95th percentile over the window; the mean where a source cannot tell.
        client_zone: empty if the source lacks it; likewise ``server_zone``.
        port: the server's; 0 if the source lacks it.
    """

    client: WorkloadId
    server: WorkloadId
    bytes_per_s: float
    peak_bytes_per_s: float = 0.0
    client_zone: str = ""
    server_zone: str = ""
    port: int = 0
