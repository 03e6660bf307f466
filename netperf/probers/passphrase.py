"""Derives hourly passphrases from the probing secret.

netperf takes its passphrase as an argument, so anyone who can list processes can read it. So each epoch of one hour has its own passphrase,
which does not reveal the next one.
"""

from __future__ import annotations

import hashlib
import hmac
import math

from kubekit.errors import ConfigError

EPOCH_S = 3600.0
"""Lifetime of a passphrase."""
MIN_SECRET_BYTES = 16
_PURPOSE = b"netaware netperf passphrase\0"


def check_secret(secret: bytes) -> bytes:
    """Check the length of the probing secret; returns the secret.

    Raises:
        ConfigError: the secret is shorter than `MIN_SECRET_BYTES`.
    """
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError("probing secret", f"has {len(secret)} bytes", f"use at least {MIN_SECRET_BYTES} random bytes")
    return secret


def epoch_at(wall_s: float) -> int:
    """Number of the epoch at a wall-clock time, seconds since 1970."""
    return math.floor(wall_s / EPOCH_S)


def derive_passphrase(secret: bytes, epoch: int) -> str:
    """HMAC-SHA256 of the epoch under the secret (RFC 2104), as 32 hexadecimal digits."""
    return hmac.new(secret, _PURPOSE + str(epoch).encode(), hashlib.sha256).hexdigest()[:32]


def epochs_to_try(wall_s: float) -> tuple[int, int]:
    """The current epoch, and the nearer one of its neighbours, for peers whose clocks differ."""
    epoch = epoch_at(wall_s)
    return epoch, epoch - 1 if wall_s / EPOCH_S - epoch < 0.5 else epoch + 1
