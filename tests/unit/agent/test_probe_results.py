"""When a sample is worth a write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from agent.probing.results_queue import is_equivalent
from agent.probing.secret import SecretSource
from netperf.sample import Measurement, Place, Sample

BASE = Sample(
    origin=Place("n1", "z1"),
    destination=Place("n2", "z2"),
    measurement=Measurement(prober="netperf", test="TCP_RR", p50_us=2000.0, p90_us=2500.0, p99_us=4000.0),
)


def with_(**changes: object) -> Sample:
    return msgspec.structs.replace(BASE, measurement=msgspec.structs.replace(BASE.measurement, **changes))


@pytest.mark.parametrize("changes", [{}, {"p50_us": 2050.0}, {"p99_us": 3900.0}, {"mean_us": 1.0}])
def test_noise_is_not_worth_a_write(changes: dict[str, object]) -> None:
    assert is_equivalent(with_(**changes), BASE)


@pytest.mark.parametrize(
    "changes", [{"p50_us": 2200.0}, {"p90_us": 2300.0}, {"p99_us": None}, {"loss_ratio": 0.05}, {"prober": "datagrams"}]
)
def test_a_change_that_a_reader_would_act_on_is(changes: dict[str, object]) -> None:
    assert not is_equivalent(with_(**changes), BASE)


def test_a_doubt_that_comes_or_goes_is_worth_a_write() -> None:
    assert not is_equivalent(msgspec.structs.replace(BASE, quality_flags=("throttled",)), BASE)


def test_small_latencies_may_move_by_their_clocks_noise() -> None:
    small = with_(p50_us=30.0, p90_us=40.0, p99_us=60.0)
    assert is_equivalent(with_(p50_us=55.0, p90_us=65.0, p99_us=120.0), small)


SECRET = b"0123456789abcdef"


@pytest.mark.looptime
@pytest.mark.asyncio
async def test_a_secret_that_cannot_be_used_never_turns_authentication_off(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    source = SecretSource(file)
    (tmp_path / "password").write_bytes(SECRET)  # the Secret is there, its key is another one
    (tmp_path / "..data").mkdir()
    reading = asyncio.create_task(source.read())
    await asyncio.sleep(600)
    assert not reading.done()
    assert "password" in source.problem
    (tmp_path / "password").unlink()
    assert await reading == b"", "no Secret at all is no mistake"
    file.write_bytes(b"short")
    reading = asyncio.create_task(source.read())
    await asyncio.sleep(600)
    assert not reading.done()
    assert "at least 16" in source.problem or "5 bytes" in source.problem
    file.write_bytes(SECRET)
    assert await reading == SECRET
    assert source.problem == ""
    changing = asyncio.create_task(source.wait_for_change(SECRET))
    for bad in (b"rotated", b""):
        file.write_bytes(bad)
        await asyncio.sleep(600)
        assert not changing.done()
        assert source.problem
    file.write_bytes(b"another 16 bytes")
    assert await changing == b"another 16 bytes"
    assert source.problem == ""
