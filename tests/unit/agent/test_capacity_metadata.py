"""Instance types from metadata services; the services are stand-ins on this machine that answer as the clouds' documents say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from agent.capacity.instances import find_instance
from agent.capacity.links import Machine
from agent.capacity.metadata import Cloud, InstanceType, ask, cloud_of, find_type
from agent.capacity.node_bandwidth import HardwareCapacity, choose_bandwidth
from agent.capacity.rules import AZURE_ASSET_TAG
from agent.config import AgentConfig
from agent.node import NodeView, OwnNode
from kubekit.wire import ObjectMeta

GUEST = "the processor says so"
AMAZON = Machine(vendor="Amazon EC2", product="m5.large", hypervisor=GUEST)
GOOGLE = Machine(vendor="Google", product="Google Compute Engine", hypervisor=GUEST)
AZURE = Machine(vendor="Microsoft Corporation", product="Virtual Machine", asset_tag=AZURE_ASSET_TAG, hypervisor=GUEST)


class StandIn:
    """The three clouds' metadata services in one; what they demand of a request is demanded here too."""

    def __init__(self, type_: str = "m5.large") -> None:
        self.type, self.asked = type_, list[str]()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        key, headers = (request.method, request.path), request.headers
        if key == ("PUT", "/latest/api/token"):
            good, text = headers.get("X-aws-ec2-metadata-token-ttl-seconds") == "60", "the-token"
        elif key == ("GET", "/latest/meta-data/instance-type"):
            good, text = headers.get("X-aws-ec2-metadata-token") == "the-token", self.type
        elif key == ("GET", "/computeMetadata/v1/instance/machine-type"):
            good, text = headers.get("Metadata-Flavor") == "Google", f"projects/17/machineTypes/{self.type}"
        elif key == ("GET", "/metadata/instance/compute/vmSize"):
            query = {"api-version": "2021-02-01", "format": "text"}
            good, text = headers.get("Metadata") == "true" and dict(request.query) == query, self.type
        else:
            return web.Response(status=404)
        return web.Response(text=text) if good else web.Response(status=401)


@asynccontextmanager
async def serving(answer: Callable[[web.Request], object]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)  # type: ignore[arg-type]
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("cloud", "type_"), [("amazon", "m5.large"), ("google", "n2-standard-8"), ("azure", "Standard_D2s_v5")]
)
async def test_each_cloud_is_asked_as_it_demands(cloud: Cloud, type_: str) -> None:
    service = StandIn(type_)
    async with serving(service.answer) as url:
        assert await ask(cloud, url) == type_


@pytest.mark.parametrize("cloud", ["amazon", "google", "azure"])
@pytest.mark.parametrize("body", ["", "<html>log in</html>", "x" * 5000, "m5.large\nX-Other: 1", "m5\xe9"])
async def test_what_is_no_type_is_none(cloud: Cloud, body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body)

    async with serving(answer) as url:
        assert await ask(cloud, url) == ""


async def test_a_redirect_is_not_followed_and_a_service_that_is_not_there_is_no_error() -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        if request.path == "/stolen":
            return web.Response(text="m5.large")
        raise web.HTTPFound("/stolen")

    async with serving(elsewhere) as url:
        assert await ask("amazon", url) == ""
    assert await ask("amazon", url) == ""


def test_only_firmware_that_names_the_cloud_has_anybody_asked() -> None:
    assert [cloud_of(machine) for machine in (AMAZON, GOOGLE, AZURE)] == ["amazon", "google", "azure"]
    for machine in (
        Machine(),
        Machine(vendor="QEMU", hypervisor=GUEST),
        Machine(vendor="Microsoft Corporation", product="Virtual Machine", hypervisor=GUEST),
        Machine(vendor="Google", product="Pixelbook", hypervisor=""),
        Machine(vendor="Amazon EC2", product="m5.metal"),
    ):
        assert cloud_of(machine) is None


def node(**labels: str) -> OwnNode:
    return OwnNode(metadata=ObjectMeta(name="n1", labels=labels))


async def run_until_known(instance: InstanceType) -> None:
    told = asyncio.Event()
    async with asyncio.timeout(10):
        task = asyncio.create_task(instance.run(told.set))
        await told.wait()
    task.cancel()


async def test_a_node_without_the_label_has_the_capacity_of_the_type_that_the_service_says() -> None:
    service, view = StandIn("n2-standard-8"), NodeView()
    view.on_change("n1", None, node())
    async with serving(service.answer) as url:
        instance = InstanceType(GOOGLE, view, url)
        await run_until_known(instance)
    node_bandwidth = choose_bandwidth(
        view.node, AgentConfig(node="n1"), HardwareCapacity(None, "a guest"), None, instance.value
    )
    assert (node_bandwidth.rate_bps, node_bandwidth.source) == (16 * 10**9, "instance-type")
    assert "Google Compute Engine n2-standard-8" in node_bandwidth.explanation


@pytest.mark.parametrize(
    ("machine", "labels"), [(AMAZON, {"node.kubernetes.io/instance-type": "m5.large"}), (Machine(vendor="QEMU"), {})]
)
async def test_nobody_is_asked_where_the_label_says_it_or_the_machine_is_no_clouds(
    machine: Machine, labels: dict[str, str]
) -> None:
    service, view = StandIn(), NodeView()
    view.on_change("n1", None, node(**labels))
    async with serving(service.answer) as url:
        task = asyncio.create_task(InstanceType(machine, view, url).run(lambda: None))
        await asyncio.sleep(0.1)  # a request would be on its way
        task.cancel()
    assert service.asked == []


async def test_firmware_that_names_the_type_is_believed_and_nobody_else_asked() -> None:
    service = StandIn()
    async with serving(service.answer) as url:
        assert await find_type(AMAZON, node(), url) == "m5.large"
        assert await find_type(AMAZON, node(**{"node.kubernetes.io/instance-type": "m5.large"}), url) == ""
    assert service.asked == []


def test_a_type_that_the_table_does_not_know_is_named() -> None:
    node_bandwidth = choose_bandwidth(
        node(), AgentConfig(node="n1"), HardwareCapacity(None, "a guest"), None, "z9.future"
    )
    assert (node_bandwidth.rate_bps, "z9.future is not in the table" in node_bandwidth.explanation) == (None, True)


@pytest.mark.parametrize(
    ("type_", "gigabits"),
    [
        ("n2-standard-2", 10),
        ("n2-highmem-16", 32),
        ("c3-standard-8-lssd", 23),
        ("c3-standard-192-metal", 100),
        ("e2-micro", 1),
        ("a2-highgpu-8g", 100),
        ("t2d-standard-60", 32),
        ("m5.large", 0.75),
        ("Standard_D2s_v5", 12.5),
    ],
)
def test_the_table_knows_types_of_three_clouds(type_: str, gigabits: float) -> None:
    found = find_instance(type_)
    assert found is not None
    assert found.rate_bps == gigabits * 10**9


@pytest.mark.parametrize("type_", ["n2-custom-8-32768", "n2-standard-7", "n2--8", "-*-8", "n9-standard-8", "a-b-c-d-e"])
def test_what_the_table_does_not_know_is_unknown(type_: str) -> None:
    assert find_instance(type_) is None


@pytest.mark.parametrize(
    ("type_", "mbps", "date"),
    [
        ("Standard_DS3_v2", 3_000, "2024-07-29"),
        ("Standard_D4s_v3", 2_000, "2024-09-24"),
        ("Standard_D64as_v5", 32_000, "2026-03-10"),
        ("Standard_D64ds_v5", 30_000, "2024-07-29"),
        ("Standard_E112ias_v5", 50_000, "2026-03-10"),
        ("Standard_F72s_v2", 30_000, "2024-07-29"),
        ("Standard_D192s_v6", 82_000, "2024-07-29"),
    ],
)
def test_azures_sizes_have_what_its_pages_say(type_: str, mbps: int, date: str) -> None:
    found = find_instance(type_)
    assert found is not None
    assert (found.rate_bps, found.explanation.endswith(f", {date})")) == (mbps * 1_000_000, True)
    assert find_instance("Standard_D192ds_v6") is None, "a size that a series does not have is not made up"
