// The matrix as a table: a row per origin, a column per destination, the signs of `kubectl netaware costs` behind the numbers.
// Built once; then only cells that look different are touched, since at 100 zones there are 9,900.

const matrix = { key: "", cells: [] };
const MARKS = { stale: ["~", "old measurement"], inferred: ["*", "inferred from a path"], unreachable: ["x", "unreachable"], "!": ["!", "newest sample not trusted"] };

function drawMatrix() {
  const zones = state.page.network.zones, m = state.page.matrix;
  const key = JSON.stringify(zones.map((zone) => [zone.name, zone.region]));
  if (key !== matrix.key) buildMatrix(zones, key);
  const values = m.cost.map((_, k) => MEASURES[state.measure].of(m, k));
  const ends = classes(values);
  matrix.cells.forEach((cell, k) => {
    const value = values[k], mark = m.flags[k] ? "!" : MARKS[m.basis[k]]?.[0] ?? "";
    const text = value === null ? "·" : `${number(value)}${mark}`;
    const look = value === null ? "none" : `shade${shadeOf(value, ends) + 1}`;
    if (cell.firstChild.data !== text) cell.firstChild.data = text;
    if (cell.className !== look) cell.className = look;
  });
  drawLegend();
}

function buildMatrix(zones, key) {
  const header = zones.map((zone) => h("th", { scope: "col" }, h("span", {}, zone.name)));
  const rows = zones.map((zone, i) => h("tr", { class: i && zone.region !== zones[i - 1].region ? "region" : null }, h("th", { scope: "row", title: zone.region || "no region" }, zone.name),
    ...zones.map((_, j) => (i === j ? h("td", {}) : h("td", { "data-from": i, "data-to": j }, "·")))));
  const grid = h("table", { class: "matrix" }, h("thead", {}, h("tr", {}, h("td", {}, "from \\ to"), ...header)), h("tbody", {}, ...rows));
  byId("matrix-box").replaceChildren(grid);
  Object.assign(matrix, { key, cells: [...grid.querySelectorAll("[data-to]")] });
  for (const id of ["pair-from", "pair-to"]) byId(id).replaceChildren(h("option", { value: -1 }, "–"), ...zones.map((zone, i) => h("option", { value: i }, zone.name)));
}

function drawLegend() {
  const network = state.page.network, m = state.page.matrix;
  const unit = state.measure === "cost" && network.weights === "NetperfCosts"
    ? `cost; 1 = ${number(network.unitUs / 1000)} ms of ${network.percentile}, rounded up` : MEASURES[state.measure].unit;
  const marks = Object.entries(MARKS).filter(([basis]) => (basis === "!" ? m.flags.some(Boolean) : m.basis.includes(basis))).map(([, [mark, text]]) => h("span", {}, `${mark} ${text}`));
  byId("matrix-legend").replaceChildren(h("span", {}, unit), ...marks, m.cost.includes(null) ? h("span", {}, "· none") : "");
}

function choosePair(from, to) {
  [state.from, state.to] = [from, to];
  const chosen = cellIndex(from, to);
  matrix.cells.forEach((cell, k) => cell.toggleAttribute("data-chosen", k === chosen));
  drawPairDetail();
}

function drawPairDetail() {
  [byId("pair-from").value, byId("pair-to").value] = [state.from, state.to];
  const k = cellIndex(state.from, state.to), m = state.page.matrix;
  if (k < 0) {
    byId("pair-facts").replaceChildren(h("p", { class: "soft" }, "Choose a pair to see what its cost rests on."));
    return;
  }
  const back = cellIndex(state.to, state.from), nodes = m.nodes[k] || m.nodes[back];
  const facts = [
    ["Cost", m.cost[k] ?? "none"], ["The other way", m.cost[back] ?? "none"], ["Rests on", BASES[m.basis[k]]],
    ["p50", ms(m.p50[k])], ["p90", ms(m.p90[k])], ["p99", ms(m.p99[k])], ["Jitter", ms(m.jitter[k])], ["Loss", m.loss[k] === null ? "–" : `${number(m.loss[k] * 100)} %`],
    ["Measured", m.at[k] === null ? "not yet" : `${age(since(m.at[k]))} ago`], ["By", m.prober[k] || "–"], ["Between", nodes ? nodes.replace(" ", " and ") : "–"],
  ];
  byId("pair-facts").replaceChildren(
    m.flags[k] ? h("p", { class: "bad" }, `✗ newest sample not trusted: ${m.flags[k]}`) : "",
    h("dl", { class: "facts" }, ...facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])));
}

function startMatrix() {
  byId("measure").replaceChildren(...Object.entries(MEASURES).map(([key, { name }]) => h("option", { value: key }, name)));
  byId("measure").addEventListener("change", () => { state.measure = byId("measure").value; if (state.page) drawMatrix(); });
  byId("matrix-box").addEventListener("click", (event) => {
    const cell = event.target.closest("[data-to]");
    if (cell) choosePair(Number(cell.dataset.from), Number(cell.dataset.to));
  });
  for (const id of ["pair-from", "pair-to"]) byId(id).addEventListener("change", () => choosePair(Number(byId("pair-from").value), Number(byId("pair-to").value)));
}
