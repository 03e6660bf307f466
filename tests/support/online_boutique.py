"""The workloads and calls of the Online Boutique, and its orders in docs/contracts.md."""

from __future__ import annotations

BOUTIQUE_CALLS = {"P1": "P2 P3 P4 P6 P8 P9 P10", "P2": "P11", "P8": "P2 P3 P4 P5 P6 P7", "P9": "P3"}
BOUTIQUE = [f"P{i}" for i in range(1, 12)]
EXPECTED_ORDERS = {
    "KahnSort": "P1 P10 P9 P8 P7 P6 P5 P4 P3 P2 P11",
    "AlternateKahn": "P1 P11 P10 P2 P9 P3 P8 P4 P7 P5 P6",
    "ReverseKahn": "P11 P2 P3 P4 P5 P6 P7 P8 P9 P10 P1",
    "TarjanSort": "P1 P10 P9 P8 P7 P5 P6 P4 P3 P2 P11",
    "AlternateTarjan": "P1 P11 P10 P2 P9 P3 P8 P4 P7 P6 P5",
    "ReverseTarjan": "P11 P2 P3 P4 P6 P5 P7 P8 P9 P10 P1",
}
