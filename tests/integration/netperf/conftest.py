"""Settings that every probe test starts from."""

from __future__ import annotations

import pytest

from netperf.plans import ProbeSettings
from tests.integration.netperf.peers import free_port


@pytest.fixture
def settings() -> ProbeSettings:
    """Ports that are free now, and the shortest run that netperf knows."""
    return ProbeSettings(duration_s=1.0, port=free_port(), data_port=free_port(), datagram_port=free_port())
