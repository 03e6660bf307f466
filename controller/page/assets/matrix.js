// The tab Matrix: a row per origin zone, a column per destination zone, with the signs of `kubectl netaware costs`.
// The table is built once for a set of zones; updates change only different cells, because 100 zones have 9,900 cells.

const drawnMatrix = { key: "", cells: [] };

function drawMatrix() {
  const { network: { zones }, matrix: columns } = state.overview;
  const key = JSON.stringify(zones.map((zone) => [zone.name, zone.region]));
  if (key !== drawnMatrix.key) buildMatrix(zones, key);
  const values = MEASURES[state.measure].valuesOf(columns);
  const range = rangeOf(values.filter((value) => value > 0));
  drawnMatrix.cells.forEach((cell, i) => {
    const value = values[i], text = value === null ? "·" : `${formatNumber(value)}${signOf(columns, i)}`;
    const style = value === null ? "none" : `shade${shadeOf(value, range)}`;
    if (cell.firstChild.data !== text) cell.firstChild.data = text;
    if (cell.className !== style) cell.className = style;
  });
  drawLegend();
}

// Round trips are always measured: signs of inferred and unreachable costs, which use no sample, do not apply to them.
function signOf(columns, i) {
  const { sign } = BASES[columns.basis[i]], isUnmeasured = ["inferred", "unreachable"].includes(columns.basis[i]);
  if (state.measure === "cost" && isUnmeasured) return sign;
  if (columns.qualityFlags[i]) return FLAGGED.sign;
  return isUnmeasured ? "" : sign;
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
  Object.assign(drawnMatrix, { key, cells: [...table.querySelectorAll("[data-to]")] });
  for (const id of ["pair-from", "pair-to"]) {
    const options = zones.map((zone, i) => h("option", { value: i }, zone.name));
    byId(id).replaceChildren(h("option", { value: -1 }, "–"), ...options);
  }
}

function drawLegend() {
  const { network, matrix: columns } = state.overview;
  const isMeasuredCost = state.measure === "cost" && network.weightName === "NetperfCosts";
  const costUnit = `cost; 1 = ${formatNumber(network.unitUs / 1000)} ms of ${network.percentile}, rounded up`;
  const shown = new Set(columns.basis.map((_, i) => signOf(columns, i)));
  const entries = [...Object.values(BASES), FLAGGED].filter(({ sign }) => sign && shown.has(sign));
  const signs = entries.map(({ sign, text }) => `${sign} ${text}`);
  if (MEASURES[state.measure].valuesOf(columns).includes(null)) signs.push("· none");
  const texts = [isMeasuredCost ? costUnit : MEASURES[state.measure].unit, ...signs];
  byId("matrix-legend").replaceChildren(...texts.map((text) => h("span", {}, text)));
}

function selectPair(origin, destination) {
  [state.origin, state.destination] = [origin, destination];
  const selected = findCellIndex(origin, destination);
  drawnMatrix.cells.forEach((cell, i) => cell.toggleAttribute("data-selected", i === selected));
  drawPairFacts();
}

function drawPairFacts() {
  [byId("pair-from").value, byId("pair-to").value] = [state.origin, state.destination];
  const forward = findCellIndex(state.origin, state.destination), reverse = findCellIndex(state.destination, state.origin);
  if (forward < 0) {
    const hint = "Choose a pair to see the measurements behind its cost.";
    byId("pair-facts").replaceChildren(h("p", { class: "soft" }, hint));
    return;
  }
  const columns = state.overview.matrix;
  const valuesAt = (i) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]]));
  const pair = valuesAt(forward), reversePair = valuesAt(reverse);
  const facts = {
    "Cost": pair.cost ?? "none",
    "Reverse cost": reversePair.cost ?? "none",
    "Basis": BASES[pair.basis].text,
    "p50": formatMilliseconds(pair.p50Us),
    "p90": formatMilliseconds(pair.p90Us),
    "p99": formatMilliseconds(pair.p99Us),
    "Jitter": formatMilliseconds(pair.jitterUs),
    "Loss": pair.lossRatio === null ? "–" : `${formatNumber(pair.lossRatio * 100)} %`,
    "Measured": pair.measuredAt === null ? "not yet" : `${formatAge(secondsSince(pair.measuredAt))} ago`,
    "Prober": pair.prober || "–",
    "Nodes": pair.originNode ? `${pair.originNode} to ${pair.destinationNode}` : "–",
  };
  const rows = Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]);
  byId("pair-facts").replaceChildren(
    pair.qualityFlags ? h("p", { class: "bad" }, `✗ ${FLAGGED.text}: ${pair.qualityFlags}`) : "",
    h("dl", { class: "facts" }, ...rows));
}

function startMatrix() {
  const measureSelect = byId("measure"), originSelect = byId("pair-from"), destinationSelect = byId("pair-to");
  measureSelect.replaceChildren(...Object.entries(MEASURES).map(([key, { name }]) => h("option", { value: key }, name)));
  measureSelect.addEventListener("change", () => {
    state.measure = measureSelect.value;
    if (state.overview) drawMatrix();
  });
  byId("matrix-box").addEventListener("click", (event) => {
    const cell = event.target.closest("[data-to]");
    if (cell) selectPair(Number(cell.dataset.from), Number(cell.dataset.to));
  });
  for (const select of [originSelect, destinationSelect]) {
    select.addEventListener("change", () => selectPair(Number(originSelect.value), Number(destinationSelect.value)));
  }
}
