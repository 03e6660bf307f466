"""With its token, an agent writes results of its own probes, neither those of other nodes nor more than fits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import pytest
import pytest_asyncio

from kubekit.client import MERGE_PATCH, Client
from kubekit.errors import ApiError
from netperf.measurement import PERCENTILES, Measurement, Percentile
from netperf.results import encode_samples, sample_key
from netperf.sample import NodeLocation, Sample
from tests.integration.manifests.attacks import Json, dry_run
from tests.integration.manifests.named_attacks import RESULTS

MAX_PAIRS_OF_SHARD = 990
MAX_STORED_BYTES = 500_000
LONG_NAMES = [f"{i:05d}{'x' * 180}" for i in range(3000)]


@pytest_asyncio.fixture
async def agent(stolen: dict[str, Client], admin: Client) -> Client:
    """A client with the token of the agent on node-a; the results ConfigMap is empty."""
    await patch_results(admin, {"data": None})
    return stolen["agent"]


def encode(
    origin: str, *destinations: str, upstream_percentiles: tuple[Percentile, ...] = ("p90",)
) -> dict[str, str | None]:
    """Results of probes from a node in zone-a to nodes in zone-b, in our format and partly in upstream's."""
    measurement = Measurement(prober="netperf", test="TCP_RR", p50_us=500.0, p90_us=700.0, p99_us=900.0)
    location = NodeLocation(origin, "zone-a", "r")
    samples = [
        Sample(origin=location, destination=NodeLocation(name, "zone-b", "r"), measurement=measurement)
        for name in destinations
    ]
    return encode_samples(samples, upstream_percentiles)


async def patch_results(client: Client, patch: Json) -> dict[str, str]:
    """Patch the results ConfigMap; returns its data afterwards."""
    response = await client.request("PATCH", RESULTS, body=patch, content_type=MERGE_PATCH)
    return msgspec.json.decode(response).get("data") or {}


async def write_results(client: Client, data: Mapping[str, str | None]) -> dict[str, str]:
    return await patch_results(client, {"data": data})


def make_managed_fields(fields: Json, version: str = "v1") -> Json:
    """A patch with managedFields of another writer."""
    entry = {"apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields, "manager": "x", "operation": "Update"}
    return {"metadata": {"managedFields": [entry]}}


FILLING_PATCHES = {
    "names": {"data": {f"netaware.v1.node-a_{name}": "" for name in LONG_NAMES}},
    "upstream names": {
        "data": {f"netperf.p90.latency.milliseconds.origin.node-a.destination.{name}": "1" for name in LONG_NAMES}
    },
    # Four bytes each, and one character to a policy that does not count bytes.
    "wide characters": {"data": {f"netaware.v1.node-a_{i}": "\U0001f600" * 2000 for i in range(120)}},
    "managed keys": make_managed_fields({"f:data": {f"f:{name}": {} for name in LONG_NAMES}}),
    "managed subkeys": make_managed_fields({"f:data": {"f:x": {f"f:{name}": {} for name in LONG_NAMES}}}),
    "managed fields": make_managed_fields({f"f:{name}": {} for name in LONG_NAMES}),
    "managed version": make_managed_fields({"f:data": {"f:x": {}}}, version="x" * 600_000),
}


async def test_an_agent_writes_replaces_and_removes_the_results_of_its_own_probes(agent: Client) -> None:
    old_results = encode("node-a", "node-b", upstream_percentiles=PERCENTILES)
    new_results = encode("node-a", "node-b", "node-c", upstream_percentiles=())
    await write_results(agent, old_results)
    assert set(await write_results(agent, new_results)) == set(old_results) | set(new_results)
    assert set(await write_results(agent, dict.fromkeys(old_results))) == set(new_results) - set(old_results)
    assert await write_results(agent, dict.fromkeys(new_results)) == {}


@pytest.mark.parametrize("value", ["{half", '{"origin":{"node":"node-b","zone":"zone-b"}}', ""])
async def test_an_agent_replaces_a_foreign_value_of_its_own_key(agent: Client, admin: Client, value: str) -> None:
    results = encode("node-a", "node-b")
    await write_results(admin, dict.fromkeys(results, value))
    assert await write_results(agent, results) == results
    assert await write_results(agent, dict.fromkeys(results)) == {}


async def test_an_agent_writes_into_a_full_shard(agent: Client, admin: Client) -> None:
    """The policy's evaluation stays within the API server's cost limit."""
    destinations = (f"node-{i}" for i in range(MAX_PAIRS_OF_SHARD))
    stored_results = await write_results(admin, encode("node-b", *destinations, upstream_percentiles=PERCENTILES))
    results = encode("node-a", "node-b")
    assert set(await write_results(agent, results)) == set(stored_results) | set(results)


async def test_an_agent_cannot_write_results_of_other_nodes(agent: Client, admin: Client) -> None:
    foreign_results = encode("node-b", "node-a")
    await write_results(admin, foreign_results)
    refused_data: list[Mapping[str, str | None]] = [encode("node-b", "node-c")]
    for key in foreign_results:
        refused_data += [{key: None}, {key: "7"}]
    for origin, value in (
        ("node-b", '{"origin":{"node":"node-a","node":"node-b","zone":"zone-b"}}'),
        ("node-b", '{"origin":{"node":"node-a","zone":"zone-a"}}'),
        ("node-a.example.com", "{}"),
        ("node-a-2", "{}"),
        ("node-a", "x" * 5000),  # its own key, but a sample is shorter
    ):
        key = sample_key(NodeLocation(origin, "zone-b"), NodeLocation("node-a2", "zone-a"), "TCP_RR")
        refused_data += [{key: value}, {f"{key}.failed": value}]

    refusals = [(await dry_run(agent, "PATCH", RESULTS, {"data": data}))[0] for data in refused_data]

    assert [refusal for refusal in refusals if not re.search("^403 .*an agent on node-a", refusal)] == []
    stored_results = await write_results(agent, encode("node-a", "node-b"))
    assert set(foreign_results) < set(stored_results), "its own key beside the other's is allowed"


@pytest.mark.parametrize("kind", FILLING_PATCHES)
async def test_an_agent_cannot_fill_the_results_configmap(agent: Client, admin: Client, kind: str) -> None:
    with suppress(ApiError):
        await patch_results(agent, FILLING_PATCHES[kind])
    assert len(await admin.request("GET", RESULTS)) < MAX_STORED_BYTES
