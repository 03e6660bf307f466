"""Breaks and repairs a running lab: kills or freezes programs, cuts paths.

A program is killed by its record, and started again by the process that holds the lab, since only that one knows its command:
whoever wants it started puts its name into a folder, and the holder takes it out. Links that were cut are kept in a file, with what
they were.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
import psutil

from kubekit import logs
from lab.errors import BootError, LabError
from lab.paths import write_whole
from lab.pids import PidRecord, is_alive, read_records
from lab.programs import Program, Programs
from lab.realnode.node import NODE
from lab.reclaim import LabPlace
from lab.topology import Link
from lab.wan.control import WanControl

log = logs.get("lab.faults")

NAMES = {"controller": "controller", "extender": "extender", "scheduler": "kube-scheduler"}
"""What people say -> the program of a lab."""
# A node takes some seconds to start, and each of them is waited for.
LOOK_S, REPAIR_S = 0.25, 120.0
# What cannot run ends at once.
_SETTLE_S = 1.0


class Broken(msgspec.Struct, frozen=True):
    """What is broken now: programs that ended, programs that are frozen, and pairs of zones whose path is cut."""

    ended: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    cut: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ended or self.frozen or self.cut)


def offs(broken: Broken) -> list[str]:
    """Real nodes whose first process ended, and with it everything that ran there."""
    return [name.removeprefix(f"{NODE}-") for name in broken.ended if name.startswith(f"{NODE}-")]


class _Cut(msgspec.Struct, frozen=True):
    zones: tuple[str, str]
    was: Link


class Faults:
    """Breaks and repairs one lab that runs.

    Args:
        place: the lab's files.
    """

    def __init__(self, place: LabPlace) -> None:
        self._place = place
        self._wan = WanControl(place.wan_socket)

    @property
    def now(self) -> Broken:
        """What is broken."""
        records = self._records
        return Broken(
            ended=tuple(r.name for r in records if not is_alive(r)),
            frozen=tuple(r.name for r in records if is_alive(r) and _is_frozen(r)),
            cut=tuple(cut.zones for cut in self._cuts()),
        )

    @property
    def _records(self) -> list[PidRecord]:
        return read_records(self._place.pids)

    def strike(self, names: Iterable[str], *, freeze: bool) -> tuple[str, ...]:
        """Kill programs, or freeze them, and wait until they are; their names.

        Raises:
            LabError: there is no such program, as in labs whose nodes have kubelets, where ours run in pods; or one is not
                broken in time.
        """
        wanted = tuple(names)
        records = self._known(wanted)
        for name in wanted:
            if is_alive(records[name]):
                # With what it started: a netserver without its agent would go on answering.
                os.killpg(records[name].pid, signal.SIGSTOP if freeze else signal.SIGKILL)
        # A signal is taken when its process runs next, which on a busy machine may be after whoever sent it looked.
        deadline = time.monotonic() + REPAIR_S
        while running := [n for n in wanted if is_alive(records[n]) and not (freeze and _is_frozen(records[n]))]:
            if time.monotonic() > deadline:
                msg = f"{', '.join(running)} got a signal {REPAIR_S:.0f} s ago and still runs"
                raise LabError(msg)
            time.sleep(0.01)
        return wanted

    def _known(self, names: Iterable[str]) -> dict[str, PidRecord]:
        records = {record.name: record for record in self._records}
        for name in names:
            if name not in records:
                known = ", ".join(sorted(records))
                msg = f"this lab has no program {name}; it has {known}. On real nodes ours run in pods: use kubectl"
                raise LabError(msg)
        return records

    def cut(self, one: str, other: str) -> tuple[str, str]:
        """Lose every packet between two zones; the pair.

        Raises:
            WanError: there is no such pair.
        """
        cuts = [cut for cut in self._cuts() if set(cut.zones) != {one, other}]
        if len(cuts) == len(self._cuts()):
            known = self._wan.links()
            pair = (one, other) if (one, other) in known else (other, one)
            self._wan.change_link(*pair, loss=1.0)
            self._keep([*cuts, _Cut(pair, known[pair])])
        return one, other

    def repair(self, names: Iterable[str] | None = None, pairs: Iterable[tuple[str, str]] | None = None) -> Broken:
        """Undo it: all that is broken, or what is named; what was tried, of which `now` may still name some.

        Raises:
            LabError: there is no such program, or the lab does not answer in time.
        """
        broken = self.now
        wanted = set(names) if names is not None else {*broken.ended, *broken.frozen} if pairs is None else set[str]()
        records = self._known(wanted)
        frozen = tuple(name for name in broken.frozen if name in wanted)
        for name in frozen:
            os.killpg(records[name].pid, signal.SIGCONT)
        ended = tuple(name for name in broken.ended if name in wanted)
        self._start(ended)
        chosen = [set(pair) for pair in pairs] if pairs is not None else None
        cut = tuple(zones for zones in broken.cut if (set(zones) in chosen if chosen is not None else names is None))
        left = []
        for each in self._cuts():
            if each.zones in cut:
                self._wan.set_link(*each.zones, each.was)
            else:
                left.append(each)
        self._keep(left)
        return Broken(ended, frozen, cut)

    def _start(self, names: Iterable[str]) -> None:
        asked = [self._place.state_dir / "start" / name for name in names]
        for path in asked:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        deadline = time.monotonic() + REPAIR_S
        while waiting := [path.name for path in asked if path.exists()]:
            if time.monotonic() > deadline:
                msg = f"the lab does not start {', '.join(waiting)}; its log is {self._place.supervisor_log}"
                raise LabError(msg)
            time.sleep(0.05)
        if asked:
            time.sleep(_SETTLE_S)

    def _cuts(self) -> list[_Cut]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[_Cut])
        except FileNotFoundError:
            return []

    def _keep(self, cuts: list[_Cut]) -> None:
        write_whole(self._file, msgspec.json.encode(cuts))

    @property
    def _file(self) -> Path:
        return self._place.state_dir / "cuts.json"


def _is_frozen(record: PidRecord) -> bool:
    try:
        return psutil.Process(record.pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


async def tend(place: LabPlace, programs: Programs, start_again: Callable[[Program], Awaitable[object]]) -> None:
    """Keep a lab up whatever ends in it: say so once, and start again what `Faults.repair` asks for. Returns never.

    Args:
        place: the lab's files.
        programs: of the lab.
        start_again: starts one of them that ended, and what must be started with it.
    """
    said: set[str] = set()
    folder = place.state_dir / "start"
    while True:
        for program in programs:
            if program.failed and program.name not in said:
                said.add(program.name)
                log.warning("a program ended", name=program.name, code=program.poll(), log=program.log)
        for request in sorted(folder.glob("*")) if folder.exists() else ():
            # One that runs was started with another.
            for program in [p for p in programs if p.name == request.name and p.poll() is not None]:
                try:
                    await start_again(program)
                except BootError as error:
                    log.warning("a program cannot be started again", name=program.name, error=error)
                else:
                    said.discard(program.name)
                    log.info("started again", name=program.name)
            request.unlink()
        await asyncio.sleep(LOOK_S)
