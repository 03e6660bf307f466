// Putting it together: getting data and keeping them current, the summary, tabs, keys.

const TABS = ["now", "matrix", "groups"];
const DRAW = { now: drawNow, matrix: () => { drawMatrix(); drawPairDetail(); }, groups: drawGroups };
const SHOWN = { now: "findings", groups: "groups" };
let shownTab = "now";

function accept(page) {
  const old = state.page;
  const chosen = [state.from, state.to].map((i) => state.names[i]);
  state.page = page;
  state.names = page.network.zones.map((each) => each.name);
  state.index = new Map(state.names.map((name, i) => [name, i]));
  // Positions move when zones come and go; what was selected stays selected by name.
  [state.from, state.to] = chosen.map((name) => state.index.get(name) ?? -1);
  clockOffset = page.at - Date.now() / 1000;
  drawSummary();
  // Drawing again would lose what is selected. The matrix is large, and finds by itself which cells look different.
  const shown = SHOWN[shownTab];
  if (!old || !shown || JSON.stringify(old[shown]) !== JSON.stringify(page[shown])) DRAW[shownTab]();
}

function drawSummary() {
  const page = state.page;
  const network = page.network;
  byId("where").textContent = plain(`${network.topology || "no NetworkTopology"}${network.weights ? ` · ${network.weights}` : ""}${network.unused ? " (the scheduler does not use it)" : ""} · ${counted(network.zones.length, "zone")}, ${counted(new Set(network.zones.map((zone) => zone.region)).size, "region")}`);
  const m = page.matrix;
  let measured = 0, oldest = null, lowest = Infinity, highest = 0;
  for (let k = 0; k < m.cost.length; k++) {
    if (m.at[k] !== null) { measured++; oldest = oldest === null ? m.at[k] : Math.min(oldest, m.at[k]); }
    if (m.cost[k] !== null) { lowest = Math.min(lowest, m.cost[k]); highest = Math.max(highest, m.cost[k]); }
  }
  const groups = page.groups;
  const violated = groups.reduce((sum, group) => sum + group.violated, 0);
  const running = groups.reduce((sum, group) => sum + group.running, 0), members = groups.reduce((sum, group) => sum + group.members, 0);
  const bandwidth = page.bandwidth;
  const wanted = page.agents.states.up + page.agents.states.down;
  tiles([
    ["now", "Agents", page.agents.states.up, `of ${wanted} up`, page.agents.states.down ? [`${page.agents.states.down} down`, "bad"] : [`on ${counted(network.zones.length, "zone")}`, ""]],
    ["matrix", "Zone pairs measured", measured / 2, `of ${m.cost.length / 2}`, [oldest === null ? "" : `oldest ${age(since(oldest))} ago`, ""]],
    ["matrix", "Costs", highest ? `${lowest} – ${highest}` : "none", "", network.percentile && network.weights === "NetperfCosts" ? [`1 = ${number(network.unitUs / 1000)} ms of ${network.percentile}`, ""] : [network.weights || "", ""]],
    ["groups", "AppGroups", groups.length, groups.length ? `${running} of ${members} running` : "", violated ? [`${counted(violated, "dependency", "dependencies")} violated`, "bad"] : [groups.length ? "no dependency violated" : "", groups.length ? "good" : ""]],
    ["now", "Bandwidth allocated", bandwidth.known ? percent(bandwidth.allocatedBps, bandwidth.capacityBps) : "–", bandwidth.known ? `of ${rate(bandwidth.capacityBps)}` : "", [`${bandwidth.known} of ${counted(bandwidth.totalNodes, "node")} known`, ""]],
  ]);
  drawProblems();
}

function tiles(list) {
  const box = byId("summary");
  if (box.children.length !== list.length) box.replaceChildren(...list.map(([tab]) => h("button", { type: "button", class: "tile", onclick: () => showTab(tab, true) })));
  list.forEach(([, what, value, small, [more, style]], i) => {
    box.children[i].replaceChildren(h("div", { class: "what" }, what), h("div", { class: "number" }, `${value} `, h("small", {}, small)), h("div", { class: `more ${style}` }, more || " "));
  });
}

// The worst in one line, on every view but the one that tells all of it.
function drawProblems() {
  const wrong = state.page.findings.filter((finding) => finding.severity !== "info");
  byId("problems").hidden = wrong.length === 0 || shownTab === "now";
  if (wrong.length) byId("problems").replaceChildren(h("button", { type: "button", class: "link", onclick: () => showTab("now", true) }, `✗ ${wrong[0].summary}${wrong.length > 1 ? ` and ${wrong.length - 1} more` : ""}`));
}

function showTab(name, focus) {
  shownTab = name;
  for (const tab of TABS) {
    const button = byId(`tab-${tab}`), chosen = tab === name;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    byId(`panel-${tab}`).hidden = !chosen;
    if (chosen && focus) button.focus();
  }
  history.replaceState(null, "", `#${name}`);
  if (state.page) { drawProblems(); DRAW[name](); }
}

function setLive(kind, text) {
  byId("live").dataset.state = kind;
  if (byId("live-text").textContent !== text) byId("live-text").textContent = text;
}

const POLL_MS = 2000, HIDDEN_POLL_MS = 30000, TIMEOUT_MS = 15000;
let etag = "", heardAt = Date.now(), nextPoll = 0;

// Asks for what is newer than what is shown; a connection that hangs is given up, since it may do so without any error.
async function poll() {
  clearTimeout(nextPoll);
  try {
    const answer = await fetch("api/v1/overview", { headers: etag ? { "If-None-Match": etag } : {}, signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      const page = await answer.json();
      etag = answer.headers.get("ETag") || "";
      accept(page);
    }
    heardAt = Date.now();
    setLive("live", "live");
  } catch (error) {
    setLive("lost", `no data for ${Math.round((Date.now() - heardAt) / 1000)} s: ${error.message}`);
  }
  clearTimeout(nextPoll);
  nextPoll = setTimeout(poll, document.hidden ? HIDDEN_POLL_MS : POLL_MS);
}

function start() {
  startMatrix();
  for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); showTab(TABS[(TABS.indexOf(shownTab) + step + TABS.length) % TABS.length], true); }
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  const wanted = location.hash.slice(1);
  showTab(TABS.includes(wanted) ? wanted : "now");
  // Ages grow without any message.
  setInterval(() => { if (state.page && !document.hidden) { drawSummary(); if (shownTab === "matrix") drawPairDetail(); } }, 5000);
  poll();
}

start();
