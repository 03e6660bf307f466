// Polls the overview; draws the summary and the tabs.

const TABS = ["now", "matrix", "groups"];
const DRAW_BY_TAB = { now: drawNow, matrix: () => { drawMatrix(); drawPairFacts(); }, groups: drawGroups };
// Field of the overview that a tab draws; drawMatrix compares its cells itself.
const FIELD_BY_TAB = { now: "findings", groups: "groups" };
let shownTab = "now";

function showOverview(overview) {
  const previous = state.overview;
  const selectedNames = [state.origin, state.destination].map((i) => state.names[i]);
  state.overview = overview;
  state.names = overview.network.zones.map((zone) => zone.name);
  // Zones may have new positions.
  [state.origin, state.destination] = selectedNames.map((name) => state.names.indexOf(name));
  clockOffsetS = overview.readAt - Date.now() / 1000;
  drawSummary();
  // Drawing the same data again would lose a selection of text.
  const field = FIELD_BY_TAB[shownTab];
  const isUnchanged = previous && field && JSON.stringify(previous[field]) === JSON.stringify(overview[field]);
  if (!isUnchanged) DRAW_BY_TAB[shownTab]();
}

function drawSummary() {
  const network = state.overview.network;
  const zones = pluralize(network.zones.length, "zone");
  const regions = pluralize(new Set(network.zones.map((zone) => zone.region)).size, "region");
  const weight = network.weightName ? ` · ${network.weightName}` : "";
  const remark = network.isUnused ? " (the scheduler does not use it)" : "";
  const topology = network.topology || "no NetworkTopology";
  byId("topology").textContent = makePrintable(`${topology}${weight}${remark} · ${zones}, ${regions}`);
  drawTiles([buildAgentsTile(), buildPairsTile(), buildCostsTile(), buildGroupsTile(), buildBandwidthTile()]);
  drawProblems();
}

function buildAgentsTile() {
  const { up, down } = state.overview.agents;
  const note = down ? `${down} down` : `on ${pluralize(state.overview.network.zones.length, "zone")}`;
  return { tab: "now", label: "Agents", value: up, unit: `of ${up + down} up`, note, style: down ? "bad" : "" };
}

function buildPairsTile() {
  const { measuredAt, cost } = state.overview.matrix;
  const times = measuredAt.filter((time) => time !== null);
  const note = times.length ? `oldest ${formatAge(secondsSince(rangeOf(times)[0]))} ago` : "";
  return { tab: "matrix", label: "Zone pairs measured", value: times.length / 2, unit: `of ${cost.length / 2}`, note };
}

function buildCostsTile() {
  const { weightName, percentile, unitUs } = state.overview.network;
  const [lowest, highest] = rangeOf(state.overview.matrix.cost.filter((cost) => cost !== null));
  const isMeasured = percentile && weightName === "NetperfCosts";
  const note = isMeasured ? `1 = ${formatNumber(unitUs / 1000)} ms of ${percentile}` : weightName || "";
  return { tab: "matrix", label: "Costs", value: highest > 0 ? `${lowest} – ${highest}` : "none", note };
}

function buildGroupsTile() {
  const groups = state.overview.groups;
  const sum = (field) => groups.reduce((total, group) => total + group[field], 0);
  const tile = { tab: "groups", label: "AppGroups", value: groups.length };
  if (!groups.length) return tile;
  tile.unit = `${sum("runningPods")} of ${sum("numMembers")} running`;
  const violated = sum("violatedDependencies");
  if (violated) return { ...tile, note: `${pluralize(violated, "dependency", "dependencies")} violated`, style: "bad" };
  return { ...tile, note: "no dependency violated", style: "good" };
}

function buildBandwidthTile() {
  const { nodesWithCapacity, totalNodes, allocatedBps, allocatableBps } = state.overview.bandwidth;
  return {
    tab: "now",
    label: "Bandwidth allocated",
    value: nodesWithCapacity ? formatPercent(allocatedBps, allocatableBps) : "–",
    unit: nodesWithCapacity ? `of ${formatRate(allocatableBps)}` : "",
    note: `capacity of ${nodesWithCapacity} of ${pluralize(totalNodes, "node")} known`,
  };
}

function drawTiles(tiles) {
  const summary = byId("summary");
  if (summary.children.length !== tiles.length) {
    const buildTile = ({ tab }) => h("button", { type: "button", class: "tile", onclick: () => showTab(tab, true) });
    summary.replaceChildren(...tiles.map(buildTile));
  }
  tiles.forEach(({ label, value, unit, note, style }, i) => {
    summary.children[i].replaceChildren(
      h("div", { class: "label" }, label),
      h("div", { class: "number" }, `${value} `, h("small", {}, unit || "")),
      h("div", { class: `remark ${style || ""}` }, note || " "));
  });
}

// Draws the worst problem in one line, except on the tab that lists all findings.
function drawProblems() {
  const problems = state.overview.findings.filter((finding) => finding.severity !== "info");
  byId("problems").hidden = problems.length === 0 || shownTab === "now";
  if (!problems.length) return;
  const suffix = problems.length > 1 ? ` and ${problems.length - 1} more` : "";
  const attributes = { type: "button", class: "link", onclick: () => showTab("now", true) };
  byId("problems").replaceChildren(h("button", attributes, `✗ ${problems[0].summary}${suffix}`));
}

// Shows a tab; `takesFocus` moves the keyboard's focus to its button.
function showTab(name, takesFocus) {
  shownTab = name;
  for (const tab of TABS) {
    const button = byId(`tab-${tab}`), isShown = tab === name;
    button.setAttribute("aria-selected", String(isShown));
    button.tabIndex = isShown ? 0 : -1;
    byId(`panel-${tab}`).hidden = !isShown;
    if (isShown && takesFocus) button.focus();
  }
  history.replaceState(null, "", `#${name}`);
  if (state.overview) { drawProblems(); DRAW_BY_TAB[name](); }
}

// `connection` is "live" or "lost".
function showConnection(connection, text) {
  byId("live").dataset.state = connection;
  if (byId("live-text").textContent !== text) byId("live-text").textContent = text;
}

const POLL_INTERVAL_MS = 2000, HIDDEN_POLL_INTERVAL_MS = 30000, FETCH_TIMEOUT_MS = 15000, AGES_INTERVAL_MS = 5000;
let etag = "", lastResponseAt = Date.now(), pollTimer = 0, isPolling = false;

// Returns the newest overview and its ETag; null if that overview is shown already. The timeout ends hanging connections.
async function fetchOverview() {
  const headers = etag ? { "If-None-Match": etag } : {};
  const response = await fetch("api/v1/overview", { headers, signal: AbortSignal.timeout(FETCH_TIMEOUT_MS) });
  if (response.status === 304) return null;
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return { overview: await response.json(), etag: response.headers.get("ETag") || "" };
}

async function poll() {
  if (isPolling) return;
  isPolling = true;
  clearTimeout(pollTimer);
  try {
    const response = await fetchOverview();
    lastResponseAt = Date.now();
    if (response) showOrReportError(response);
    else showConnection("live", "live");
  } catch (error) {
    showConnection("lost", `no data for ${Math.round((Date.now() - lastResponseAt) / 1000)} s: ${error.message}`);
  }
  isPolling = false;
  pollTimer = setTimeout(poll, document.hidden ? HIDDEN_POLL_INTERVAL_MS : POLL_INTERVAL_MS);
}

// Keeps the ETag only if the page was drawn completely: otherwise a 304 would report a half-drawn page as live.
function showOrReportError(response) {
  etag = "";
  try {
    showOverview(response.overview);
    etag = response.etag;
    showConnection("live", "live");
  } catch (error) {
    console.error(error);
    showConnection("lost", `the page cannot be drawn: ${error.message}`);
  }
}

// Updates ages without new data. Drawing whole panels again would lose a selection of text.
function drawAges() {
  if (!state.overview || document.hidden) return;
  drawSummary();
  if (shownTab === "matrix") drawPairFacts();
  for (const element of document.querySelectorAll("[data-since]")) {
    element.textContent = `for ${formatAge(secondsSince(Number(element.dataset.since)))}`;
  }
}

function start() {
  startMatrix();
  for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      event.preventDefault();
      showTab(TABS[(TABS.indexOf(shownTab) + step + TABS.length) % TABS.length], true);
    }
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  const linkedTab = location.hash.slice(1);
  showTab(TABS.includes(linkedTab) ? linkedTab : "now");
  setInterval(drawAges, AGES_INTERVAL_MS);
  poll();
}

start();
