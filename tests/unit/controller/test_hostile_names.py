"""Texts of tenants and agents in objects: commands to paste never run them, and terminals never get their control characters."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar, cast

import msgspec
import pytest

from controller.appgroups.status import admission_condition, gather, plan_status
from controller.cli.output import Screen
from controller.cli.parser import FORMATS
from controller.cli.run import run
from controller.cli.session import Session
from controller.cli.traffic_reading import Traffic
from controller.cluster.costs import CostTable, Location, locations_of
from controller.cluster.resources import APPGROUP_LABEL, WORKLOAD_LABEL
from controller.diagnosis.events import FindingEventFilter
from controller.diagnosis.facts import Facts
from controller.diagnosis.pods import diagnose_pod
from controller.diagnosis.reading import read_facts
from controller.diagnosis.rules import diagnose
from controller.diagnosis.snapshot import ClusterSnapshot
from controller.page.server import _compute
from controller.traffic.graph import LeftOut, ObservedDependency, TrafficGraph, WorkloadId
from controller.traffic.sources import SOURCES
from controller.traffic.workloads import Workloads
from kubekit import logs
from kubekit.client import Client
from kubekit.errors import KubekitError
from kubekit.responses import RawPage
from kubekit.text import UNSAFE_NAME, format_command
from kubekit.wire import CONFIGMAPS, PODS, ConfigMap, Resource
from netperf.contract import AGENT_ANNOTATION, BANDWIDTH, REGION_LABEL, ZONE_LABEL
from tests.unit.controller.situations import NOW_S, SITUATIONS
from tests.unit.controller.test_cli_output import parse_command
from tests.unit.controller.test_consistent_answers import HEAD, HOME, Components, FakeClient

PAYLOAD = "x$(touch pwned)`touch pwned`; touch pwned '; touch pwned; ' \x1b]0;pwned\x07\x9b2J\u202e"
T = TypeVar("T")


def texts_in(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from (*texts_in(key), *texts_in(value))
    elif isinstance(data, list):
        for value in data:
            yield from texts_in(value)


def replaced(data: Any, old: str) -> Any:
    if isinstance(data, dict):
        return {replaced(key, old): replaced(value, old) for key, value in data.items()}
    if isinstance(data, list):
        return [replaced(value, old) for value in data]
    return PAYLOAD if data == old else data


def hostile(value: T) -> Iterator[T]:
    """Copies of a value, each with another of its texts replaced by `PAYLOAD`; only those that its type accepts."""
    data = msgspec.json.decode(msgspec.json.encode(value))
    for text in sorted(set(texts_in(data))):
        try:
            yield msgspec.convert(replaced(data, text), type(value))
        except msgspec.ValidationError:
            continue


def lines_of(facts: Facts) -> Iterator[str]:
    for finding in diagnose(facts):
        yield from finding.fix
    for pod in facts.pods:
        yield from diagnose_pod(pod, facts).fix


def paste(lines: Iterable[str], folder: Path) -> None:
    """Run every command of these lines in a shell where kubectl does nothing, and assert that nothing else runs."""
    assert not [line for line in lines if "$(touch" in line and "kubectl" not in line.partition("$(touch")[0]]
    commands = sorted(line[line.index("kubectl") :] for line in lines if "kubectl" in line)
    assert len(commands) > 10
    for name in ("kubectl", "grep", "sort", "tail"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    (folder / "touch").symlink_to("/usr/bin/touch")
    script = folder / "all.sh"
    script.write_text("\n".join(f"( {line} )" for line in commands))
    environ = {**os.environ, "PATH": str(folder)}
    done = subprocess.run(["/bin/bash", script], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert not (folder / "pwned").exists()


def test_commands_to_paste_never_run_text_of_objects(tmp_path: Path) -> None:
    paste(
        {line for situation in SITUATIONS for facts in hostile(situation.facts) for line in lines_of(facts)}, tmp_path
    )


@pytest.mark.parametrize("name", [PAYLOAD, "-A", "--kubeconfig=x", "a b", "a,b", "", "a\nb", "x" * 300])
def test_invalid_names_become_a_placeholder(name: str) -> None:
    assert format_command("kubectl -n {} get pods {n}", name, n=[name, "web-1"]) == (
        f"kubectl -n {UNSAFE_NAME} get pods {UNSAFE_NAME} web-1"
    )
    assert format_command("-p {}", {"a": "it's"}) == """-p '{"a":"it'"'"'s"}'"""


# --- one cluster of ten thousand objects ------------------------------------------------------------------------------------

FORGED = "fix: touch forged"
PAYLOADS = (
    PAYLOAD,
    f"a\n  {FORGED}\n✓ nothing is wrong",
    f"a\r{FORGED}\u2028✓ nothing is wrong\u2029\x85",
    "\x1b]0;pwned\x07\x1b[2J\x9b2J\x7f\x00\x08",
    "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>\"'&",
    "\u202egnp.exe\u2066\u200f\ufeff\U000e0041",
    "l" * 400,
)
NUMBERS = range(250)
LARGE = ("status", "diagnose", "graph")
"""As YAML they take ten seconds each."""


def text(word: str, number: int) -> str:
    """Equal words of one number become equal texts; over six numbers each word becomes every payload."""
    return PAYLOADS[(zlib.crc32(word.encode()) + number) % len(PAYLOADS)] + f"{word}{number}"


def marked(data: Any, number: int) -> Any:
    """Plain data in which texts that begin with @ are hostile."""
    if isinstance(data, dict):
        return {marked(key, number): marked(value, number) for key, value in data.items()}
    if isinstance(data, list):
        return [marked(value, number) for value in data]
    return text(data[1:], number) if isinstance(data, str) and data.startswith("@") else data


def owned(name: str, selector: str, *, labels: Any = None, annotations: Any = None, **more: Any) -> dict[str, Any]:
    """A pod of the group; ``more`` is its spec and status."""
    known = {APPGROUP_LABEL: "@shop", WORKLOAD_LABEL: selector, "@label": "@value", **(labels or {})}
    owner = [{"apiVersion": "apps/v1", "kind": "@kind", "name": "@owner", "uid": "@uid", "controller": True}]
    meta = {"name": name, "namespace": "@ns", "labels": known, "annotations": annotations or {}, "uid": name}
    meta |= {"ownerReferences": owner, "creationTimestamp": "2026-01-01T00:00:00Z"}
    status = {"phase": more.pop("phase", "Pending"), "conditions": more.pop("conditions", [])}
    spec = {"schedulerName": "network-aware-scheduler", "containers": [{"name": "c"}], **more}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def unschedulable(message: str) -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]


def objects_of(number: int) -> list[dict[str, Any]]:
    """What tenants write of one application; beside every tenth what agents write of six nodes."""

    def ref(word: str) -> dict[str, str]:
        return {
            "kind": "@kind",
            "apiVersion": "@v1",
            "name": f"@name {word}",
            "selector": f"@{word}",
            "namespace": "@ns",
        }

    calls = [{"workload": ref("b"), "minBandwidth": "@much", "maxNetworkCost": 1}, {"workload": ref("absent")}]
    meta = {"name": "@shop", "namespace": "@ns", "uid": "@uid", "labels": {"@label": "@value"}}
    meta["annotations"] = {f"netaware.io/{name}": f"@{name}" for name in ("weights", "spread", "objective")}
    workloads = [
        {"workload": ref("a"), "dependencies": calls},
        {"workload": ref("b"), "dependencies": [{"workload": ref("a")}]},
    ]
    spec = {"numMembers": 40, "topologySortingAlgorithm": "@sort", "workloads": workloads}
    other = {**meta, "name": "@other", "namespace": "@elsewhere"}
    known_sort = {**spec, "topologySortingAlgorithm": "KahnSort"}
    node = f"n{number}"
    odd_pods: list[dict[str, Any]] = [
        {"schedulingGates": [{"name": "netaware.io/topological-order"}]},
        {"schedulingGates": [{"name": "@gate"}, {"name": "netaware.io/topological-order"}]},
        {"schedulerName": "@scheduler"},
        {
            "nodeSelector": {"@key": "@value"},
            "conditions": unschedulable("0/9 nodes are available: 9 Insufficient cpu. @why"),
        },
        {
            "conditions": unschedulable("@message"),
            "tolerations": [{"key": "@key", "operator": "@op", "value": "@value"}],
        },
        {"conditions": unschedulable("0/9 nodes are available: 9 node(s) had untolerated taint {@key: @value}.")},
        {"nodeName": "n0-0", "phase": "@phase"},
        {"nodeName": "@node", "phase": "Running", "volumes": [{"persistentVolumeClaim": {"claimName": "@claim"}}]},
    ]
    limits = {f"kubernetes.io/{way}-bandwidth": f"@{way}" for way in ("ingress", "egress")}
    pods = [
        owned(f"@odd{i}", ("@a", "@b", "@wrong")[i % 3], annotations=limits, **spec) for i, spec in enumerate(odd_pods)
    ]
    pods += [
        owned(f"@p{i}", "@ab"[::2] if i % 2 else "@b", nodeName=f"n{number // 10 * 10}-{i % 6}", phase="Running")
        for i in range(25)
    ]
    services = [
        {
            "kind": "Service",
            "metadata": {"name": f"@svc{i}", "namespace": "@ns"},
            "spec": {"selector": {WORKLOAD_LABEL: "@b"}, "trafficDistribution": "@near"},
        }
        for i in range(4)
    ]
    made = {
        "kind": "Deployment",
        "metadata": {"name": "@name a", "namespace": "@ns"},
        "spec": {
            "template": {"metadata": {"labels": {APPGROUP_LABEL: "@shop", WORKLOAD_LABEL: "@a", "@label": "@value"}}}
        },
    }
    groups = [
        {"kind": "AppGroup", "metadata": meta, "spec": spec},
        {"kind": "AppGroup", "metadata": other, "spec": known_sort},
    ]
    agents = [agent_of(f"{node}-{i}", i, number) for i in range(6)] if number % 10 == 0 else []
    found: list[dict[str, Any]] = marked([*groups, made, *pods, *services, *agents], number)
    return found


def agent_of(node: str, place: int, number: int) -> dict[str, Any]:
    """What an agent may write of its node."""
    words = ("address", "version", "prober", "problem")
    told = {word: text(word, number + i) for i, word in enumerate(words) if word != "address" or place % 2}
    annotations = {AGENT_ANNOTATION: json.dumps({"port": 1, **told}), "netaware.io/bandwidth-source": "@source"}
    labels = {ZONE_LABEL: f"z{place}", REGION_LABEL: "r"}
    ready = {"type": "Ready", "status": "True", "message": "@message"}
    status = {"capacity": {BANDWIDTH: "@capacity"}, "allocatable": {BANDWIDTH: "10G"}, "conditions": [ready]}
    return {"kind": "Node", "metadata": {"name": node, "labels": labels, "annotations": annotations}, "status": status}


def results() -> dict[str, str]:
    """Keys and values that agents wrote, of their own pairs and of what they have no business with."""
    data: dict[str, str] = {}
    for number in NUMBERS:
        place = {"node": text("node", number)[:200], "zone": text("zone", number)[:60], "region": "r"}
        measured = {"prober": "netperf", "test": "TCP_RR", "p50_us": 9.0}
        sample = {"origin": {**place, "node": f"n{number}-0", "zone": "z0"}, "destination": place, "sequence": 1}
        value = json.dumps({**sample, "measurement": measured, "taken_at": NOW_S})
        data |= {f"n{number}-0_{text('node', number)}_tcp-rr": value, text("key", number): text("value", number)}
    return data


class Cluster(Components):
    """These objects, read as commands and the page read them."""

    async def read(self) -> None:
        client = cast("Client", Hostile(self.objects, HEAD))
        whole = await Session(client, None, None, HOME).snapshot(everything=True)
        self.snapshot = msgspec.structs.replace(whole, now_s=NOW_S)

    def session(self, namespace: str | None) -> Session:
        """A session that has read the cluster already."""
        session = Session(cast("Client", Hostile(self.objects, HEAD)), None, namespace, HOME)

        async def read(**_: bool) -> ClusterSnapshot:
            return self.snapshot

        session.snapshot = read  # type: ignore[method-assign]
        return session


class Hostile(FakeClient):
    """In the place of a client. None of the pods is one of our own programs."""

    async def list_pages(
        self, resource: Resource, *, namespace: str | None = None, **more: Any
    ) -> AsyncIterator[RawPage]:
        if "app.kubernetes.io" not in more.get("label_selector", ""):
            async for page in super().list_pages(resource, namespace=namespace):
                yield page

    async def get(self, resource: Resource, name: str, type_: type[Any], **more: Any) -> Any:
        if resource is CONFIGMAPS and name.startswith("netperf"):
            return ConfigMap(data=results())
        if resource is PODS:
            return next(pod for pod in await self.list(PODS, type_) if pod.metadata.name == name)
        return await super().get(resource, name, type_, **more)


async def traffic_of(session: Session, *_: object) -> Traffic:
    """Every application calls within itself, across its namespaces and outside."""
    found = [[WorkloadId(text("ns", n), text(word, n), "Deployment") for word in ("name a", "name b")] for n in NUMBERS]
    calls = tuple(ObservedDependency(a, b, bytes_per_s=9.0, peak_bytes_per_s=9.0) for a, b in found)
    left = tuple(LeftOut("external", text("name a", n), text("out", n), 1.0) for n in NUMBERS)
    ends = [end for pair in found for end in pair]
    workloads = Workloads(
        locations={end: Counter({Location("r", "z1"): 1}) for end in ends},
        replicas=Counter(ends),
        labels={end: {text("label", 1): text("value", 1)} for end in ends},
    )
    snapshot = await session.snapshot(groups=True)
    return Traffic(TrafficGraph(calls, left), workloads, SOURCES[0], 60, CostTable(), snapshot)


def check(shown: str, form: str = "table") -> None:
    """A terminal is told nothing, and one line stays one line; in YAML a text of several lines is quoted."""
    assert {c for c in set(shown) if not c.isprintable()} <= {"\n"}
    forged = [line for line in shown.split("\n") if line.strip().startswith((FORGED, "✓ nothing"))]
    assert form == "yaml" or forged == []


async def test_ten_thousand_hostile_objects_reach_no_command_line_terminal_page_or_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("controller.cli.propose.read_traffic", traffic_of)
    monkeypatch.setattr("controller.cli.money.read_traffic", traffic_of)
    cluster = Cluster(*(made for number in NUMBERS for made in objects_of(number)))
    assert len(cluster.objects) >= 10_000
    await cluster.read()
    commands = [
        ("status", "-A"),
        ("diagnose",),
        ("diagnose", "pod", text("odd4", 4)),
        ("graph", "-A"),
        ("explain", "pod", text("odd0", 1)),
        ("propose", "-n", text("ns", 3)),
        ("propose", "-n", text("ns", 4), "--manifests"),
        ("money",),
    ]
    lines: set[str] = set()
    for argv in commands:
        command, options = parse_command(*argv)
        session = cluster.session(None if options.all_namespaces else options.namespace or None)
        answer = await command.run(session, options)
        for form in FORMATS:
            if form == "yaml" and argv[0] in LARGE:
                continue
            options.output = form
            stream = io.StringIO()
            Screen(stream).print_answer(command, answer, options)
            check(printed := stream.getvalue() + capsys.readouterr().out, form)
            assert printed
        for remark in [*session.remarks, *map(": ".join, session.notes.items())]:
            Screen().print_note(remark)
        check(capsys.readouterr().err)
        lines |= {fix for found in getattr(answer, "findings", ()) for fix in found.fix}
        lines |= set(pod.fix) if (pod := getattr(answer, "pod", None) or getattr(answer, "diagnosis", None)) else set()
    snapshot = cluster.snapshot
    check(gzip.decompress(_compute(snapshot).body).decode())
    reported, facts_ = FindingEventFilter(), read_facts(snapshot)
    found_ = diagnose(facts_)
    reported.update(found_, facts_)
    notes = [event.note for event in reported.update(found_, facts_)]
    costs, locations = snapshot.costs().for_namespace("").table, locations_of(snapshot.nodes)
    for group_ in snapshot.groups:
        facts = gather(group_, (), locations, costs, snapshot.membership)
        refused = admission_condition(group_, snapshot.membership.refusing_namespaces(group_.metadata.key))
        found = plan_status(group_, facts, NOW_S, extra_conditions=[refused] if refused else [])
        notes += [condition.message for condition in found.conditions or ()]
    assert len(notes) > 500
    for note in notes:
        check(note)
        assert "\n" not in note
    paste(lines | {note[note.rindex("kubectl") :] for note in notes if "kubectl" in note}, tmp_path)


def test_logs_and_errors_have_no_lines_of_foreign_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "".join(PAYLOADS)})
            self.send_response(403)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None: ...

    with Quiet(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        config = tmp_path / "config"
        config.write_text(
            f"{{current-context: c, clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{server.server_port}'}}}}],"
            " contexts: [{name: c, context: {cluster: c}}]}"
        )
        assert run(["diagnose", "--kubeconfig", str(config)]) == 1
        server.shutdown()
    errors = capsys.readouterr().err
    check(errors)
    assert errors.count("\n") == 1
    for form in logs.FORMATS:
        stream = io.StringIO()
        logs.set_up(format_=form, stream=stream)
        for payload in PAYLOADS:
            logs.get("test").change(payload, payload, payload, payload=payload)
            try:
                raise KubekitError(payload)
            except KubekitError as error:
                logs.get("test").unexpected(payload, error, payload=payload)
        lines = stream.getvalue().splitlines()
        # Lines that are indented belong to a trace.
        own = [line for line in lines if not line.startswith("    ")]
        check("\n".join(own))
        assert len(own) == 2 * len(PAYLOADS)
        assert {c for line in lines for c in line if not c.isprintable()} == set()
