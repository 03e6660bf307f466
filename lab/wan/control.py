"""Client of the control socket: reads links and counters of the emulated network, and changes links while packets flow."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import msgspec

from lab.errors import WanError
from lab.topology import Link, zone_pair
from lab.wan.plan import Command, Reply, to_wan_link

_TIMEOUT_S = 3.0


class WanControl:
    """Client of a lab's control socket. Blocks for less than a millisecond.

    Every method raises WanError if the network does not answer or refuses.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path

    def read_links(self) -> dict[tuple[str, str], Link]:
        """Two sites in bytewise order -> link between them; a site twice -> link inside it."""
        return {(link.origin, link.destination): link.link for link in self._request(Command("links")).links}

    def set_link(self, site: str, other: str, link: Link) -> None:
        """Replace a link in both directions; packets under way keep their delay."""
        self._request(Command("set", to_wan_link(site, other, link)))

    def change_link(self, site: str, other: str, /, **changes: float) -> Link:
        """Change fields of a link (``rtt_us``, ``jitter_us``, ``loss``) and return the new link."""
        links = self.read_links()
        try:
            old = links[zone_pair(site, other)]
        except KeyError:
            sites = ", ".join(sorted({name for pair in links for name in pair}))
            raise WanError(f"there is no link between {site} and {other}; the sites are {sites}") from None
        new = replace(old, **changes)
        if new.has_excessive_jitter:
            raise WanError(f"a jitter of {new.jitter_us:g} us is more than the round trip, {new.rtt_us:g} us; set both")
        self.set_link(site, other, new)
        return new

    def read_counters(self) -> Reply:
        """Packets forwarded, lost and dropped since the start; the worst lateness since the last call."""
        return self._request(Command("counters"))

    def _request(self, command: Command) -> Reply:
        # Through a descriptor of the directory, because the path of a socket has at most 107 bytes.
        try:
            folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise WanError(f"{self._path.parent}: {error.strerror}") from error
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(f"/proc/self/fd/{folder}/{self._path.name}")
                connection.sendall(msgspec.json.encode(command))
                with connection.makefile("rb") as stream:
                    reply = msgspec.json.decode(stream.read(), type=Reply)
        except (OSError, msgspec.DecodeError) as error:
            raise WanError(f"the emulated network does not answer: {error}") from error
        finally:
            os.close(folder)
        if reply.error:
            raise WanError(reply.error)
        return reply
