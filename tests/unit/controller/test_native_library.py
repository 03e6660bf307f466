"""The compiled search as a library: its struct, its errors, its deadlines, its use by several threads, and a search without memory."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from controller.cluster.services import Routing
from controller.scheduler.placement import native_library
from controller.scheduler.placement.native_search import FIELD_NAMES, NativeProblem
from controller.scheduler.placement.solve import solve
from tests.unit.controller.search_problems import make_hosts, make_problem

SEARCH_WITHOUT_MEMORY = """\
import resource
from controller.scheduler.placement.native_search import NativeProblem
from tests.unit.controller.search_problems import make_problem
problem = NativeProblem(make_problem([0] * 20_000, [1] * 2_000))  # Needs 160 MB for replicas by workload and host.
used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (32 << 20),) * 2)
problem.search(None, seed=1, steps=0, time_limit_s=1.0)
"""


def test_c_has_the_fields_of_the_problem_in_the_same_order() -> None:
    header = native_library.SOURCES.joinpath("problem.h").read_text()
    fields = header.partition("} Problem;")[0].rpartition("typedef struct {")[2]
    struct = re.sub(r"/\*.*?\*/", "", fields, flags=re.DOTALL)
    declared = [name for line in struct.split(";") for name in re.findall(r"\*?(\w+)(?=,|\s*$)", line.strip())]
    assert declared == list(FIELD_NAMES)


def test_an_array_of_wrong_length_is_refused() -> None:
    problem = make_problem([0, 1], [1, 1])
    with pytest.raises(ValueError, match="row_of has 1 entries"):
        NativeProblem(msgspec.structs.replace(problem, row_of=np.zeros(1, np.int64)))


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


def test_an_expired_deadline_still_gives_a_placement_within_capacity() -> None:
    problem = make_problem([0, 0, 1, 1], [20, 10], (0, 1, Routing.NODE))
    hosts = solve(problem, time_limit_s=0.0)
    assert (np.bincount(hosts[hosts >= 0], minlength=4) <= 9).all()
    assert len(hosts) == 30


def test_a_search_beyond_its_deadline_keeps_the_hinted_hosts() -> None:
    """Each replica is on another host than its peer; with time left, all would move to one host."""
    hints = make_hosts(0, 0, 0, 2, 2, 2)
    native_problem = NativeProblem(make_problem([0, 0, 1, 1], [3, 3], (0, 1, Routing.ANY)))
    assert native_problem.search(hints, seed=0, steps=0, time_limit_s=-1.0).host_of.tolist() == hints.tolist()
    assert len(set(native_problem.search(hints, seed=0, steps=0, time_limit_s=9.0).host_of.tolist())) == 1


def test_a_search_without_memory_ends_its_process_with_a_message() -> None:
    """The planning process then starts again, see `test_scheduler_worker`."""
    ended = subprocess.run([sys.executable, "-c", SEARCH_WITHOUT_MEMORY], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert ended.stderr == "netaware: no memory for the search of a plan\n"
