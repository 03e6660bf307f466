"""What a scale run reads off programs' own metrics, and what it calls a missed objective."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from kubekit.errors import UnreachableError
from kubekit.waiting import until
from netperf.plans import Peer, Probe
from netperf.results import encode_samples
from tests.scale import figures
from tests.scale.agents import Traffic, latency_us, sample_of
from tests.scale.metrics import Quantiles, Readings
from tests.scale.objects import settled_node
from tests.scale.participants import Participants
from tests.scale.populate import Sizes


def calls(verb: str, resource: str, scope: str, *, quick: int, slow: int) -> str:
    """A histogram of the API server: so many calls of up to 0.1 s, and so many of up to 2 s."""
    labels = f'resource="{resource}",scope="{scope}",subresource="",verb="{verb}"'
    buckets = {"0.1": quick, "1": quick, "2": quick + slow, "+Inf": quick + slow}
    name = "apiserver_request_sli_duration_seconds_bucket"
    return "".join(f'{name}{{{labels},le="{le}"}} {count}\n' for le, count in buckets.items())


def made_report(after_server: str) -> figures.ScaleReport:
    nothing = Readings("", ())
    before = figures.Moment(nothing, nothing, nothing, 1)
    after = figures.Moment(Readings(after_server, figures.SERVER), nothing, nothing, 1)
    levels = [figures.Levels(0.0, 100 << 20, 1.0), figures.Levels(90.0, 150 << 20, 10.0)]
    return figures.report(Sizes(), before, after, levels=levels, traffic=Traffic(), done={}, failures=())


def test_samples_are_read_by_name_with_their_labels_and_others_are_left_out() -> None:
    text = '# HELP x y\na_total{p="1",q="x,\\"y\\" {z}"} 3\na_total{p="2"} 1e2 1700000000\nb 7\nc_total 1\n'
    found = Readings(text, ("a_total", "b"))
    assert found.of("a_total") == [({"p": "1", "q": 'x,\\"y\\" {z}'}, 3.0), ({"p": "2"}, 100.0)]
    assert found.of("b") == [({}, 7.0)]
    assert found.of("c_total") == []
    later = Readings('a_total{p="2"} 140\na_total{p="3"} 5\n', ("a_total",))
    assert later.total("a_total", found) == 45


def test_quantiles_are_interpolated_as_prometheus_does() -> None:
    of_hundred = Quantiles({0.1: 50, 0.5: 90, 1.0: 100, float("inf"): 100})
    assert [of_hundred.at(share) for share in (0.5, 0.7, 0.99)] == pytest.approx([0.1, 0.3, 0.95])
    assert Quantiles({0.1: 1, float("inf"): 2}).at(0.99) == 0.1
    assert Quantiles({}).at(0.5) is None


def test_objectives_are_those_of_kubernetes_by_verb_and_scope() -> None:
    # 200 quick calls or 200 that take 2 s; lists of everything may take 30 s; a watch has no objective.
    found = made_report(
        calls("PATCH", "configmaps", "resource", quick=200, slow=0)
        + calls("POST", "pods", "resource", quick=0, slow=200)
        + calls("GET", "pods", "resource", quick=200, slow=0)
        + calls("LIST", "pods", "cluster", quick=0, slow=200)
        + calls("WATCH", "pods", "cluster", quick=0, slow=200)
    )
    told = {name: call.ok for name, call in found.calls.items()}
    assert told == {"PATCH": True, "POST": False, "GET (resource)": True, "LIST (cluster)": True}


def test_our_share_is_counted_by_the_flow_schemas_of_our_accounts() -> None:
    name = "apiserver_flowcontrol_dispatched_requests_total"
    counts = {"netaware-controller": 30, "exempt": 60, "netaware-agent": 10}
    found = made_report("".join(f'{name}{{flow_schema="{who}"}} {count}\n' for who, count in counts.items()))
    assert found.share_of_requests == {"netaware-controller": 0.3, "netaware-scheduler": 0.0, "netaware-agent": 0.1}
    assert (found.cores, found.rss_mib, found.lease_transitions) == (0.1, 150, 0)


async def test_what_fails_beside_the_measurement_is_told_and_what_lives_to_the_end_is_not() -> None:
    told: list[str] = []

    async def fail() -> None:
        raise UnreachableError("no answer [from 127.0.0.1]")

    async with AsyncExitStack() as stack:
        participants = Participants(stack, told.append)
        participants.start("kubelets", fail())
        participants.start("agents", asyncio.sleep(60))
        await until(lambda: participants.failures, "the failure", 5.0)
    assert participants.failures == ["kubelets: UnreachableError: no answer [from 127.0.0.1]"]
    assert told == [f"failed: {participants.failures[0]}"]


def test_a_simulated_sample_is_one_that_can_be_written_and_the_same_from_either_end() -> None:
    here, there = Peer("n1", "10.0.0.1", "zone-000", "r"), Peer("n2", "10.0.0.2", "zone-001", "r")
    sample = sample_of(
        Probe(origin=here, destination=there, slot=0, pair_index=1), 7, random.Random(1), 1.7e9, mean_us=900.0
    )
    assert sample.measurement.prober == "datagrams"
    assert len(encode_samples([sample])) == 1
    assert latency_us("zone-000", "zone-001") == latency_us("zone-001", "zone-000")


def test_a_restored_node_has_what_the_controller_manager_would_write_to_it() -> None:
    for nodes, ttl_s in ((20, "0"), (400, "15"), (10_000, "300"), (50_000, "300")):
        node = settled_node("n", zone=0, number=0, nodes=nodes)
        assert node["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"] == ttl_s
