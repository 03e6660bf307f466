"""The compiled search as a library: its struct, its errors, its deadline, and its use by several threads."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.cluster.services import Routing
from controller.scheduler.placement import native_library
from controller.scheduler.placement.native_search import FIELD_NAMES, NativeProblem
from controller.scheduler.placement.solve import solve
from tests.unit.controller.search_problems import make_hosts, make_problem


def test_c_has_the_fields_of_the_problem_in_the_same_order() -> None:
    header = native_library.SOURCES.joinpath("problem.h").read_text()
    fields = header.partition("} Problem;")[0].rpartition("typedef struct {")[2]
    struct = re.sub(r"/\*.*?\*/", "", fields, flags=re.DOTALL)
    declared = [name for line in struct.split(";") for name in re.findall(r"\*?(\w+)(?=,|\s*$)", line.strip())]
    assert declared == list(FIELD_NAMES)


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler", "install gcc, or"),
        ("false", "did not compile, set CC"),
        ("sh -c 'sleep 60'", r"did not compile within 0\.1 s: set CC"),
    ],
    ids=["no compiler", "a compiler that fails", "a compiler that hangs"],
)
def test_compile_errors_name_the_fix(
    compiler: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native_library, "COMPILE_TIMEOUT_S", 0.1 if "sleep" in compiler else 60.0)
    with pytest.raises(OSError, match=message):
        native_library.compile_library(tmp_path / "lib.so")
    assert not list(tmp_path.iterdir())


def test_one_seed_gives_one_placement_alone_and_in_parallel_threads() -> None:
    calls = [(a, b, Routing.ZONE) for b in range(12) for a in range(b) if (a * b) % 3 == 1]
    problem = make_problem([host % 4 for host in range(16)], [3] * 12, *calls, free_cpu=3)
    hosts_alone = solve(problem, seed=3)
    with ThreadPoolExecutor(4) as pool:
        hosts_by_thread = list(pool.map(lambda _: solve(problem, seed=3), range(4)))
    assert all((hosts == hosts_alone).all() for hosts in hosts_by_thread)


def test_a_search_beyond_its_deadline_keeps_the_hinted_hosts() -> None:
    """Each replica is on another host than its peer; with time left, all would move to one host."""
    hints = make_hosts(0, 0, 0, 2, 2, 2)
    native_problem = NativeProblem(make_problem([0, 0, 1, 1], [3, 3], (0, 1, Routing.ANY)))
    assert native_problem.search(hints, seed=0, steps=0, time_limit_s=-1.0).host_of.tolist() == hints.tolist()
    assert len(set(native_problem.search(hints, seed=0, steps=0, time_limit_s=9.0).host_of.tolist())) == 1
