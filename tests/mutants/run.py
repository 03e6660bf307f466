"""Mutation testing of the scheduler's rules: does a mistake in them fail a test?

`make mutants`, or `make mutants ARGS="release --jobs 1"`. Each mutant runs in a fork of a process that has the libraries
loaded already, with the tests of its module, quick ones first, until one fails. Exit code 1 when fewer than `LEAST_KILLED` are killed, or when one
survives that `survivors.toml` does not explain.
"""

from __future__ import annotations

import argparse
import gc
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests/unit/controller"
SURVIVORS = Path(__file__).with_name("survivors.toml")
LEAST_KILLED = 0.9
SLOWEST_S = 60.0
"""A mutant that takes longer hangs, which a test would have shown."""
TARGETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "rules": ("controller.scheduler.rules", ("test_scheduler_rules.py",)),
    "planner": ("controller.scheduler.planner", ("test_scheduler_planner.py",)),
    "release": ("controller.scheduler.release", ("test_scheduler_release.py", "test_scheduler_waiting.py")),
    "affinity": ("controller.scheduler.affinity", ("test_scheduler_affinity.py", "test_scheduler_unschedulable.py")),
}
LIBRARIES = (
    "hypothesis",
    "msgspec",
    "numpy",
    "prometheus_client",
    "pytest",
    "pytest_asyncio",
    "aiohttp",
    "ortools.sat.python.cp_model",
)
NO_VERDICT = (3, 4, 5)
"""Exit codes of pytest that say nothing of the mutant: internal error, wrong usage, no tests."""
Outcome = Literal["killed", "hung", "survived"]


class Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from another text than its file's."""

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Of the one module."""
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._module else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the text."""
        exec(compile(self._source, self._module, "exec"), module.__dict__)


class QuickFirst:
    """Orders tests by how long they took without a mutant; without any knowledge, writes that down."""

    def __init__(self, took: dict[str, float]) -> None:
        self.took, self.learns = took, not took

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.took.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.learns:
            self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration


def run_tests(files: Sequence[str], took: dict[str, float]) -> int:
    """pytest's exit code."""
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-n", "0"]
    # Loaded before, so that each mutant does not have to: their own assertions stay as they are.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *(str(TESTS / name) for name in files)], plugins=[QuickFirst(took)]))


def in_child(work: Any) -> int:
    """Fork, and do it there with nothing printed; the process's id."""
    gc.freeze()
    pid = os.fork()
    if pid:
        return pid
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    code = 3
    try:
        code = work()
    finally:
        sys.stdout.flush()
        os._exit(code)


def baseline(files: Sequence[str]) -> dict[str, float]:
    """How long each test takes; a child writes it down, since this process must not load the modules.

    Raises:
        SystemExit: the tests fail as they are.
    """
    reader, writer = os.pipe()

    def work() -> int:
        took: dict[str, float] = {}
        code = run_tests(files, took)
        os.write(writer, json.dumps({name: round(seconds, 2) for name, seconds in took.items()}).encode())
        return code

    pid = in_child(work)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit(f"{', '.join(files)} fail without any mutant")
    return dict(json.loads(text))


def judge(module: str, mutants: Sequence[Mutant], files: Sequence[str], jobs: int) -> list[Outcome]:
    """What became of each mutant."""
    took = baseline(files)
    slowest_s = SLOWEST_S + 4 * sum(took.values())
    found: list[Outcome] = ["survived"] * len(mutants)
    running: dict[int, tuple[int, float]] = {}
    waiting = list(enumerate(mutants))[::-1]
    while waiting or running:
        while waiting and len(running) < jobs:
            number, mutant = waiting.pop()

            def work(source: str = mutant.source) -> int:
                sys.meta_path.insert(0, Instead(module, source))
                return run_tests(files, took)

            running[in_child(work)] = number, time.monotonic() + slowest_s
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            for late in [p for p, (_, ends) in running.items() if time.monotonic() > ends]:
                found[running[late][0]] = "hung"
                os.kill(late, signal.SIGKILL)
            time.sleep(0.02)
            continue
        number, _ = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if found[number] != "hung" and code:
            found[number] = "killed"
        if code in NO_VERDICT:
            raise SystemExit(f"pytest ended with {code} on mutant {number} of {module}")
        if found[number] == "survived":
            print(f"  {number + 1} of {len(mutants)} survives: {mutants[number].name}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Entry point of ``make mutants``."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*TARGETS, []], help="modules; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--operator", help="only mutants of this operator")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth mutant")
    args = parser.parse_args()
    for library in LIBRARIES:
        importlib.import_module(library)
    explained: dict[str, dict[str, str]] = tomllib.loads(SURVIVORS.read_text()) if SURVIVORS.exists() else {}
    all_outcomes: Counter[Outcome] = Counter()
    unexplained = 0
    for target in args.only or TARGETS:
        module, files = TARGETS[target]
        mutants = list(mutants_of((ROOT / f"{module.replace('.', '/')}.py").read_text()))
        mutants = [m for m in mutants if args.operator in {None, m.operator}][:: args.every]
        outcomes = judge(module, mutants, files, args.jobs)
        counts = Counter(outcomes)
        all_outcomes += counts
        print(
            f"{target}: {len(mutants)} mutants, {share(counts):.1%} killed ({counts['hung']} of them hung)", flush=True
        )
        for mutant, outcome in zip(mutants, outcomes, strict=True):
            if outcome == "survived":
                why = explained.get(target, {}).get(mutant.name, "")
                unexplained += not why
                print(f"  survived: {mutant.name}{f'  ({why})' if why else ''}", flush=True)
    print(f"all: {all_outcomes.total()} mutants, {share(all_outcomes):.1%} killed; {unexplained} survivors unexplained")
    return int(share(all_outcomes) < LEAST_KILLED or bool(unexplained))


def share(counts: Counter[Outcome]) -> float:
    """Of mutants that a test failed on, or that hung."""
    return 1 - counts["survived"] / max(counts.total(), 1)


if __name__ == "__main__":
    raise SystemExit(main())
