"""Effect and cost of limits: accuracy from the first second, queueing delay, and CPU per Gbit/s behind an ifb.

Pods are network namespaces whose limits the agent's own code sets; the figures are of this machine, so those that depend on it are
ratios within the run. Accuracy is what the kernel counted at the bucket, headers included, from the first packet on. Needs root.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from agent.bandwidth.rules import plugin_ifb_name
from tests.bench.figures import Figures, figure
from tests.integration.agent.limit_figures import (
    SECONDS,
    finish_traffic,
    measure_delay_s,
    measure_shares,
    running_generators,
    start_traffic,
)
from tests.integration.agent.pods_on_node import NETWORK, enforce, node_pod, run_bench

RATES = (5, 50, 500)
RUNS = 3


def measure() -> Figures:
    """The figures by name."""
    return dict(run_bench(__file__))


def _measure() -> Figures:
    passed: dict[str, tuple[float, float]] = {}
    highest, slowest_s = 0.0, 0.0
    for rate in RATES:
        with node_pod(rate % 251) as pod, running_generators(pod):
            enforce(pod.spec(ingress=f"{rate}M", egress=f"{rate}M"))
            for direction in ("ingress", "egress"):
                device = pod.host_device if direction == "ingress" else plugin_ifb_name(NETWORK, pod.container)
                runs = [measure_shares(pod, direction, device, rate * 1e6) for _ in range(RUNS)]
                highest = max(highest, *(share for run in runs for share in run))
                # Other work on the machine slows a stream, and speeds up none.
                passed[f"{rate}M {direction}"] = max(runs)
                if rate == 5:
                    continue  # sixteen frames take 39 ms at 5 Mbit/s: the bound of the tests is the rule there
                slowest_s = max(slowest_s, measure_delay_s(pod, direction))
    # The least of three: whoever else is at work makes it more.
    bare, limited = (min(_cpu_per_gbit(rate) for _ in range(3)) for rate in ("", "2G"))
    lowest = min(share for pair in passed.values() for share in pair)
    each = ", ".join(f"{name} {100 * one:.1f} and {100 * mean:.1f}" for name, (one, mean) in passed.items())
    what = f"best of {RUNS}: % of the limit in the first second, and in {SECONDS:.0f} s: {each}"
    return {
        "limit: least that passes": figure(100 * lowest, "% of the limit", 90, what, at_least=True),
        "limit: most that passes": figure(100 * highest, "% of the limit", 105, "of every run"),
        "limit: queueing delay p99": figure(
            1000 * slowest_s, "ms", 50, "one byte to and fro beside a full queue, 50 and 500 Mbit/s"
        ),
        "limit: CPU per Gbit behind ifb": figure(
            limited / bare,
            "× without a limit",
            4,
            f"out of a pod, limit 2G; {bare:.2f} and {limited:.2f} s of CPU per Gbit",
        ),
    }


def _cpu_per_gbit(rate: str) -> float:
    """CPU seconds of the whole machine per Gbit that a pod sent; without traffic of its own the machine must be quiet."""
    with node_pod(99) as pod, running_generators(pod):
        if rate:
            enforce(pod.spec(egress=rate))
        before = _busy_s()
        arrived: int = finish_traffic(start_traffic(pod, "egress", "bulk", SECONDS))
        return (_busy_s() - before) / (arrived * 8 / 1e9)


def _busy_s() -> float:
    """User, system and softirq time of all processors (proc(5), stat)."""
    columns = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    return (columns[0] + columns[2] + columns[5] + columns[6]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    print(json.dumps(_measure(), indent=2))
