"""Assigns tests that cannot run in parallel to one worker: those of a file, and those of files that share a resource of the machine."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling

CHAINS = {
    # Ten nodes use up to 100 of a user's 128 inotify instances.
    "real nodes": ("test_as_shipped", "test_real_nodes", "test_fix_commands_of_programs"),
    # An enforcing agent removes limits of all pods of this machine that it does not know.
    "pods on this machine": (
        "test_agent_beside_others",
        "test_agent_capabilities",
        "test_agent_program",
        "test_cni_plugins",
        "test_counting_traffic",
        "test_kernel_changes",
    ),
}
_CHAIN_BY_FILE = {file: chain for chain, files in CHAINS.items() for file in files}


def find_chain(nodeid: str) -> str:
    """The chain of a test; its file if it is in no chain."""
    file = nodeid.partition("::")[0]
    return _CHAIN_BY_FILE.get(PurePath(file).stem, file)


def is_chained(nodeid: str) -> bool:
    """Whether the test is in a chain; these begin first, because they take longest."""
    return find_chain(nodeid) in CHAINS


class ChainScheduling(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return find_chain(nodeid)
