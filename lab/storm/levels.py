"""What programs take, before a storm and after: memory, descriptors, processes, tasks of their event loop; and nodes' links."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import msgspec
import psutil

from lab import namespaces
from lab.cluster import Lab
from lab.pids import find_marked
from lab.scale.readings import Readings
from lab.storm.faults import CONTROL_PLANE

# Python gives memory back late, and a second run of the same work needs a little more: a leak goes on, this does not.
_RSS_FACTOR, _RSS_ROOM = 1.5, 40 << 20
_DESCRIPTORS_ROOM, _PROCESSES_ROOM, _TASKS_ROOM = 25, 3, 25
# Beside what a program has when all is well: requests that wait while the API server is away.
_WAITING = 2
_TASKS = "netaware_loop_tasks"
_ANSWER_S, _LOOK_S = 10.0, 15.0


class Level(msgspec.Struct, frozen=True):
    """What one program takes, its children included; ``rss`` in bytes.

    ``tasks`` are those of its event loop, None where it does not say: it has no such loop, or is of an older version.
    """

    rss: int
    descriptors: int
    processes: int
    tasks: int | None = None


async def read_tasks(urls: Mapping[str, str], *, attempts: int = 1) -> dict[str, int]:
    """Tasks of each program's event loop, by program; without those that do not say.

    Args:
        urls: where they serve.
        attempts: so often each is asked that does not answer, a second apart.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:

        async def ask(name: str) -> tuple[str, int] | None:
            for attempt in range(attempts):
                await asyncio.sleep(attempt)
                try:
                    async with session.get(f"{urls[name]}/metrics?name[]={_TASKS}") as answer:
                        text = await answer.text() if answer.status == 200 else ""
                    found = Readings(text, [_TASKS]).of(_TASKS)
                except (aiohttp.ClientError, TimeoutError, ValueError):
                    continue
                if found:
                    return name, int(found[0][1])
            return None

        answers = await asyncio.gather(*map(ask, urls))
    return dict(answer for answer in answers if answer is not None)


def read_levels(lab: Lab, tasks: Mapping[str, int]) -> dict[str, Level]:
    """By program; ``tasks`` as `read_tasks` found them."""
    found = {}
    for program in lab.programs:
        try:
            family = program.family()
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
        argv = [*namespaces.entering(network.netns), "cat", "/proc/net/dev"]
        text = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout
        found[network.node.name] = sorted(line.split(":")[0].strip() for line in text.splitlines()[2:])
    return found


def orphans(lab: Lab) -> list[str]:
    """Processes of the lab that no program of it is the parent of."""
    family: set[int] = set()
    for program in lab.programs:
        try:
            family |= {process.pid for process in program.family()}
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


class Highest:
    """The highest levels of each program while a storm lasts.

    Programs are killed every few minutes, so beginning and end compare young processes: what one of them gathered in between shows
    here.

    Args:
        lab: whose programs.
        urls: where ours serve.
    """

    def __init__(self, lab: Lab, urls: Mapping[str, str]) -> None:
        self._lab, self._urls = lab, urls
        self.levels: dict[str, Level] = {}

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.take(await asyncio.to_thread(read_levels, self._lab, await read_tasks(self._urls)))

    def take(self, now: Mapping[str, Level]) -> None:
        """One look."""
        for name, new in now.items():
            old = self.levels.get(name, new)
            tasks = [count for count in (old.tasks, new.tasks) if count is not None]
            self.levels[name] = Level(
                max(old.rss, new.rss),
                max(old.descriptors, new.descriptors),
                max(old.processes, new.processes),
                max(tasks, default=None),
            )

    def violations(self, before: Mapping[str, Level]) -> list[str]:
        """Programs of ours that had more at any time than room is for. Of two controllers either may have led before."""
        found = []
        for name in self._urls.keys() & self.levels.keys() & before.keys():
            kind = [level for other, level in before.items() if other.partition("-")[0] == name.partition("-")[0]]
            tasks = [level.tasks for level in kind if level.tasks is not None]
            most = Level(
                max(level.rss for level in kind),
                _WAITING * max(level.descriptors for level in kind),
                max(level.processes for level in kind),
                _WAITING * max(tasks) if tasks else None,
            )
            found += [f"at its highest, {text}" for text in risen({name: most}, {name: self.levels[name]})]
        return sorted(found)


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
