"""Programs end as scripts and the kubelet expect: by signal with 0, by defect with 1, by misuse with 2."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from kubekit.errors import ConfigError, UnreachableError
from kubekit.runtime import run_program, supervise


async def forever() -> None:
    await asyncio.Event().wait()


async def fails(error: Exception) -> None:
    raise error


def run(main_body: str) -> subprocess.Popen[str]:
    code = f"""
import asyncio, sys
from kubekit import logs
from kubekit.errors import ConfigError
from kubekit.runtime import run_program, supervise
logs.set_up()
async def forever():
    print("up", flush=True)
    await asyncio.Event().wait()
async def main():
    {main_body}
sys.exit(run_program(main))
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_stop(number: signal.Signals) -> None:
    process = run("await supervise({'work': forever()})")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_a_configuration_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        await supervise({"a": forever(), "b": fails(ConfigError("--reserve", "is 110%", "write 0% to 100%"))})

    assert run_program(main) == 2
    assert capsys.readouterr().err == "error: --reserve: is 110% (write 0% to 100%)\n"


def test_a_lost_cluster_or_a_defect_is_exit_code_1() -> None:
    assert run_program(lambda: fails(UnreachableError("gone"))) == 1
    assert run_program(lambda: fails(ZeroDivisionError("defect"))) == 1


def test_a_task_that_ends_by_itself_ends_the_program() -> None:
    async def main() -> None:
        await supervise({"a": forever(), "b": asyncio.sleep(0)})

    assert run_program(main) == 1
