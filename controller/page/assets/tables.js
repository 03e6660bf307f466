// Agents and bandwidth, as tables; of very many nodes those that need attention.

function cells(tag, values) {
  return values.map((value) => (Array.isArray(value) ? h(tag, { class: value[1] }, value[0]) : h(tag, {}, value)));
}

function table(header, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" }, h("table", {}, h("thead", {}, h("tr", {}, ...cells("th", header))), h("tbody", {}, ...rows.map((row) => h("tr", {}, ...cells("td", row))))));
}

const STATES = { up: ["✓ up", "good"], down: ["✗ down", "bad"], away: ["· not in use", "soft"] };

function drawAgents() {
  const agents = state.page.agents;
  const zones = state.page.network.zones;
  const short = zones.filter((zone) => zone.agents < zone.ready);
  const head = h("p", { class: "note" }, `${agents.states.up} up, ${agents.states.down} down, ${agents.states.away} nodes not in use`,
    short.length ? `; zones with missing agents: ${short.map((zone) => `${zone.name} (${zone.agents} of ${zone.ready})`).join(", ")}` : "",
    state.page.agentRows.length < agents.total ? `; ${state.page.agentRows.length} of ${agents.total} nodes shown, those that need attention first` : "");
  const rows = state.page.agentRows.map((agent) => [
    [agent.node, "name"], agent.zone || "–", agent.region || "–", STATES[agent.state], agent.reason || "", agent.prober || "–", agent.version || "–", agent.address || "–", [String(agent.probes), "n"],
    [agent.newestAt === null ? "–" : `${age(since(agent.newestAt))} ago`, "n"],
  ]);
  byId("panel-agents").replaceChildren(head, table(["Node", "Zone", "Region", "State", "", "Prober", "Version", "Address", ["Probes", "n"], ["Newest sample", "n"]], rows));
}

function bar(part, whole) {
  const box = h("span", { class: `bar${whole !== null && part > whole ? " over" : ""}`, role: "img", "aria-label": percent(part, whole) }, h("i", {}));
  box.firstChild.style.width = `${whole ? Math.min(100, (100 * part) / whole) : 0}%`;
  return box;
}

function drawBandwidth() {
  const { bandwidth, nodeRows, podRows } = state.page;
  const nodes = nodeRows.map((node) => {
    const whole = node.allocatableBps === null ? node.capacityBps : node.allocatableBps;
    return [[node.node, "name"], node.zone || "–", [whole === null ? "unknown" : rate(whole), whole === null ? "n soft" : "n"], [node.allocatedBps ? rate(node.allocatedBps) : "0", "n"],
      bar(node.allocatedBps, whole), [percent(node.allocatedBps, whole), `n${whole !== null && node.allocatedBps > whole ? " bad" : ""}`], [String(node.pods), "n"],
      // What follows the colon says which file or flag; the JSON has it.
      [node.source.split(":")[0], "soft"]];
  });
  const pods = podRows.map((pod) => [pod.namespace, [pod.name, "name"], pod.node || "pending", [pod.requestedBps ? rate(pod.requestedBps) : "–", "n"],
    [limit(pod.ingressAsked, pod.ingressAskedBps), "n"], [limit(pod.egressAsked, pod.egressAskedBps), "n"], [pod.problem, "bad"]]);
  const of = (shown, total) => (shown < total ? ` (${shown} of ${total})` : "");
  byId("panel-bandwidth").replaceChildren(
    h("h2", {}, `Nodes, the fullest first${of(nodes.length, bandwidth.totalNodes)}`),
    table(["Node", "Zone", ["Capacity", "n"], ["Allocated", "n"], "", "", ["Pods", "n"], "Source"], nodes),
    h("h3", {}, `Pods that ask for bandwidth${of(pods.length, bandwidth.totalPods)}`),
    pods.length ? table(["Namespace", "Pod", "Node", ["Requests", "n"], ["Ingress limit", "n"], ["Egress limit", "n"], ""], pods) : h("p", { class: "note" }, "None."),
    h("p", { class: "note" }, "What flows, and which limits are enforced: the dashboard Bandwidth, or kubectl netaware bandwidth pod."));
}

function limit(text, bps) { return text === null ? "–" : bps === null ? `“${text}”` : rate(bps); }
