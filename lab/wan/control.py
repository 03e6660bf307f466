"""Client of the control socket: reads the links of the emulated network, and changes them while packets flow."""

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

    Every method raises WanError if the network does not answer or refuses the request.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path

    def read_links(self) -> dict[tuple[str, str], Link]:
        """Return two zones in bytewise order -> link between them, and a zone twice -> link inside it."""
        return {(link.origin, link.destination): link.link for link in self._request(Command()).links}

    def set_link(self, zone: str, other: str, link: Link) -> None:
        """Replace a link in both directions; packets under way keep their delay."""
        self._request(Command(to_wan_link(zone, other, link)))

    def change_link(self, zone: str, other: str, /, **changes: float) -> Link:
        """Change fields of a link (``rtt_us``, ``jitter_us``, ``loss``) and return the new link."""
        links = self.read_links()
        try:
            old_link = links[zone_pair(zone, other)]
        except KeyError:
            zones = ", ".join(sorted({name for pair in links for name in pair}))
            raise WanError(f"there is no link between {zone} and {other}; the zones are {zones}") from None
        new_link = replace(old_link, **changes)
        if new_link.has_excessive_jitter:
            comparison = f"{new_link.jitter_us:g} us is more than the round trip, {new_link.rtt_us:g} us"
            raise WanError(f"a jitter of {comparison}; set both")
        self.set_link(zone, other, new_link)
        return new_link

    def _request(self, command: Command) -> Reply:
        # A path through a descriptor of the folder, because the path of a socket has at most 107 bytes.
        try:
            folder_fd = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise WanError(f"{self._path.parent}: {error.strerror}") from error
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(f"/proc/self/fd/{folder_fd}/{self._path.name}")
                connection.sendall(msgspec.json.encode(command))
                with connection.makefile("rb") as stream:
                    reply = msgspec.json.decode(stream.read(), type=Reply)
        except (OSError, msgspec.DecodeError) as error:
            raise WanError(f"the emulated network does not answer: {error}") from error
        finally:
            os.close(folder_fd)
        if reply.error:
            raise WanError(reply.error)
        return reply
