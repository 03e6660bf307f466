// What `kubectl netaware propose` would propose for a namespace now: asked for, and asked again while the server makes it.

const ASK_AGAIN_MS = 1000, MOST_TRIES = 300;
state.proposing = { namespace: "", told: null, text: "" };

function startProposing() {
  const input = h("input", { id: "propose-in", "aria-label": "Namespace to propose for", list: "propose-namespaces", autocomplete: "off", spellcheck: "false", required: true, pattern: "[a-z0-9]([\\-a-z0-9]{0,61}[a-z0-9])?" });
  byId("proposing").replaceChildren(
    h("form", { class: "proposing", onsubmit: (event) => { event.preventDefault(); askProposal(input.value.trim()); } },
      h("label", { for: "propose-in" }, "What would be proposed for namespace"), input, h("datalist", { id: "propose-namespaces" }),
      h("button", { type: "submit" }, "Propose")),
    h("p", { class: "note", role: "status", id: "propose-status" }), h("div", { id: "proposed" }));
}

function drawNamespaces() {
  const names = [...new Set([...state.page.groups.map((group) => group.namespace), ...state.page.podRows.map((pod) => pod.namespace)])].sort();
  const list = byId("propose-namespaces");
  if (list.dataset.names === names.join(" ")) return;
  list.dataset.names = names.join(" ");
  list.replaceChildren(...names.map((name) => h("option", { value: name })));
  if (!byId("propose-in").value && names.length) byId("propose-in").value = state.page.groups.length ? state.page.groups[0].namespace : names[0];
}

function proposeFor(namespace) {
  byId("propose-in").value = namespace;
  byId("propose-in").focus();
  askProposal(namespace);
}

async function askProposal(namespace) {
  const mine = state.proposing = { namespace, told: null, text: `A proposal for ${namespace} is being made; rollouts are drawn, which takes seconds.` };
  drawProposed();
  try {
    for (let tries = 0; state.proposing === mine && mine.told === null; tries++) {
      const answer = await fetch(`api/v1/proposal?namespace=${encodeURIComponent(namespace)}`);
      if (answer.status === 200) mine.told = await answer.json();
      else if (answer.status !== 202 || tries >= MOST_TRIES) throw new Error((await answer.text()).trim() || `HTTP ${answer.status}`);
      else await new Promise((done) => setTimeout(done, ASK_AGAIN_MS));
    }
    if (mine.told) mine.text = mine.told.error ? `✗ No proposal for ${namespace}: ${mine.told.error}` : aboutProposed(mine.told);
  } catch (error) {
    mine.text = `✗ No proposal for ${namespace}: ${error.message}`;
  }
  if (state.proposing === mine) drawProposed();
}

function aboutProposed(told) {
  const count = told.proposed.proposals.length;
  return count ? `${counted(count, "AppGroup")} would be proposed for ${told.namespace}, as of ${age(since(told.at))} ago. Nothing was written.` : `No two workloads of ${told.namespace} talk to each other.`;
}

function drawProposed() {
  const { told, text } = state.proposing, box = byId("proposed");
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.edge : undefined;
  byId("propose-status").textContent = text;
  if (!told || told.error) { box.replaceChildren(); return; }
  const gains = new Map(told.proposed.gains.map((gain) => [gain.group, gain]));
  const proposals = told.proposed.proposals;
  box.replaceChildren(...proposals.map((proposal) => proposedBox(proposal, gains.get(proposal.name))),
    ...told.notes.map((note) => h("p", { class: "note" }, note)),
    proposals.length ? h("p", {}, "To write it, after a difference and a question: ", h("code", { class: "command" }, told.command)) : "");
  if (focused !== undefined) { const again = box.querySelector(`[data-edge="${CSS.escape(focused)}"]`); if (again) again.focus(); }
}

function proposedBox(proposal, gain) {
  const group = asGroup(proposal, gain), name = `${proposal.namespace}/${proposal.name}`;
  return h("article", { class: "groupbox proposed", "aria-label": `Proposed AppGroup ${name}` },
    h("div", { class: "grouphead" }, h("h2", {}, name), h("span", { class: "soft" }, proposal.exists ? "exists, and would be changed" : "new"), h("span", { class: "soft" }, `${counted(proposal.dependencies.length, "dependency", "dependencies")}, ${counted(proposal.patches.length, "pod template")} to label`)),
    ...proposal.notes.map((note) => h("p", { class: "soft" }, note)),
    gain ? gainTables(proposal, gain) : null,
    withDetail(group.workloads.length <= LARGEST_DRAWN ? dag(group) : null, edgeDetail(group)),
    group.workloads.length <= LARGEST_DRAWN ? h("p", { class: "note" }, dagLegend(group)) : null);
}

// The graph draws AppGroups; this is one that is not there yet.
function asGroup(proposal, gain) {
  const refs = proposal.manifest.spec.workloads.map((each) => each.workload);
  const selectors = new Map(refs.map((ref) => [`${proposal.namespace}/${ref.name}`, ref.selector]));
  const now = gain ? gain.places_now : {}, then = gain ? gain.places_then : {};
  const pods = (selector) => Object.entries(now[selector] || {}).flatMap(([zone, count]) => Array(count).fill({ zone, node: zone }));
  return {
    namespace: "proposed", name: `${proposal.namespace}/${proposal.name}`,
    workloads: refs.map((ref) => ({ selector: ref.selector, name: ref.name, index: null, pods: pods(ref.selector) })),
    edges: proposal.dependencies.filter((each) => selectors.has(each.client) && selectors.has(each.server)).map((each) => ({
      dependant: selectors.get(each.client), dependency: selectors.get(each.server), verdict: "proposed", cost: null, maxCost: each.max_network_cost, origin: "", destination: "",
      p50Us: null, minBandwidthBps: each.min_bandwidth_bps, trafficBps: each.bytes_per_s * 8, crossingBps: null, month: null })),
    proposal: { moved: refs.map((ref) => ref.selector).filter((selector) => gain && zonesOf(now[selector]) !== zonesOf(then[selector])), placesBefore: now, placesForetold: then },
  };
}

function gainTables(proposal, gain) {
  const amount = (value) => (value === null ? "–" : `${value.toFixed(2)} ${gain.currency}`);
  const numbers = [
    ["Across zones", rate(gain.crossing_now * 8), rate(gain.crossing_then * 8) + (gain.crossing_least < gain.crossing_most ? `, ${rate(gain.crossing_least * 8)} to ${rate(gain.crossing_most * 8)} by who comes first` : "")],
    ["A call, over all bytes", `${Math.round(gain.call_now_us)} µs`, `${Math.round(gain.call_then_us)} µs`],
    ["A month", amount(gain.month_now), gain.month_now === null ? "no prices are configured" : amount(gain.month_then)],
  ];
  const pairs = new Map();
  for (const [side, table] of [[0, gain.zones_now], [1, gain.zones_then]]) {
    for (const [from, row] of Object.entries(table)) for (const [to, bytes] of Object.entries(row)) {
      const key = JSON.stringify([from, to]);
      if (!pairs.has(key)) pairs.set(key, [0, 0]);
      pairs.get(key)[side] += bytes * 8;
    }
  }
  const zones = [...pairs].map(([key, values]) => [...JSON.parse(key).map((zone) => zone || "no zone"), ...values.map(rate)]);
  return [
    gain.unplaced ? h("p", { class: "bad" }, `✗ no room for ${counted(gain.unplaced, "pod")}`) : null,
    sideBySide(`What ${proposal.name} would gain`, [""], numbers), sideBySide(`Bytes between zones by the proposal of ${proposal.name}`, ["From", "To"], zones),
  ];
}

function sideBySide(label, names, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, h("table", {},
    h("thead", {}, h("tr", {}, ...names.map((name) => (name ? h("th", {}, name) : h("td", {}))), ...["Now", "Rolled out"].map((name) => h("th", { class: "n" }, name)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((value, i) => h("td", i >= names.length ? { class: "n" } : {}, value)))))));
}
