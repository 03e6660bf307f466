"""The control socket of the emulated network, asked as a lab's commands ask it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lab.errors import WanError
from lab.topology import Link
from lab.wan.control import WanControl
from lab.wan.plan import Answer, WanLink, WanPlan, to_wan_link
from lab.wan.server import Control, listen


class Carrier:
    """Carries nothing, and knows what it was told."""

    def __init__(self) -> None:
        self.changed: list[WanLink] = []

    def change(self, link: WanLink) -> None:
        if link.link.rtt_us < 0:
            raise OSError("the kernel refuses")
        self.changed.append(link)

    def counters(self) -> Answer:
        return Answer(forwarded=3)

    def run(self, control: Control) -> None:
        while True:
            control.serve()


@pytest.fixture
def carrier() -> Carrier:
    return Carrier()


@pytest.fixture
def wan(carrier: Carrier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WanControl:
    monkeypatch.chdir(tmp_path)
    links = [to_wan_link("z2", "z1", Link(5000.0, jitter_us=20.0)), to_wan_link("z1", "z1", Link(100.0))]
    plan = WanPlan("wan0", 1, [], links)
    threading.Thread(
        target=carrier.run, args=[Control(listen(tmp_path / "wan.sock"), plan, carrier)], daemon=True
    ).start()
    return WanControl(tmp_path / "wan.sock")


def test_a_change_keeps_what_is_not_named_whichever_end_comes_first(wan: WanControl, carrier: Carrier) -> None:
    assert wan.change_link("z2", "z1", loss=0.5) == Link(5000.0, 20.0, 0.5)
    assert wan.links() == {("z1", "z2"): Link(5000.0, 20.0, 0.5), ("z1", "z1"): Link(100.0)}
    assert [link.directions for link in carrier.changed] == [{("z1", "z2"), ("z2", "z1")}]
    assert wan.counters().forwarded == 3


def test_no_more_jitter_is_set_than_a_topology_may_have(wan: WanControl) -> None:
    assert wan.change_link("z1", "z2", jitter_us=5000.0).jitter_us == 5000.0
    for changes in ({"jitter_us": 5000.1}, {"rtt_us": 4000.0}):
        with pytest.raises(WanError, match="more than the round trip itself"):
            wan.change_link("z1", "z2", **changes)
    assert wan.links()["z1", "z2"] == Link(5000.0, 5000.0)
    assert wan.change_link("z1", "z2", rtt_us=4000.0, jitter_us=100.0) == Link(4000.0, 100.0)


def test_a_refused_change_changes_nothing(wan: WanControl) -> None:
    with pytest.raises(WanError, match="no link between z1 and z9; the sites are z1, z2"):
        wan.change_link("z1", "z9", loss=1.0)
    with pytest.raises(WanError, match="the kernel refuses"):
        wan.set_link("z1", "z2", Link(-1.0))
    assert wan.links()["z1", "z2"] == Link(5000.0, 20.0)
