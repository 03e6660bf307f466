"""The CustomResourceDefinitions refuse invalid objects, and accept what ``convert`` makes of other spellings."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from controller.cluster.crds import APPGROUPS, NETWORK_TOPOLOGIES
from controller.convert.spellings import convert_documents
from kubekit.errors import ApiError
from kubekit.wire import Object
from tests.integration.controller.appgroups import AppGroupNamespace, make_group
from tests.support.bodies import make_weight_body
from tests.support.field_spellings import PROPOSAL_GROUP, PROPOSAL_TOPOLOGY, SLIDES_GROUP

DEPLOYMENT_A = {"kind": "Deployment", "name": "a"}
SELECTORS = {f"w{i}" for i in range(72)}
ALL_CALL_ALL = make_group({caller: " ".join(SELECTORS - {caller}) for caller in SELECTORS})["spec"]["workloads"]
"""72 * 71 = 5112 dependencies; the definition's limit is 5000."""
HOSTILE_TEXTS = ("x $(id>/tmp/pwned)", "`id`", "a;b", "a\nb", "\x1b[31mred", "-n", "a b", "a'b", 'a"b')
EMPTY_WEIGHT = {"name": "a", "topologyList": []}


def make_group_with(path: str, value: object) -> dict[str, Any]:
    """An AppGroup in which a depends on b, with another value at a dotted path of its spec."""
    body = make_group({"a": "b", "b": ""})
    parent: Any = body["spec"]
    *parents, last = path.split(".")
    for part in parents:
        parent = parent[int(part)] if part.isdigit() else parent[part]
    parent[last] = value
    return body


async def create_strictly(groups: AppGroupNamespace, body: dict[str, Any]) -> None:
    """Create an object as kubectl does, so that unknown fields are errors."""
    resource = APPGROUPS if body["kind"] == "AppGroup" else NETWORK_TOPOLOGIES
    body["metadata"].pop("namespace", None)
    await groups.client.request(
        "POST", resource.path(groups.namespace), params={"fieldValidation": "Strict"}, body=body
    )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("topologySortingAlgorithm", "Quick", "Unsupported value"),
        ("numMembers", 0, "should be greater than or equal to 1"),
        ("workloads.0.dependencies.0.maxNetworkCost", 10_001, "less than or equal to 10000"),
        ("workloads.0.dependencies.0.maxNetworkCost", -1, "greater than or equal to 0"),
        ("workloads.0.dependencies.0.minBandwidth", "much", "minBandwidth"),
        ("workloads.0.dependencies.0.workload.selector", "a", "cannot depend on itself"),
        ("workloads.0.dependencies.0.workload", DEPLOYMENT_A, "cannot depend on itself"),
        ("workloads.1.workload.selector", "a", "selector of its own"),
        ("workloads.0.workload", DEPLOYMENT_A, "Required value"),
        ("workloads.0.workload.selector", "not a label", "selector"),
        pytest.param("workloads", ALL_CALL_ALL, "5000 dependencies at most", id="too-many-dependencies"),
    ],
)
async def test_an_invalid_appgroup_is_refused(
    groups: AppGroupNamespace, path: str, value: object, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refusal:
        await groups.create_group_from_body(make_group_with(path, value))
    assert refusal.value.status == 422


@pytest.mark.parametrize("reference", ["workloads.0.workload", "workloads.0.dependencies.0.workload"])
@pytest.mark.parametrize("field", ["kind", "name", "selector", "apiVersion", "namespace"])
async def test_names_that_could_be_commands_are_refused(groups: AppGroupNamespace, reference: str, field: str) -> None:
    """Names that tenants write are part of commands that people run."""
    for text in HOSTILE_TEXTS:
        with pytest.raises(ApiError, match=f"{field}: Invalid value"):
            await groups.create_group_from_body(make_group_with(f"{reference}.{field}", text))


@pytest.mark.parametrize("rate", ["100Mi", "1e3", 5, "0.5G"])
async def test_bandwidths_may_be_texts_or_numbers(groups: AppGroupNamespace, rate: str | int) -> None:
    await groups.create_group_from_body(make_group_with("workloads.0.dependencies.0.minBandwidth", rate))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"configmapName": "netperfMetrics"}, "configmapName"),
        ({}, "configmapName"),
        ({"configmapName": "c", "weights": [EMPTY_WEIGHT, EMPTY_WEIGHT]}, "Duplicate value"),
        ({"configmapName": "c", "weights": [make_weight_body({("x", "y"): -1})]}, "networkCost"),
        ({"configmapName": "c", "costPolicy": {"percentile": "p42"}}, "Unsupported value"),
        ({"configmapName": "c", "costPolicy": {"staleAfterS": 10, "expireAfterS": 5}}, "not be less than staleAfterS"),
    ],
    ids=["upper-case-name", "no-name", "duplicate-weight", "negative-cost", "percentile", "expires-before-stale"],
)
async def test_an_invalid_network_topology_is_refused(
    groups: AppGroupNamespace, spec: dict[str, Any], message: str
) -> None:
    body = {**NETWORK_TOPOLOGIES.type_meta, "metadata": {"name": "n"}, "spec": spec}
    with pytest.raises(ApiError, match=message):
        await groups.client.create(NETWORK_TOPOLOGIES, body, Object, namespace=groups.namespace)


@pytest.mark.parametrize(
    "manifest",
    [PROPOSAL_GROUP, SLIDES_GROUP, PROPOSAL_TOPOLOGY],
    ids=["proposal-group", "slides-group", "proposal-topology"],
)
async def test_field_spellings_are_accepted_only_after_conversion(groups: AppGroupNamespace, manifest: str) -> None:
    with pytest.raises(ApiError):
        await create_strictly(groups, yaml.safe_load(manifest))
    (converted,), _ = convert_documents([yaml.safe_load(manifest)])
    await create_strictly(groups, converted)
