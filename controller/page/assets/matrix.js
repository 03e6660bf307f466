// The matrix of zones: a row per origin, a column per destination, with the signs of `kubectl netaware costs`.
// Built once for a set of zones; updates change only cells that look different, because 100 zones have 9,900 cells.

const matrix = { key: "", cells: [] };

function drawMatrix() {
  const { network: { zones }, matrix: columns } = state.page;
  const key = JSON.stringify(zones.map((zone) => [zone.name, zone.region]));
  if (key !== matrix.key) buildMatrix(zones, key);
  const values = columns.cost.map((_, i) => MEASURES[state.measure].valueOf(columns, i));
  const range = rangeOf(values.filter((value) => value > 0));
  matrix.cells.forEach((cell, i) => {
    const value = values[i], sign = columns.flags[i] ? FLAGGED.sign : BASES[columns.basis[i]].sign;
    const text = value === null ? "·" : `${number(value)}${sign}`;
    const style = value === null ? "none" : `shade${shadeOf(value, range)}`;
    if (cell.firstChild.data !== text) cell.firstChild.data = text;
    if (cell.className !== style) cell.className = style;
  });
  drawLegend();
}

function buildMatrix(zones, key) {
  const header = zones.map((zone) => h("th", { scope: "col" }, h("span", {}, zone.name)));
  const rows = zones.map((zone, i) => {
    const isNewRegion = i > 0 && zone.region !== zones[i - 1].region;
    const cells = zones.map((_, j) => (i === j ? h("td", {}) : h("td", { "data-from": i, "data-to": j }, "·")));
    const name = h("th", { scope: "row", title: zone.region || "no region" }, zone.name);
    return h("tr", { class: isNewRegion ? "region" : null }, name, ...cells);
  });
  const head = h("thead", {}, h("tr", {}, h("td", {}, "from \\ to"), ...header));
  const table = h("table", { class: "matrix" }, head, h("tbody", {}, ...rows));
  byId("matrix-box").replaceChildren(table);
  Object.assign(matrix, { key, cells: [...table.querySelectorAll("[data-to]")] });
  for (const id of ["pair-from", "pair-to"]) {
    const options = zones.map((zone, i) => h("option", { value: i }, zone.name));
    byId(id).replaceChildren(h("option", { value: -1 }, "–"), ...options);
  }
}

function drawLegend() {
  const { network, matrix: columns } = state.page;
  const isOurCost = state.measure === "cost" && network.weights === "NetperfCosts";
  const ourUnit = `cost; 1 = ${number(network.unitUs / 1000)} ms of ${network.percentile}, rounded up`;
  const entries = Object.entries(BASES).filter(([basis, { sign }]) => sign && columns.basis.includes(basis));
  const signs = entries.map(([, { sign, text }]) => `${sign} ${text}`);
  if (columns.flags.some(Boolean)) signs.push(`${FLAGGED.sign} ${FLAGGED.text}`);
  if (columns.cost.includes(null)) signs.push("· none");
  const texts = [isOurCost ? ourUnit : MEASURES[state.measure].unit, ...signs];
  byId("matrix-legend").replaceChildren(...texts.map((text) => h("span", {}, text)));
}

function selectPair(from, to) {
  [state.from, state.to] = [from, to];
  const selected = cellIndex(from, to);
  matrix.cells.forEach((cell, i) => cell.toggleAttribute("data-selected", i === selected));
  drawPairDetail();
}

function drawPairDetail() {
  [byId("pair-from").value, byId("pair-to").value] = [state.from, state.to];
  const there = cellIndex(state.from, state.to), back = cellIndex(state.to, state.from);
  if (there < 0) {
    const hint = "Choose a pair to see the measurements behind its cost.";
    byId("pair-facts").replaceChildren(h("p", { class: "soft" }, hint));
    return;
  }
  const columns = state.page.matrix;
  const { cost, basis, p50, p90, p99, jitter, loss, at, prober, flags } =
    Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[there]]));
  const nodes = columns.nodes[there] || columns.nodes[back];
  const facts = {
    "Cost": cost ?? "none",
    "The other way": columns.cost[back] ?? "none",
    "Rests on": BASES[basis].text,
    "p50": milliseconds(p50),
    "p90": milliseconds(p90),
    "p99": milliseconds(p99),
    "Jitter": milliseconds(jitter),
    "Loss": loss === null ? "–" : `${number(loss * 100)} %`,
    "Measured": at === null ? "not yet" : `${age(secondsSince(at))} ago`,
    "By": prober || "–",
    "Between": nodes ? nodes.replace(" ", " and ") : "–",
  };
  const rows = Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]);
  byId("pair-facts").replaceChildren(
    flags ? h("p", { class: "bad" }, `✗ ${FLAGGED.text}: ${flags}`) : "",
    h("dl", { class: "facts" }, ...rows));
}

function startMatrix() {
  const measure = byId("measure"), from = byId("pair-from"), to = byId("pair-to");
  measure.replaceChildren(...Object.entries(MEASURES).map(([key, { name }]) => h("option", { value: key }, name)));
  measure.addEventListener("change", () => {
    state.measure = measure.value;
    if (state.page) drawMatrix();
  });
  byId("matrix-box").addEventListener("click", (event) => {
    const cell = event.target.closest("[data-to]");
    if (cell) selectPair(Number(cell.dataset.from), Number(cell.dataset.to));
  });
  for (const select of [from, to]) {
    select.addEventListener("change", () => selectPair(Number(from.value), Number(to.value)));
  }
}
