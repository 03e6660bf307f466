"""Equivalent samples, and the probing passphrase."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.probing.passphrase import PassphraseSource
from agent.probing.results_queue import is_equivalent
from netperf.sample import Measurement, NodeLocation, Sample


@pytest.mark.parametrize(
    ("before", "changes", "expected"),
    [
        ({}, {}, True),
        ({}, {"p50_us": 2050.0}, True),
        ({}, {"p99_us": 3900.0}, True),
        ({}, {"mean_us": 1.0}, True),
        # Small latencies may change by the clock's noise.
        ({"p50_us": 30.0, "p90_us": 40.0, "p99_us": 60.0}, {"p50_us": 55.0, "p90_us": 65.0, "p99_us": 120.0}, True),
        ({}, {"p50_us": 2200.0}, False),
        ({}, {"p90_us": 2300.0}, False),
        ({}, {"p99_us": None}, False),
        ({}, {"loss_ratio": 0.05}, False),
        ({}, {"prober": "datagrams"}, False),
        ({}, {"quality_flags": ("throttled",)}, False),
    ],
)
def test_samples_are_equivalent_up_to_noise(
    before: dict[str, object], changes: dict[str, object], expected: bool
) -> None:
    usual = {"prober": "netperf", "test": "TCP_RR", "p50_us": 2000.0, "p90_us": 2500.0, "p99_us": 4000.0, **before}

    def sample(quality_flags: tuple[str, ...] = (), **fields: object) -> Sample:
        measurement = Measurement(**(usual | fields))  # type: ignore[arg-type]
        locations = {"origin": NodeLocation("n1", "z1"), "destination": NodeLocation("n2", "z2")}
        return Sample(measurement=measurement, quality_flags=quality_flags, **locations)  # type: ignore[arg-type]

    assert is_equivalent(sample(**changes), sample()) == expected  # type: ignore[arg-type]


PASSPHRASE = b"0123456789abcdef"


@pytest.mark.looptime
@pytest.mark.asyncio
async def test_a_passphrase_that_cannot_be_used_never_turns_authentication_off(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    source = PassphraseSource(file)
    passphrases = source.watch()
    (tmp_path / "password").write_bytes(PASSPHRASE)  # the Secret is there, its key is another one
    (tmp_path / "..data").mkdir()
    reading = asyncio.ensure_future(anext(passphrases))
    await asyncio.sleep(600)
    assert not reading.done()
    assert "password" in source.problem
    (tmp_path / "password").unlink()
    assert await reading == b"", "a missing Secret is not a mistake"
    for current, unusable in ((PASSPHRASE, (b"short",)), (b"another 16 bytes", (b"rotated", b""))):
        reading = asyncio.ensure_future(anext(passphrases))
        for content in unusable:
            file.write_bytes(content)
            await asyncio.sleep(600)
            assert not reading.done()
            assert f"{len(content)} bytes" in source.problem or "blank" in source.problem
        file.write_bytes(current)
        assert await reading == current
        assert source.problem == ""
    file.unlink()
    reading = asyncio.ensure_future(anext(passphrases))
    await asyncio.sleep(600)
    assert (reading.done(), source.problem) == (False, "the passphrase is gone")
    reading.cancel()
