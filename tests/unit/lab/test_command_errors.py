"""Errors of the lab's commands name the option, the field or the program, with its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubekit.errors import ConfigError
from lab.__main__ import main
from lab.errors import BootError
from lab.paths import lab_paths
from lab.programs import run_command


@pytest.mark.parametrize("name", ["", "Lab", "../lab", "a" * 33, "-a", "a b"])
def test_an_invalid_lab_name_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        lab_paths(name)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--delay", "soon"], "--delay"),
        (["--delay", "1h"], "--delay"),
        (["--jitter", "3"], "--jitter"),
        (["--loss", "2"], "--loss"),
        ([], "--delay"),
    ],
)
def test_an_invalid_change_of_a_link_is_an_error_with_the_option(
    options: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wan", "set", "z1", "z2", *options]) == 2
    assert option in capsys.readouterr().err


def test_up_with_an_invalid_topology_prints_one_line_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    topology_file = tmp_path / "bad.yaml"
    topology_file.write_text("name: x\nregions: []\nfoo: 1\n")
    assert main(["up", "--topology", str(topology_file)]) == 2
    output = capsys.readouterr()
    assert (
        output.err
        == f"error: {topology_file}: foo: is not a field of this section (remove it, or check its spelling)\n"
    )
    assert output.out == ""
    assert list(tmp_path.iterdir()) == [topology_file], "nothing was started"


@pytest.mark.parametrize(
    ("script", "timeout_s", "message"),
    [("echo no such place; exit 3", 10, "no such place"), ("exec sleep 60", 0.1, "no end after 0 s")],
)
async def test_a_failed_command_is_an_error_with_its_output(script: str, timeout_s: float, message: str) -> None:
    with pytest.raises(BootError, match=f"greeting: {message}"):
        await run_command(["sh", "-c", script], "greeting", timeout_s)
