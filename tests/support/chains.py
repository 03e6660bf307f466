"""Which tests run one after the other while others run beside them: those of one file, and those of files that cannot share the machine.

Only the order is decided here; what must not run twice at a time holds a lock of its own.
"""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling

CHAINS = {
    # Ten nodes take up to 100 of the 128 inotify instances that a user usually has.
    "real nodes": ("test_as_shipped", "test_real_nodes", "test_fix_commands_of_programs"),
    # An agent that enforces takes limits of pods it does not know for leftovers, on whatever pod of this machine they are.
    "pods on this machine": (
        "test_agent_beside_others",
        "test_agent_capabilities",
        "test_agent_program",
        "test_cni_plugins",
        "test_counting_traffic",
        "test_kernel_changes",
    ),
}
_CHAIN_OF = {file: chain for chain, files in CHAINS.items() for file in files}


def chain_of(nodeid: str) -> str:
    """The chain of a test, or its own file if it is in none."""
    file = nodeid.partition("::")[0]
    return _CHAIN_OF.get(PurePath(file).stem, file)


def is_chained(nodeid: str) -> bool:
    """Whether the test is of a chain. Chains take longest, so they begin first."""
    return chain_of(nodeid) in CHAINS


class ByChain(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each chain to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return chain_of(nodeid)
