"""A real Prometheus over the lab: clean metrics, rules and panels with data, and every alert fires and resolves.

The shipped rules run as they are but for minutes and hours, which take a sixtieth of their time: what takes a quarter of an hour
takes 15 s. promtool holds the shipped durations (tests/integration/prometheus). The week that latencies are compared with
stays a week; promtool writes it before Prometheus starts, from each pair's first measurement. Panels are asked as shipped.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.prometheus import PrometheusClient
from kubekit.client import Client
from kubekit.waiting import until
from lab.cluster import Lab
from lab.controlplane import LOOPBACK, free_ports
from lab.demo import COMPONENTS
from lab.installation import MANIFESTS, Installation, install
from lab.topology import load
from tests.e2e import program_states as programs
from tests.e2e import prometheus_states as states
from tests.support.prometheus_past import back_fill
from tests.support.prometheus_server import start_prometheus

ROOT = Path(__file__).parents[2]
RULES = ROOT / "manifests" / "prometheus"
DASHBOARDS = sorted((ROOT / "manifests" / "grafana").glob("*.json"))
HASTE = 60
ALONE = {
    "NetawareNoLeader",
    "NetawareMultipleLeaders",
    "NetawareSchedulerDown",
    "NetawareExtenderDown",
    "NetawareApiWritesFailing",
    "NetawareMeasurementsStale",
    "NetawareEvictionsFailing",
    "NetawareDeschedulerBudgetSpent",
    "NetawareDeschedulerStopped",
}
"""Their states stand in the way of others."""
STATES_TIMEOUT_S = 480
WEEK_S, HISTORY_STEP_S = 7 * 86_400, 600
SCHEDULER_JOB, MESH_JOB = "netaware-scheduler", "mesh"
TRAFFIC = {"intervalS": 2, "windowS": 300, "prices": {"betweenZones": 0.01, "betweenRegions": 0.02}}
MOVES = {"dryRun": False}
FAST = {
    "perWorkload": 1,
    "unavailablePerWorkload": 1,
    "usageLagS": 2,
    "workloadBackoffS": 2,
    # An eviction that is forbidden counts as a move that did not help.
    "failureBackoffS": 0,
}
RIGHTS = [("netaware-descheduler", "pods/eviction"), ("netaware-agent", "events")]
CONFIG: dict[str, Any] = {
    "scheduler": {"gates": {"missingWorkloadTimeoutS": 100}},
    "topology": {"costPolicy": {"percentile": "p50", "staleAfterS": 5}},
    "descheduler": {
        "enabled": True,
        # Or the descheduler would end the violation that an alert is to see.
        "dryRun": True,
        "intervalS": 2,
        # Only misplacement moves: LowNodeLoad waits for more nodes of low load than there are. To pause it would pause both.
        "policy": {"numberOfNodes": 1000},
        # The test is shorter than the minute that a pod is left alone, and each of its workloads has one pod.
        "protection": {"minPodAgeS": 0, "minReplicas": 1},
        "misplacement": {"enabled": True, "holdS": 3},
    },
}
_UNIT_S = {"s": 1, "m": 60, "h": 3600}

# Time passes sixty times as fast here: a second in which a busy machine answers no scrape would be a minute of a cluster.
pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]


def hastened(path: Path, folder: Path) -> Path:
    """The same rules with minutes and hours a sixtieth as long."""

    def shorten(match: re.Match[str]) -> str:
        seconds = int(match[2]) * _UNIT_S[match[3]] / HASTE
        return f"{match[1]}{max(1, round(seconds))}s{match[4]}"

    document = yaml.safe_load(path.read_text())
    for group in document["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"(\[)(\d+)([smh])(\])", shorten, rule["expr"])
            if "for" in rule:
                rule["for"] = re.sub(r"()(\d+)([smh])()", shorten, rule["for"])
    target = folder / path.name
    target.write_text(yaml.safe_dump(document))
    return target


def alerts_in(path: Path) -> set[str]:
    groups = yaml.safe_load(path.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


ALERTS = alerts_in(RULES / "alerts.rules.yaml")


def anything(expression: str) -> str:
    """The expression with every variable standing for everything."""
    return re.sub(r"\$(?!\{)\w+", ".*", expression)


def dashboard_expressions() -> Iterable[tuple[str, str]]:
    """Every expression of every panel, variable and annotation.

    Variables stand for everything, and the zero that a panel shows where there is none is left out.
    """
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        assert not any(panel.get("panels") for panel in dashboard["panels"]), "rows are open, and hold no panels"
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}", anything(target["expr"]).replace(" or vector(0)", "")
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                asked = re.fullmatch(r"label_values\((.+)\}, (\w+)\)", variable["query"]["query"])
                assert asked is not None, variable["query"]["query"]
                # The lab's Prometheus is one cluster's and need not name it.
                named = "" if asked[2] == "cluster" else f', {asked[2]}!=""'
                yield f"{path.stem}: variable {variable['name']}", anything(asked[1]) + named + "}"
        for annotation in dashboard["annotations"]["list"]:
            yield f"{path.stem}: annotation {annotation['name']}", anything(annotation["expr"])


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())


def check_exposition(installation: Installation, promtool: Path, hanging: str = "") -> None:
    """Fail when promtool finds anything wrong with any program's metrics; the agent on the node ``hanging`` gives none."""
    agents = [url for node, url in installation.agent_urls.items() if node != hanging]
    for url in (installation.controller_url, installation.extender_url, *agents):
        text = fetch(f"{url}/metrics")
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False, timeout=30)
        assert done.returncode == 0, (url, done.stdout.decode(), done.stderr.decode())


class Watch:
    """Which alerts fire, as Prometheus says.

    Attributes:
        url: where it is.
        targets: how many answer when all is well.
        pairs: how many directed zone pairs are measured then.
    """

    def __init__(self, url: str, prometheus: PrometheusClient, started_s: float, targets: int, pairs: int) -> None:
        self.url, self.prometheus, self.started_s = url, prometheus, started_s
        self.targets, self.pairs = targets, pairs

    async def firing(self) -> set[str]:
        found = await self.prometheus.query('ALERTS{alertstate="firing"}')
        return {series.labels["alertname"] for series in found}

    async def described(self, names: set[str]) -> list[dict[str, str]]:
        """Labels of what fires, for whoever reads a failure."""
        found = await self.prometheus.query('ALERTS{alertstate="firing"}')
        return [series.labels for series in found if series.labels["alertname"] in names]

    async def until_fired(self, wanted: set[str], deadline_s: float) -> None:
        """Wait until each of them has fired, with texts that its templates could be turned into."""
        ends = time.monotonic() + deadline_s
        missing = wanted - await self.firing()
        while missing:
            assert time.monotonic() < ends, f"do not fire: {sorted(missing)}"
            await asyncio.sleep(0.5)
            missing -= await self.firing()
        answer = json.loads(await asyncio.to_thread(fetch, f"{self.url}/api/v1/alerts"))
        texts = [text for alert in answer["data"]["alerts"] for text in alert["annotations"].values()]
        assert [text for text in texts if re.search("<error|<no value|%!", text)] == []

    async def until_resolved(self, deadline_s: float) -> None:
        """Wait until none fires although everything is scraped and every zone pair is measured: silence is not health."""
        ends = time.monotonic() + deadline_s
        while (firing := await self.firing()) or not await self._all_there():
            assert time.monotonic() < ends, f"still fire, or are missing: {await self.described(firing)}"
            await asyncio.sleep(0.5)

    async def _all_there(self) -> bool:
        scraped = await self.prometheus.query("sum(up)")
        measured = await self.prometheus.query('sum(netaware_zone_pairs{basis=~"measured|mirrored"})')
        return [series.value for series in (*scraped, *measured)] == [self.targets, self.pairs]

    async def moves_have_ended(self) -> bool:
        """Whether the descheduler has judged a move."""
        return bool(await self.prometheus.query("netaware_descheduler_moves_ended_total > 0"))

    async def periods(self) -> dict[str, list[tuple[int, int]]]:
        """When each alert fired and resolved, in seconds since the start."""
        expression = 'sum by (alertname) (ALERTS{alertstate="firing"})'
        found: dict[str, list[tuple[int, int]]] = {}
        for series in await self.prometheus.query_range(expression, self.started_s, time.time(), 1.0):
            periods = found.setdefault(series.labels["alertname"], [])
            for at_s, _ in series.points:
                since = round(at_s - self.started_s)
                if periods and since - periods[-1][1] <= 2:
                    periods[-1] = periods[-1][0], since
                else:
                    periods.append((since, since))
        return found


async def with_data(prometheus: PrometheusClient, expressions: Iterable[tuple[str, str]], start_s: float) -> set[str]:
    """Names of those expressions that had no data at any time since ``start_s``."""
    empty = set()
    for name, expression in expressions:
        if not await prometheus.query_range(expression, start_s, time.time(), 2.0):
            empty.add(name)
    return empty


def targets_of(installation: Installation, second: str) -> Mapping[str, list[str]]:
    def address(url: str) -> str:
        return url.removeprefix("http://")

    return {
        "netaware-agent": [address(url) for url in installation.agent_urls.values()],
        "netaware-controller": [address(installation.controller_url), second],
        SCHEDULER_JOB: [address(installation.extender_url)],
    }


async def measured_pairs(installation: Installation, wanted: int) -> dict[str, float]:
    """Labels of every zone pair, as the exposition has them, and its newest median in seconds, as soon as there are so many."""
    line = re.compile(r'netaware_probe_latency_seconds\{(.*quantile="0.5".*)\} (\S+)')
    found: dict[str, float] = {}

    async def measured() -> bool:
        installation.check()
        for url in installation.agent_urls.values():
            text = (await asyncio.to_thread(fetch, f"{url}/metrics")).decode()
            found.update((labels, float(value)) for labels, value in line.findall(text))
        return len(found) >= wanted

    await until(measured, f"{wanted} zone pairs to be measured", 120)
    return found


def week_of(pairs: Mapping[str, float], now_s: float) -> str:
    """A week in which every pair was as it is now: what the recorded series would be, as OpenMetrics."""
    lines = ["# TYPE netaware:pair_latency_seconds gauge"]
    for labels, value in pairs.items():
        times = range(int(now_s - WEEK_S), int(now_s - HISTORY_STEP_S), HISTORY_STEP_S)
        lines += [f"netaware:pair_latency_seconds{{{labels}}} {value!r} {at_s}" for at_s in times]
    return "\n".join([*lines, "# EOF", ""])


async def run_through_states(
    lab: Lab, installation: Installation, client: Client, watch: Watch, check: Callable[..., None], second: str
) -> None:
    await states.land_a_group(client)
    await watch.until_resolved(60)
    async with programs.pod_with_a_network(lab, client, "n1") as pod:
        async with states.everything_at_once(lab, installation, client, pod):
            await watch.until_fired(ALERTS - ALONE, 120)
            await asyncio.to_thread(check, states.HANGING_NODE)
        async with programs.second_leader(lab, second):
            await watch.until_fired({"NetawareMultipleLeaders"}, 60)
        async with programs.frozen(lab, "extender"):
            await watch.until_fired({"NetawareExtenderDown"}, 60)
        async with programs.without_targets(lab, SCHEDULER_JOB, installation.extender_url):
            await watch.until_fired({"NetawareSchedulerDown"}, 60)
        await watch.until_resolved(150)
        async with programs.controller_away(lab, **MOVES, limits={**FAST, "perHour": 1}):
            await watch.until_fired({"NetawareNoLeader"}, 60)
        async with states.web_misplaced(client):
            async with programs.without_rights_to_results(client), programs.without_rights(client, RIGHTS):
                await programs.ask_for(client, pod, "20M")
                # A cut path is unreachable, as its agents report; costs get old where no reports come.
                failing = {"NetawareApiWritesFailing", "NetawareMeasurementsStale", "NetawareEvictionsFailing"}
                await watch.until_fired(failing, 120)
            await watch.until_fired({"NetawareDeschedulerBudgetSpent"}, 60)
            await until(watch.moves_have_ended, "the move to be judged", 60)
        await programs.ask_for(client, pod, "10M")
        async with programs.controller_away(lab, **MOVES, limits={**FAST, "perHour": 100}):
            await states.remember_ineffective_moves(client, forgotten_in_s=45)
        await watch.until_fired({"NetawareDeschedulerStopped"}, 60)
        await watch.until_resolved(120)
        await asyncio.to_thread(check)


@pytest.mark.usefixtures("privileges")
async def test_every_rule_and_panel_has_data_and_every_alert_fires_and_resolves(
    prometheus_programs: Mapping[str, Path], record_property: Callable[[str, object], None]
) -> None:
    port, prometheus_port = free_ports(2)
    second, promtool = f"{LOOPBACK}:{port}", prometheus_programs["promtool"]
    topology = load("four-zones")
    with tempfile.TemporaryDirectory() as folder:
        async with (
            states.mesh_that_tells_calls() as mesh,
            Lab.start(topology, name="e2e-alerts", components=COMPONENTS, folder=Path(folder)) as lab,
        ):
            overlay = MANIFESTS / "overlays" / "descheduler"
            traffic = {**TRAFFIC, "prometheusUrl": f"http://{LOOPBACK}:{prometheus_port}"}
            installation = await install(lab, controller_config={**CONFIG, "traffic": traffic}, overlay=overlay)
            pairs = await measured_pairs(installation, len(topology.zones) * (len(topology.zones) - 1) // 2)
            home = lab.place.state_dir / "prometheus"
            home.mkdir(parents=True, exist_ok=True)
            await back_fill(promtool, home, week_of(pairs, time.time()))
            rules = [hastened(path, Path(folder)) for path in sorted(RULES.glob("*.rules.yaml"))]
            targets = {**targets_of(installation, second), MESH_JOB: [mesh]}
            program = prometheus_programs["prometheus"]
            url = await start_prometheus(lab, program, targets, rules, port=prometheus_port)
            started_s = time.time()
            async with Client(lab.client_config) as client, PrometheusClient(url) as prometheus:
                watch = Watch(url, prometheus, started_s, len(installation.agent_urls) + 3, 2 * len(pairs))
                check = partial(check_exposition, installation, promtool)
                async with asyncio.timeout(STATES_TIMEOUT_S):
                    await run_through_states(lab, installation, client, watch, check, second)
                fired = await watch.periods()
                record_property("seconds_of_firing", fired)
                assert set(fired) == ALERTS
                recorded: list[Any] = yaml.safe_load((RULES / "recording.rules.yaml").read_text())["groups"]
                names = [rule["record"] for group in recorded for rule in group["rules"]]
                assert await with_data(prometheus, [(name, name) for name in names], started_s) == set()
                assert await with_data(prometheus, dashboard_expressions(), started_s) == set()
