"""What a scale run reads off programs' own metrics, and what it calls a missed objective."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.probing.rounds import Outcome
from controller.prometheus import PrometheusError
from kubekit.errors import ConfigError, UnreachableError
from kubekit.waiting import until
from lab.commands import scale
from lab.scale import figures
from lab.scale.agents import Traffic, latency_us, sample_of
from lab.scale.exposition import Exposition, scraped
from lab.scale.figures import Levels, report
from lab.scale.kubelets import BoundPod, Task, task_of
from lab.scale.life import Audience
from lab.scale.objects import settled_node
from lab.scale.participants import Participants
from lab.scale.populate import Sizes
from lab.scale.readings import Quantiles, Readings
from netperf.plans import Peer, Probe, ProbeSettings, ZonePlan
from netperf.results import encode_samples


def calls(verb: str, resource: str, scope: str, *, quick: int, slow: int) -> str:
    """A histogram of the API server: so many calls of up to 0.1 s, and so many of up to 2 s."""
    labels = f'resource="{resource}",scope="{scope}",subresource="",verb="{verb}"'
    buckets = {"0.1": quick, "1": quick, "2": quick + slow, "+Inf": quick + slow}
    name = "apiserver_request_sli_duration_seconds_bucket"
    return "".join(f'{name}{{{labels},le="{le}"}} {count}\n' for le, count in buckets.items())


def readings(text: str) -> Readings:
    return Readings(text, (*figures.SERVER, *figures.ETCD, *figures.CONTROLLER))


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
    assert of_hundred.at(0.5) == pytest.approx(0.1)
    assert of_hundred.at(0.7) == pytest.approx(0.3)
    assert of_hundred.at(0.99) == pytest.approx(0.95)
    assert of_hundred.above(0.1) == 50
    assert Quantiles({0.1: 1, float("inf"): 2}).at(0.99) == 0.1
    assert Quantiles({}).at(0.5) is None


def made_report(after_server: str = "", failures: Sequence[str] = ()) -> figures.ScaleReport:
    nothing = {name: readings("") for name in ("server", "etcd", "controller", "extender")}
    levels = [Levels(0.0, {"controller": 100 << 20}, {"controller": 1.0}, 12), Levels(90.0, {"controller": 150 << 20}, {"controller": 10.0}, 15)]  # fmt: skip
    return report(
        Sizes(zones=2, nodes_per_zone=1, pods=2, groups=0, viewers=1, minutes=1.5),
        nothing,
        {**nothing, "server": readings(after_server)},
        seconds=90.0,
        levels=levels,
        longest={"delay": 0.2, "busy": 0.04},
        lease_transitions=0,
        leadership_losses=0,
        traffic=Traffic(),
        audience=Audience("http://127.0.0.1:1"),
        started_s=[3.0, 1.0, 2.0],
        scraped={"up": 4.0},
        done={},
        failures=failures,
    )


async def test_what_fails_beside_the_measurement_is_told_and_kept_with_the_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told: list[str] = []

    async def fail() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())

    async def refuse() -> None:
        raise UnreachableError("no answer [from 127.0.0.1]")

    async def end() -> None:
        pass

    async with AsyncExitStack() as stack:
        participants = Participants(stack, told.append)
        participants.start("kubelets", fail())
        participants.start("failure of a zone", end())
        participants.start("viewer", asyncio.sleep(60))
        await until(lambda: participants.failures, "the failure", 5.0)
    # Nor is what was alive until the end a failure.
    assert participants.failures == ["kubelets: UnreachableError: no answer [from 127.0.0.1]"]
    assert told == [f"failed: {participants.failures[0]}"]
    found = made_report(failures=participants.failures)
    assert (found.failures, found.connections) == (tuple(participants.failures), 15)
    scale._print(found, as_json=False)
    shown = capsys.readouterr().out
    assert "failed while it was measured: kubelets: UnreachableError: no answer [from 127.0.0.1]" in shown
    assert "not those of a whole cluster" in shown
    assert "start_up" in shown
    scale._print(made_report(), as_json=False)
    assert "failed" not in capsys.readouterr().out.replace("'failed'", "")


def test_objectives_are_those_of_kubernetes_by_scope_and_by_resource_and_verb() -> None:
    # 200 quick writes and 200 that take 2 s; lists of everything may take 30 s; a watch has no objective.
    found = made_report(
        calls("PATCH", "configmaps", "resource", quick=200, slow=0)
        + calls("POST", "pods", "resource", quick=0, slow=200)
        + calls("GET", "pods", "resource", quick=200, slow=0)
        + calls("LIST", "pods", "cluster", quick=0, slow=200)
        + calls("WATCH", "pods", "cluster", quick=0, slow=200)
        + calls("DELETE", "leases", "resource", quick=0, slow=5)
    )
    assert found.worst_calls.keys() == {"POST pods (resource)"}
    assert {name: call.ok for name, call in found.calls.items()} == {
        "PATCH": True,
        "POST": False,
        "GET (resource)": True,
        "LIST (cluster)": True,
        "DELETE": False,
    }


def test_our_share_is_counted_by_the_flow_schemas_of_our_accounts() -> None:
    name = "apiserver_flowcontrol_dispatched_requests_total"
    text = f'{name}{{flow_schema="netaware-controller",priority_level="x"}} 30\n{name}{{flow_schema="exempt"}} 60\n{name}{{flow_schema="netaware-agent"}} 10\n'
    found = made_report(text)
    assert found.share_of_requests == {"netaware-controller": 0.3, "netaware-scheduler": 0.0, "netaware-agent": 0.1}
    assert found.cores == {"controller": 0.1}
    assert found.connections == 15
    assert found.rss_mib == [100, 150, 150]
    assert found.programs_mib == {"controller": 150}
    assert (found.start_up.count, found.start_up.p50, found.start_up.p99) == (3, 2.0, 3.0)


def test_a_simulated_sample_is_one_that_can_be_written_and_the_same_from_either_end() -> None:
    here, there = Peer("n1", "10.0.0.1", "zone-000", "r"), Peer("n2", "10.0.0.2", "zone-001", "r")
    sample = sample_of(Probe(origin=here, destination=there, slot=0, rank=1), 7, random.Random(1), 1.7e9, mean_us=900.0)
    assert sample.measurement.prober == "datagrams"
    assert len(encode_samples([sample])) == 1
    assert latency_us("zone-000", "zone-001") == latency_us("zone-001", "zone-000")


@pytest.mark.parametrize(
    ("argument", "value"), [("--zones", "1"), ("--pods", "-1"), ("--minutes", "0"), ("--viewers", "1000")]
)
def test_a_size_out_of_range_is_named(argument: str, value: str) -> None:
    parser = argparse.ArgumentParser()
    scale.add_parser(parser.add_subparsers())
    assert scale.read_sizes(parser.parse_args(["scale"])) == Sizes()
    with pytest.raises(ConfigError, match=argument):
        scale.read_sizes(parser.parse_args(["scale", argument, value]))


def bound_pod(**fields: Any) -> bytes:
    """A pod on a node, as a watch brings it."""
    meta = {"namespace": "shop", "name": "web-1", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:10Z"}
    body = {
        "metadata": {**meta, **fields.get("metadata", {})},
        "spec": {"nodeName": fields.get("node", "n1"), "containers": [{"name": "main", "image": "web:1"}]},
        "status": {"phase": fields.get("phase", "Pending")},
    }
    return json.dumps(body).encode()


def task(raw: bytes) -> Task | None:
    return task_of(msgspec.json.decode(raw, type=BoundPod))


def test_a_played_kubelet_starts_what_is_bound_and_ends_what_is_to_go_and_leaves_the_rest() -> None:
    found = task(bound_pod())
    assert found is not None
    assert (found.node, found.containers, found.ends) == ("n1", (("main", "web:1"),), False)
    ended = task(bound_pod(phase="Running", metadata={"deletionTimestamp": "2026-01-01T00:01:00Z"}))
    assert ended is not None
    assert ended.ends
    for idle in (bound_pod(phase="Running"), bound_pod(phase="Succeeded"), bound_pod(node="")):
        assert task(idle) is None


def test_a_restored_node_has_what_the_controller_manager_would_write_to_it() -> None:
    for nodes, ttl_s in ((20, "0"), (400, "15"), (10_000, "300"), (50_000, "300")):
        node = settled_node("n", zone=0, number=0, nodes=nodes)
        assert node["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"] == ttl_s
        assert node["metadata"]["labels"]["beta.kubernetes.io/arch"] == "amd64"


def test_a_simulated_agent_shows_what_a_real_one_would_of_the_pairs_in_its_plan() -> None:
    here, there = Peer("n1", "10.0.0.1", "zone-000", "r"), Peer("n2", "10.0.0.2", "zone-001", "r")
    probe = Probe(origin=here, destination=there, slot=0, rank=0)
    shown = Exposition({"zone-000": ["n1", "n3"]})
    plan = ZonePlan(
        zone="zone-000", epoch=1, interval_s=60, slots=1, results="r", settings=ProbeSettings(), probes=(probe,)
    )
    shown.follow("zone-000", plan)
    sample = sample_of(probe, 7, random.Random(1), 1.7e9, mean_us=900.0)
    outcome = Outcome(origin=here.place, destination=there.place, test="TCP_RR", result="ok", sample=sample)
    shown.take(outcome)
    text = shown.text("n1")
    assert text is not None
    assert b'netaware_probe_latency_seconds{destination_region="r",destination_zone="zone-001"' in text
    assert b"zone-001" not in (shown.text("n3") or b"zone-001")
    assert shown.text("n2") is None


async def test_a_question_that_prometheus_refuses_is_no_figure() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"status": "error", "errorType": "execution", "error": "too many samples"}, status=422)

    app = web.Application()
    app.router.add_route("*", "/api/v1/query", refuse)
    async with TestServer(app) as server:
        with pytest.raises(PrometheusError, match="too many samples"):
            await scraped(str(server.make_url("")))
