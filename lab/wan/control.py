"""Asks the running forwarder for its links and counters, and changes links while packets flow."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import msgspec

from lab.errors import WanError
from lab.topology import Link, site_pair
from lab.wan.plan import Answer, Command, to_wan_link

_TIMEOUT_S = 3.0


class WanControl:
    """The control socket of one lab's network. Requests take well below a millisecond and do not need an event loop.

    Every method raises WanError when the network is not there or refuses.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path

    def links(self) -> dict[tuple[str, str], Link]:
        """All links, by both sites in bytewise order; a site's own name twice is the link inside it."""
        return {(link.origin, link.destination): link.link for link in self._ask(Command("links")).links}

    def set_link(self, site: str, other: str, link: Link) -> None:
        """Replace a link, both directions; packets under way keep their time."""
        self._ask(Command("set", to_wan_link(site, other, link)))

    def change_link(self, site: str, other: str, /, **changes: float) -> Link:
        """Change some fields of a link (``rtt_us``, ``jitter_us``, ``loss``), and return what it is now; TypeError for others."""
        known = self.links()
        try:
            old = known[site_pair(site, other)]
        except KeyError:
            sites = ", ".join(sorted({name for pair in known for name in pair}))
            raise WanError(f"there is no link between {site} and {other}; the sites are {sites}") from None
        new = replace(old, **changes)
        if new.jitters_too_much:
            msg = f"a jitter of {new.jitter_us:g} us is more than the round trip itself, {new.rtt_us:g} us; set both"
            raise WanError(msg)
        self.set_link(site, other, new)
        return new

    def counters(self) -> Answer:
        """Packets forwarded, lost and dropped since the start; the worst lateness since the last call."""
        return self._ask(Command("counters"))

    def _ask(self, command: Command) -> Answer:
        # By way of the directory's descriptor, since the path of a socket may not exceed 107 bytes.
        try:
            folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise WanError(f"{self._path.parent}: {error.strerror}") from error
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(f"/proc/self/fd/{folder}/{self._path.name}")
                connection.sendall(msgspec.json.encode(command))
                with connection.makefile("rb") as reply:
                    answer = msgspec.json.decode(reply.read(), type=Answer)
        except (OSError, msgspec.DecodeError) as error:
            raise WanError(f"the emulated network does not answer: {error}") from error
        finally:
            os.close(folder)
        if answer.error:
            raise WanError(answer.error)
        return answer
