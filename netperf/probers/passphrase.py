"""Derives hourly passphrases from the probing passphrase.

netperf takes its passphrase as an argument, which anyone who can list processes can read. So each epoch of one hour has its own passphrase,
which reveals neither the next one nor the probing passphrase.
"""

from __future__ import annotations

import hashlib
import hmac
import math

EPOCH_S = 3600.0
"""Lifetime of an hourly passphrase, seconds."""
_PURPOSE = b"netaware netperf passphrase\0"


def epoch_at(wall_s: float) -> int:
    """Number of the epoch at a wall-clock time, seconds since 1970."""
    return math.floor(wall_s / EPOCH_S)


def derive_hourly_passphrase(passphrase: bytes, epoch: int) -> str:
    """HMAC-SHA256 of the epoch under the probing passphrase (RFC 2104), as 32 hexadecimal digits."""
    return hmac.new(passphrase, _PURPOSE + str(epoch).encode(), hashlib.sha256).hexdigest()[:32]


def epochs_to_try(wall_s: float) -> tuple[int, int]:
    """The current epoch, and the nearer one of its neighbours, for peers whose clocks differ."""
    epoch = epoch_at(wall_s)
    return epoch, epoch - 1 if wall_s / EPOCH_S - epoch < 0.5 else epoch + 1
