"""What programs take, before a storm and after: memory, descriptors, processes, tasks of their event loop; and nodes' links."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families

from lab.cluster import Lab
from lab.pids import find_marked
from lab.storm.faults import CONTROL_PLANE

# Python gives memory back late, and a second run of the same work needs a little more: a leak goes on, this does not.
_RSS_FACTOR, _RSS_ROOM = 1.5, 40 << 20
_DESCRIPTORS_ROOM, _PROCESSES_ROOM, _TASKS_ROOM = 25, 3, 25
_TASKS = "netaware_loop_tasks"
_ANSWER_S = 10.0


class Level(msgspec.Struct, frozen=True):
    """What one program takes, its children included; ``rss`` in bytes.

    ``tasks`` are those of its event loop, None where it does not say: it has no such loop, or is of an older version.
    """

    rss: int
    descriptors: int
    processes: int
    tasks: int | None = None


async def read_tasks(urls: Mapping[str, str]) -> dict[str, int]:
    """Tasks of each program's event loop, by program; without those that do not say. ``urls`` are where they serve."""

    async def ask(name: str, url: str) -> tuple[str, int] | None:
        try:
            async with session.get(f"{url}/metrics?name[]={_TASKS}") as answer:
                families = text_string_to_metric_families(await answer.text())
        except (aiohttp.ClientError, TimeoutError):
            return None
        return next(((name, int(s.value)) for family in families for s in family.samples if s.name == _TASKS), None)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:
        found = await asyncio.gather(*(ask(*item) for item in urls.items()))
    return dict(answer for answer in found if answer is not None)


def read_levels(lab: Lab, tasks: Mapping[str, int]) -> dict[str, Level]:
    """By program; ``tasks`` as `read_tasks` found them."""
    found = {}
    for program in lab.programs:
        try:
            root = psutil.Process(program.pid)
            family = [root, *root.children(recursive=True)]
            found[program.name] = Level(
                sum(p.memory_info().rss for p in family),
                sum(p.num_fds() for p in family),
                len(family),
                tasks.get(program.name),
            )
        except psutil.Error:
            continue
    return found


def read_links(lab: Lab) -> dict[str, list[str]]:
    """Names of the network devices of each node."""
    found = {}
    for network in lab.nodes:
        argv = ["nsenter", f"--net=/run/netns/{network.netns}", "cat", "/proc/net/dev"]
        text = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout
        found[network.node.name] = sorted(line.split(":")[0].strip() for line in text.splitlines()[2:])
    return found


def orphans(lab: Lab) -> list[str]:
    """Processes of the lab that no program of it is the parent of."""
    family: set[int] = set()
    for program in lab.programs:
        try:
            family |= {program.pid, *(p.pid for p in psutil.Process(program.pid).children(recursive=True))}
        except psutil.Error:
            continue
    found = []
    for record in find_marked(lab.place.state_dir):
        if record.pid in family:
            continue
        try:
            words = (Path("/proc") / str(record.pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found.append(f"leaked process: {record.pid} {b' '.join(words).decode(errors='replace').strip()[:120]}")
    return found


def risen(before: Mapping[str, Level], after: Mapping[str, Level]) -> list[str]:
    """Where a level stays above what it was, with room for what is no leak.

    Memory of etcd and the API server is not judged: etcd holds every version that was written until the API server has it
    compacted, every five minutes where nobody kills it, and the API server holds them in its watch cache.
    """
    violations = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            violations.append(f"not running: {name}")
            continue
        if name not in CONTROL_PLANE and new.rss > old.rss * _RSS_FACTOR + _RSS_ROOM:
            violations.append(f"memory: {name} from {old.rss >> 20} to {new.rss >> 20} MiB")
        if new.descriptors > old.descriptors + _DESCRIPTORS_ROOM:
            violations.append(f"descriptors: {name} from {old.descriptors} to {new.descriptors}")
        if new.processes > old.processes + _PROCESSES_ROOM:
            violations.append(f"processes: {name} from {old.processes} to {new.processes}")
        if old.tasks is not None and (new.tasks is None or new.tasks > old.tasks + _TASKS_ROOM):
            violations.append(f"tasks: {name} from {old.tasks} to {'no answer' if new.tasks is None else new.tasks}")
    return violations
