// Putting it together: getting data and keeping them current, the summary, tabs, themes, keys.

const TABS = ["now", "matrix", "map", "groups", "agents", "bandwidth"];
const DRAW = { now: drawNow, matrix: () => { drawMatrix(); drawPairDetail(); }, map: drawMap, groups: drawGroups, agents: drawAgents, bandwidth: drawBandwidth };
const HISTORY = 240;
let shownTab = "matrix";
let dirty = new Set();
let painting = false;
let arriving = true; // an address names things that are only there once the first data are

function accept(page) {
  const before = state.names[state.from] && [state.names[state.from], state.names[state.to]];
  const zone = state.names[state.zone];
  state.page = page;
  state.names = page.network.zones.map((each) => each.name);
  state.index = new Map(state.names.map((name, i) => [name, i]));
  // Positions move when zones come and go; what was selected stays selected by name.
  const find = (name) => (state.index.has(name) ? state.index.get(name) : -1);
  if (before) [state.from, state.to] = before.map(find);
  if (state.from < 0 || state.to < 0) state.from = state.to = -1;
  state.zone = zone === undefined ? -1 : find(zone);
  clockOffset = page.at - Date.now() / 1000;
  state.history.clear();
  page.matrix.at.forEach((_, k) => remember(k));
  repaint(TABS);
  if (arriving) { arriving = false; follow(location.hash); }
}

function change(told) {
  if (!state.page || told.since !== state.page.version) { reload(); return; }
  const page = state.page;
  page.version = told.version;
  page.at = told.at;
  clockOffset = told.at - Date.now() / 1000;
  const touched = new Set();
  if (told.matrix) { accept({ ...page, ...told }); return; }
  const shownIn = { findings: ["now"], network: ["matrix", "map", "agents"], agents: ["agents"], bandwidth: ["bandwidth"], prometheus: ["bandwidth"], agentRows: ["agents"], groups: ["groups", "now"], nodeRows: ["bandwidth"], podRows: ["bandwidth"] };
  for (const section of ["prometheus", "network", "agents", "bandwidth", "findings"]) {
    if (!(section in told)) continue;
    page[section] = told[section];
    for (const tab of shownIn[section] || []) touched.add(tab);
  }
  for (const [list, rows] of Object.entries(told.rows || {})) {
    page[list] = withRows(page[list], rows, ROW_NAMES[list]);
    for (const tab of shownIn[list]) touched.add(tab);
  }
  const columns = Object.values(page.matrix); // a cell has its fields in the order of the columns
  for (const [k, ...fields] of told.cells || []) {
    fields.forEach((value, i) => { columns[i][k] = value; });
    remember(k);
    touched.add("matrix").add("map");
  }
  repaint([...touched]);
}

const ROW_NAMES = { agentRows: ["node"], groups: ["namespace", "name"], nodeRows: ["node"], podRows: ["namespace", "name"] };

function withRows(list, told, fields) {
  const nameOf = (row) => fields.map((field) => row[field]).join("/");
  const rows = new Map(list.map((row) => [nameOf(row), row]));
  for (const row of told.changed || []) rows.set(nameOf(row), row);
  return (told.order || [...rows.keys()]).map((name) => rows.get(name));
}

function remember(k) {
  const m = state.page.matrix;
  if (m.p50[k] === null || m.at[k] === null) return;
  const points = state.history.get(k) || [];
  if (points.length && points[points.length - 1][0] === m.at[k]) return;
  points.push([m.at[k], m.p50[k]]);
  if (points.length > HISTORY) points.shift();
  state.history.set(k, points);
}

// At most once per frame, and only what is seen; other tabs are drawn when they are opened.
function repaint(tabs) {
  for (const tab of tabs) dirty.add(tab);
  if (painting) return;
  painting = true;
  requestAnimationFrame(() => {
    painting = false;
    drawSummary();
    drawNames();
    if (dirty.delete(shownTab)) DRAW[shownTab]();
  });
}

function drawSummary() {
  const page = state.page;
  const network = page.network;
  byId("where").textContent = `${network.topology || "no NetworkTopology"}${network.weights ? ` · ${network.weights}` : ""}${network.unused ? " (the scheduler does not use it)" : ""} · ${counted(network.zones.length, "zone")}, ${counted(new Set(network.zones.map((zone) => zone.region)).size, "region")}`;
  const m = page.matrix;
  let measured = 0, oldest = null, stale = 0, inferred = 0, absent = 0, dead = 0, doubtful = 0, lowest = Infinity, highest = 0;
  for (let k = 0; k < m.cost.length; k++) {
    if (m.at[k] !== null) { measured++; oldest = oldest === null ? m.at[k] : Math.min(oldest, m.at[k]); }
    if (m.basis[k] === "s") stale++;
    if (m.basis[k] === "i") inferred++;
    if (m.basis[k] === "a") absent++;
    if (m.basis[k] === "u") dead++;
    if (m.doubts[k]) doubtful++;
    if (m.cost[k] !== null) { lowest = Math.min(lowest, m.cost[k]); highest = Math.max(highest, m.cost[k]); }
  }
  const groups = page.groups;
  const violated = groups.reduce((sum, group) => sum + group.violated, 0);
  const running = groups.reduce((sum, group) => sum + group.running, 0), members = groups.reduce((sum, group) => sum + group.members, 0);
  const bandwidth = page.bandwidth;
  const wanted = page.agents.states.up + page.agents.states.down;
  const wrong = [dead ? `${dead} unreachable` : "", stale ? `${stale} old` : "", inferred ? `${inferred} inferred` : "", absent ? `${absent} without cost` : "", doubtful ? `${doubtful} not trusted` : ""].filter(Boolean).join(", ");
  tiles([
    ["agents", "Agents", page.agents.states.up, `of ${wanted} up`, page.agents.states.down ? [`${page.agents.states.down} down`, "bad"] : [`on ${counted(network.zones.length, "zone")}`, ""]],
    ["matrix", "Zone pairs measured", measured / 2, `of ${m.cost.length / 2}`, wrong ? [wrong, "bad"] : [oldest === null ? "" : `oldest ${age(since(oldest))} ago`, ""]],
    ["map", "Costs", highest ? `${lowest} – ${highest}` : "none", "", network.percentile && network.weights === "NetperfCosts" ? [`1 = ${number(network.unitUs / 1000)} ms of ${network.percentile}`, ""] : [network.weights || "", ""]],
    ["groups", "AppGroups", groups.length, groups.length ? `${running} of ${members} running` : "", violated ? [`${counted(violated, "dependency", "dependencies")} violated`, "bad"] : [groups.length ? "no dependency violated" : "", groups.length ? "good" : ""]],
    ["bandwidth", "Bandwidth allocated", bandwidth.known ? percent(bandwidth.allocatedBps, bandwidth.capacityBps) : "–", bandwidth.known ? `of ${rate(bandwidth.capacityBps)}` : "", [`${bandwidth.known} of ${counted(bandwidth.totalNodes, "node")} known`, bandwidth.known < bandwidth.totalNodes ? "" : ""]],
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
  if (state.page) drawProblems();
  if (location.hash.slice(1).split("/")[0] !== name) keepPlace(name);
  if (state.page) { dirty.add(name); repaint([]); }
}

function setLive(kind, text) {
  byId("live").dataset.state = kind;
  if (byId("live-text").textContent !== text) byId("live-text").textContent = text;
}

// The server says something every 5 s. A connection that is silent for longer may hang without any error: its server is frozen,
// or something between lost it.
const SILENT_MS = 15000, REOPEN_MS = 45000;
let heardAt = Date.now(), openedAt = Date.now();
function heard() { heardAt = Date.now(); setLive("live", "live"); }
function watchSilence() {
  if (!stream || document.hidden) return;
  const silent = Date.now() - heardAt;
  if (silent < SILENT_MS) return;
  setLive("lost", `no data for ${Math.round(silent / 1000)} s`);
  if (silent > REOPEN_MS && Date.now() - openedAt > REOPEN_MS) listen();
}

let stream = null;
function listen() {
  if (stream) stream.close();
  openedAt = Date.now();
  stream = new EventSource(`api/v1/events?since=${state.page ? state.page.version : ""}`);
  stream.addEventListener("open", heard);
  stream.addEventListener("beat", heard);
  stream.addEventListener("error", () => setLive("lost", "connection lost, trying again"));
  stream.addEventListener("page", (event) => { heard(); accept(JSON.parse(event.data)); });
  stream.addEventListener("change", (event) => { heard(); change(JSON.parse(event.data)); });
}

async function reload() {
  try {
    const answer = await fetch("api/v1/overview");
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    accept(await answer.json());
    listen();
  } catch (error) {
    setLive("lost", `no answer: ${error.message}`);
    setTimeout(reload, 3000);
  }
}

// A browser keeps pages that were left for the way back, with their connections, of which it allows six to one server.
function leave() { if (stream) stream.close(); }
function comeBack(event) { if (event.persisted) reload(); }

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  try { localStorage.setItem("netaware-theme", theme); } catch { /* storage may be forbidden; the theme then lasts for this visit */ }
  palette = null;
  if (state.page) repaint(TABS);
}
function currentTheme() { return document.documentElement.dataset.theme || "auto"; }
function nextTheme() { setTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]); }

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key >= "0" && event.key < String(TABS.length)) showTab(TABS[event.key], true);
  else if (event.key === "/") { event.preventDefault(); byId("search").focus(); }
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") byId("keys").showModal();
  else if (event.key === "Escape" && shownTab === "map" && state.zone >= 0) chooseZone(-1);
  else if (event.key === "Escape" && shownTab === "groups" && state.edge) chooseEdge("");
}

function start() {
  let theme = "auto";
  try { theme = localStorage.getItem("netaware-theme") || "auto"; } catch { /* as above */ }
  setTheme(THEMES.includes(theme) ? theme : "auto");
  startMatrix();
  byId("theme").addEventListener("click", nextTheme);
  byId("help").addEventListener("click", () => byId("keys").showModal());
  for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); showTab(TABS[(TABS.indexOf(shownTab) + step + TABS.length) % TABS.length], true); }
  });
  document.addEventListener("keydown", keys);
  addEventListener("pagehide", leave);
  addEventListener("pageshow", comeBack);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette = null; if (state.page) repaint(TABS); });
  new ResizeObserver(() => { if (state.page && ["matrix", "map"].includes(shownTab)) repaint([shownTab]); }).observe(byId("main"));
  if (!follow(location.hash)) showTab("now");
  addEventListener("hashchange", () => follow(location.hash));
  byId("seek").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  byId("search").addEventListener("change", search);
  setInterval(watchSilence, 1000);
  // Ages grow without any message.
  setInterval(() => { if (state.page && !document.hidden) { drawSummary(); if (shownTab === "matrix") drawPairDetail(); } }, 5000);
  reload();
}

start();
