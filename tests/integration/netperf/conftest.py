"""Probe settings for the tests of this folder."""

from __future__ import annotations

import pytest

from netperf.plans import ProbeSettings
from tests.integration.netperf.peers import free_port


@pytest.fixture
def probe_settings() -> ProbeSettings:
    """Free ports, and the shortest duration that netperf supports."""
    return ProbeSettings(duration_s=1.0, control_port=free_port(), data_port=free_port(), datagram_port=free_port())
