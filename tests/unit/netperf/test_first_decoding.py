"""The first value of a type may be read by several threads at once: msgspec builds what it knows of a type when it is first decoded, and
a thread that meets it half built ends the process (docs/adr/0126).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.syntax import parsed

ROOT = Path(__file__).parents[3]
PRODUCT = ("kubekit", "netperf", "agent", "controller")
THREADS = """
import sys, threading
from netperf.latencies import LATENCY_ANNOTATION, decode_latencies
from netperf.plans import PLAN_KEY, decode_plan
from netperf.results import decode_results
from netperf.errors import PlanRefusedError

def refused(data):
    try:
        decode_plan(data)
    except PlanRefusedError:
        pass

reads = {
    "results": lambda: decode_results({"netaware.v1.a.b.0123456789ab": '{"origin":{"node":"a"}}'}, {}),
    "latencies": lambda: decode_latencies('{"zones":[],"us":[]}'),
    "plans": lambda: refused({PLAN_KEY: '{"zone":"a"}'}),
}
sys.setswitchinterval(1e-6)
start = threading.Barrier(8)

def read():
    for one in reads.values():
        start.wait()
        one()

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_read_the_first_values_of_a_type_at_once_end_no_process() -> None:
    for _ in range(2):
        command = [sys.executable, "-c", THREADS]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, f"ended with {ended.returncode}: {ended.stderr[-2000:]}"


def test_types_are_decoded_by_decoders_made_when_their_module_is_imported() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:100]}"
        for room in PRODUCT
        for path in sorted((ROOT / room).rglob("*.py"))
        for call in _decoding_in_functions(parsed(path))
    ]
    assert not found, "make a decoder beside the class, `_decode_x = msgspec.json.Decoder(X).decode`:\n" + "\n".join(
        found
    )


def _decoding_in_functions(tree: ast.Module) -> Iterator[ast.Call]:
    """``msgspec.json.decode(..., type=X)`` of a type that is written there; who is given the type answers for it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "msgspec.json.decode":
            for keyword in node.keywords:
                parameter = isinstance(keyword.value, ast.Name) and keyword.value.id.lstrip("_")[0].islower()
                if keyword.arg == "type" and not parameter:
                    yield node
