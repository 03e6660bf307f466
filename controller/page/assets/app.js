// Polls the overview; draws the summary and the tabs.

const TABS = ["now", "matrix", "groups"];
const DRAW_TAB = { now: drawNow, matrix: () => { drawMatrix(); drawPairDetail(); }, groups: drawGroups };
const DATA_OF_TAB = { now: "findings", groups: "groups" };
let shownTab = "now";

function showOverview(page) {
  const oldPage = state.page;
  const selectedNames = [state.from, state.to].map((i) => state.names[i]);
  state.page = page;
  state.names = page.network.zones.map((zone) => zone.name);
  state.positions = new Map(state.names.map((name, i) => [name, i]));
  // Zones may have new positions.
  [state.from, state.to] = selectedNames.map((name) => state.positions.get(name) ?? -1);
  clockOffset = page.at - Date.now() / 1000;
  drawSummary();
  // Drawing the same data again would lose a selection of text. The matrix compares its cells itself.
  const data = DATA_OF_TAB[shownTab];
  if (!oldPage || !data || JSON.stringify(oldPage[data]) !== JSON.stringify(page[data])) DRAW_TAB[shownTab]();
}

function drawSummary() {
  const network = state.page.network;
  const zones = pluralize(network.zones.length, "zone");
  const regions = pluralize(new Set(network.zones.map((zone) => zone.region)).size, "region");
  const weights = network.weights ? ` · ${network.weights}` : "";
  const unused = network.unused ? " (the scheduler does not use it)" : "";
  const topology = network.topology || "no NetworkTopology";
  byId("where").textContent = makePrintable(`${topology}${weights}${unused} · ${zones}, ${regions}`);
  drawTiles([agentsTile(), pairsTile(), costsTile(), groupsTile(), bandwidthTile()]);
  drawProblems();
}

function agentsTile() {
  const { up, down } = state.page.agents.states;
  const note = down ? `${down} down` : `on ${pluralize(state.page.network.zones.length, "zone")}`;
  return { tab: "now", label: "Agents", value: up, unit: `of ${up + down} up`, note, style: down ? "bad" : "" };
}

function pairsTile() {
  const { at, cost } = state.page.matrix;
  const times = at.filter((time) => time !== null);
  const note = times.length ? `oldest ${age(secondsSince(rangeOf(times)[0]))} ago` : "";
  return { tab: "matrix", label: "Zone pairs measured", value: times.length / 2, unit: `of ${cost.length / 2}`, note };
}

function costsTile() {
  const { weights, percentile, unitUs } = state.page.network;
  const [lowest, highest] = rangeOf(state.page.matrix.cost.filter((cost) => cost !== null));
  const isMeasured = percentile && weights === "NetperfCosts";
  const note = isMeasured ? `1 = ${number(unitUs / 1000)} ms of ${percentile}` : weights || "";
  return { tab: "matrix", label: "Costs", value: highest > 0 ? `${lowest} – ${highest}` : "none", note };
}

function groupsTile() {
  const groups = state.page.groups;
  const sum = (field) => groups.reduce((total, group) => total + group[field], 0);
  const tile = { tab: "groups", label: "AppGroups", value: groups.length };
  if (!groups.length) return tile;
  tile.unit = `${sum("running")} of ${sum("members")} running`;
  const violated = sum("violated");
  if (violated) return { ...tile, note: `${pluralize(violated, "dependency", "dependencies")} violated`, style: "bad" };
  return { ...tile, note: "no dependency violated", style: "good" };
}

function bandwidthTile() {
  const { known, totalNodes, allocatedBps, capacityBps } = state.page.bandwidth;
  return {
    tab: "now",
    label: "Bandwidth allocated",
    value: known ? percent(allocatedBps, capacityBps) : "–",
    unit: known ? `of ${rate(capacityBps)}` : "",
    note: `${known} of ${pluralize(totalNodes, "node")} known`,
  };
}

function drawTiles(tiles) {
  const box = byId("summary");
  if (box.children.length !== tiles.length) {
    const button = ({ tab }) => h("button", { type: "button", class: "tile", onclick: () => showTab(tab, true) });
    box.replaceChildren(...tiles.map(button));
  }
  tiles.forEach(({ label, value, unit, note, style }, i) => {
    box.children[i].replaceChildren(
      h("div", { class: "label" }, label),
      h("div", { class: "number" }, `${value} `, h("small", {}, unit || "")),
      h("div", { class: `remark ${style || ""}` }, note || " "));
  });
}

// Draws the worst finding in one line, except on the tab that lists all findings.
function drawProblems() {
  const problems = state.page.findings.filter((finding) => finding.severity !== "info");
  byId("problems").hidden = problems.length === 0 || shownTab === "now";
  if (!problems.length) return;
  const more = problems.length > 1 ? ` and ${problems.length - 1} more` : "";
  const attributes = { type: "button", class: "link", onclick: () => showTab("now", true) };
  byId("problems").replaceChildren(h("button", attributes, `✗ ${problems[0].summary}${more}`));
}

function showTab(name, focus) {
  shownTab = name;
  for (const tab of TABS) {
    const button = byId(`tab-${tab}`), isShown = tab === name;
    button.setAttribute("aria-selected", String(isShown));
    button.tabIndex = isShown ? 0 : -1;
    byId(`panel-${tab}`).hidden = !isShown;
    if (isShown && focus) button.focus();
  }
  history.replaceState(null, "", `#${name}`);
  if (state.page) { drawProblems(); DRAW_TAB[name](); }
}

// Shows the state of the connection: "live" or "lost".
function setLive(connection, text) {
  byId("live").dataset.state = connection;
  if (byId("live-text").textContent !== text) byId("live-text").textContent = text;
}

const POLL_MS = 2000, HIDDEN_POLL_MS = 30000, TIMEOUT_MS = 15000, AGES_MS = 5000;
let etag = "", lastResponseAt = Date.now(), pollTimer = 0, isPolling = false;

// The newest overview and its ETag; null if it is shown already. The timeout ends connections that hang.
async function fetchOverview() {
  const headers = etag ? { "If-None-Match": etag } : {};
  const response = await fetch("api/v1/overview", { headers, signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (response.status === 304) return null;
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return { page: await response.json(), etag: response.headers.get("ETag") || "" };
}

async function poll() {
  if (isPolling) return;
  isPolling = true;
  clearTimeout(pollTimer);
  try {
    const overview = await fetchOverview();
    lastResponseAt = Date.now();
    if (overview) drawOrReport(overview);
    else setLive("live", "live");
  } catch (error) {
    setLive("lost", `no data for ${Math.round((Date.now() - lastResponseAt) / 1000)} s: ${error.message}`);
  }
  isPolling = false;
  pollTimer = setTimeout(poll, document.hidden ? HIDDEN_POLL_MS : POLL_MS);
}

// Keeps the ETag only of a page that was drawn whole: otherwise a 304 would report a half-drawn page as live.
function drawOrReport(overview) {
  etag = "";
  try {
    showOverview(overview.page);
    etag = overview.etag;
    setLive("live", "live");
  } catch (error) {
    console.error(error);
    setLive("lost", `the page cannot be drawn: ${error.message}`);
  }
}

// Updates ages without new data, and without drawing panels again, which would lose a selection of text.
function drawAges() {
  if (!state.page || document.hidden) return;
  drawSummary();
  if (shownTab === "matrix") drawPairDetail();
  for (const element of document.querySelectorAll("[data-since]")) {
    element.textContent = `for ${age(secondsSince(Number(element.dataset.since)))}`;
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
  const tab = location.hash.slice(1);
  showTab(TABS.includes(tab) ? tab : "now");
  setInterval(drawAges, AGES_MS);
  poll();
}

start();
