"""The probing passphrase: an unusable one never turns authentication off; in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.probing.passphrase import PassphraseSource

PASSPHRASE = b"0123456789abcdef"


@pytest.mark.looptime
async def test_a_passphrase_that_cannot_be_used_never_turns_authentication_off(tmp_path: Path) -> None:
    passphrase_file, misnamed_file = tmp_path / "passphrase", tmp_path / "password"
    source = PassphraseSource(passphrase_file)
    passphrases = source.watch()
    misnamed_file.write_bytes(PASSPHRASE)  # the Secret is there, its key is another one
    (tmp_path / "..data").mkdir()  # as the kubelet mounts a Secret
    reading = asyncio.ensure_future(anext(passphrases))
    await asyncio.sleep(600)
    assert not reading.done()
    assert "password" in source.problem

    misnamed_file.unlink()
    assert await reading == b"", "a missing Secret is not a mistake"
    for current, unusable in ((PASSPHRASE, (b"short",)), (b"another 16 bytes", (b"rotated", b""))):
        reading = asyncio.ensure_future(anext(passphrases))
        for content in unusable:
            passphrase_file.write_bytes(content)
            await asyncio.sleep(600)
            assert not reading.done()
            assert f"{len(content)} bytes" in source.problem or "blank" in source.problem
        passphrase_file.write_bytes(current)
        assert await reading == current
        assert source.problem == ""
    passphrase_file.unlink()
    reading = asyncio.ensure_future(anext(passphrases))
    await asyncio.sleep(600)
    assert not reading.done()
    assert source.problem == "the passphrase is gone"
    reading.cancel()
