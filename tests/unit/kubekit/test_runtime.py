"""A program ends with exit code 0 after a signal, 1 after a failure, and 2 after a configuration error."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from kubekit.errors import ConfigError, UnreachableError
from kubekit.runtime import run_program, supervise


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_program_with_exit_code_0(
    stop_signal: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), stop_signal)
        await supervise({"work": wait_forever()})

    assert run_program(main) == 0
    assert not [record for record in caplog.records if record.exc_info]


def test_a_configuration_error_gives_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        await supervise({"a": wait_forever(), "b": fail(ConfigError("--reserve", "is 110%", "write 0% to 100%"))})

    assert run_program(main) == 2
    assert capsys.readouterr().err == "error: --reserve: is 110% (write 0% to 100%)\n"


def test_an_unreachable_cluster_or_a_defect_gives_exit_code_1() -> None:
    assert run_program(lambda: fail(UnreachableError("gone"))) == 1
    assert run_program(lambda: fail(ZeroDivisionError("defect"))) == 1


def test_a_task_that_ends_by_itself_ends_the_program() -> None:
    async def main() -> None:
        await supervise({"a": wait_forever(), "b": asyncio.sleep(0)})

    assert run_program(main) == 1
