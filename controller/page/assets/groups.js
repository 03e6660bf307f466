// The tab AppGroups: each group as a graph, callers left of their dependencies, and as a table of dependencies.

const MAX_DRAWN_WORKLOADS = 60, MAX_LABELS = 3, MAX_STOPS = 5, ORDERING_ROUNDS = 6;

function drawGroups() {
  const panel = byId("panel-groups");
  const groups = state.page.groups;
  if (!groups.length) {
    panel.replaceChildren(h("p", { class: "note" }, "There are no AppGroups."));
    return;
  }
  const open = new Set([...panel.querySelectorAll("details[open]")].map((details) => details.dataset.group));
  panel.replaceChildren(...groups.map((group) => groupBox(group, open)));
}

function groupBox(group, open) {
  const key = `${group.namespace}/${group.name}`;
  const facts = [
    `${group.running} of ${group.members} members running`,
    group.gated ? `${group.gated} gated` : "",
    group.pending ? `${group.pending} pending` : "",
    `total cost ${group.totalCost}`,
  ].filter(Boolean);
  const isDrawn = group.workloads.length <= MAX_DRAWN_WORKLOADS;
  return h("article", { class: "groupbox", "data-group": key, "aria-label": `AppGroup ${key}` },
    h("div", { class: "grouphead" },
      h("h2", {}, key),
      groupSummary(group),
      h("span", { class: "soft" }, facts.join(", ")),
      h("span", { class: "soft" }, group.algorithm)),
    h("p", { class: "note" }, `Order: ${group.order.join(" ")}`),
    ...groupRemarks(group),
    isDrawn ? drawGraph(group) : null,
    h("details", { "data-group": key, open: open.has(key) || !isDrawn },
      h("summary", {}, pluralize(group.edges.length, "dependency", "dependencies")),
      edgeTable(group)));
}

function countPlaced(group) { return group.edges.filter((edge) => edge.state !== "idle").length; }

function groupSummary(group) {
  const placed = countPlaced(group);
  if (!placed) return h("span", { class: "soft" }, "nothing placed");
  if (!group.violated) return h("span", { class: "good" }, `✓ ${placed} placed dependencies within their limits`);
  return h("span", { class: "bad" }, `✗ ${group.violated} of ${placed} placed dependencies violated`);
}

// Faults, conditions that do not hold, and what the loss of a zone would stop.
function groupRemarks(group) {
  const faults = group.faults.map((fault) => h("p", { class: "bad" }, `✗ ${fault}`));
  const unmet = group.conditions.filter((condition) => condition.status !== "True");
  const texts = unmet.map(({ type, status, message, reason }) => `${type} ${status}: ${message || reason}`);
  const losses = group.zoneLosses.filter((loss) => loss.stops.length);
  if (losses.length) {
    const stops = losses.map((loss) => `${loss.zone}: ${joinFirst(loss.stops, MAX_STOPS)} would stop`);
    texts.push(`Without ${stops.join("; ")}`);
  } else if (countPlaced(group) && group.zoneLosses.length > 1) {
    texts.push("Every workload survives the loss of any one zone.");
  }
  return [...faults, ...texts.map((text) => h("p", { class: "soft" }, text))];
}

// Workloads by column of a layered layout: the column is the longest path from a root, the row the callers' mean row.
function layOutColumns(group) {
  const depth = new Map(group.workloads.map((workload) => [workload.selector, 0]));
  // The number of workloads bounds the rounds and the depth, because a cycle would never end.
  for (let round = 0; round < group.workloads.length; round++) {
    let moved = false;
    for (const edge of group.edges) {
      const next = Math.min(depth.get(edge.dependent) + 1, group.workloads.length - 1);
      if (depth.get(edge.dependency) < next && round < group.workloads.length - 1) {
        depth.set(edge.dependency, next);
        moved = true;
      }
    }
    if (!moved) break;
  }
  const used = [...new Set(depth.values())].sort((a, b) => a - b);
  const columns = used.map((d) => group.workloads.filter((workload) => depth.get(workload.selector) === d));
  const row = new Map();
  columns.forEach((column) => column.forEach((workload, i) => row.set(workload.selector, i)));
  for (let round = 0; round < ORDERING_ROUNDS; round++) {
    columns.forEach((column, c) => {
      if (c === 0) return;
      const meanRow = (workload) => {
        const calls = group.edges.filter((edge) => edge.dependency === workload.selector);
        const rows = calls.map((edge) => row.get(edge.dependent));
        return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : row.get(workload.selector);
      };
      column.sort((a, b) => meanRow(a) - meanRow(b) || row.get(a.selector) - row.get(b.selector));
      column.forEach((workload, i) => row.set(workload.selector, i));
    });
  }
  return columns;
}

const BOX = { width: 212, height: 50, gapX: 112, gapY: 18 };

function drawGraph(group) {
  const columns = layOutColumns(group);
  const tallest = Math.max(...columns.map((column) => column.length));
  const width = columns.length * (BOX.width + BOX.gapX) - BOX.gapX + 4;
  const height = tallest * (BOX.height + BOX.gapY) - BOX.gapY + 4;
  const positionOf = new Map();
  columns.forEach((column, c) => {
    const start = (height - (column.length * (BOX.height + BOX.gapY) - BOX.gapY)) / 2;
    column.forEach((workload, r) => {
      positionOf.set(workload.selector, { x: 2 + c * (BOX.width + BOX.gapX), y: start + r * (BOX.height + BOX.gapY) });
    });
  });
  const edges = group.edges.map((edge) => drawEdge(group, edge, positionOf));
  const boxes = group.workloads.map((workload) => drawWorkload(workload, positionOf.get(workload.selector)));
  const label = `Dependencies of ${group.name}; the table below has the same as text`;
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Graph of ${group.name}` },
    svg("svg", { class: "dag", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
      ...edges.map(({ line }) => line),
      ...boxes,
      ...edges.map(({ cost }) => cost)));
}

// The line of a dependency, and the text of its cost, which is drawn over the boxes.
function drawEdge(group, edge, positionOf) {
  const caller = positionOf.get(edge.dependent), callee = positionOf.get(edge.dependency);
  const isBackward = callee.x <= caller.x;
  const x1 = caller.x + BOX.width, y1 = caller.y + BOX.height / 2;
  const x2 = isBackward ? callee.x + BOX.width : callee.x, y2 = callee.y + BOX.height / 2;
  const bend = isBackward ? 60 : Math.max(30, (x2 - x1) / 2);
  const path = `M${x1} ${y1}C${x1 + bend} ${y1} ${isBackward ? x2 + bend : x2 - bend} ${y2} ${x2} ${y2}`;
  const measured = edge.p50Us === null ? "" : `${milliseconds(edge.p50Us)}, ${edge.origin} to ${edge.destination}; `;
  const title = `${edge.dependent} → ${edge.dependency}: ${measured}${EDGE_STATES[edge.state].text}`;
  const line = svg("path", { class: edge.state, d: path }, svg("title", {}, title));
  if (edge.cost === null) return { line, cost: null };
  // Costs of the callers of one dependency are stacked next to its box.
  const siblings = group.edges.filter((other) => other.dependency === edge.dependency && other.cost !== null);
  const position = siblings.indexOf(edge) - (siblings.length - 1) / 2;
  const offset = siblings.length > 1 ? position * Math.min(13, 44 / siblings.length) : 0;
  let label = siblings.length > MAX_LABELS ? "" : `${edge.cost} ≤ ${edge.maxCost}`;
  if (edge.state === "violated") label = `✗ ${edge.cost} > ${edge.maxCost}`;
  const place = { x: x2 + (isBackward ? 8 : -8), y: y2 + offset + 4, "text-anchor": isBackward ? "start" : "end" };
  return { line, cost: svg("text", { class: `cost ${edge.state}`, ...place }, label) };
}

function drawWorkload(workload, { x, y }) {
  const where = placement(workload);
  const isPlaced = workload.pods.some((pod) => pod.node);
  const hasOwnName = workload.name && workload.name !== workload.selector;
  const title = hasOwnName ? `${workload.selector} ${workload.name}` : workload.selector;
  const index = workload.index === null ? "" : `#${workload.index}`;
  return svg("g", {},
    svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6, class: isPlaced ? "" : "unplaced" }),
    svg("text", { x: x + 10, y: y + 20 }, truncate(title, 25)),
    svg("text", { x: x + BOX.width - 8, y: y + 20, class: "soft", "text-anchor": "end" }, index),
    svg("text", { x: x + 10, y: y + 38, class: "soft" }, truncate(where, 30)),
    svg("title", {}, `${workload.selector} ${workload.name}: ${where}`));
}

function truncate(text, length) { return text.length > length ? `${text.slice(0, length - 1)}…` : text; }

function placement(workload) {
  if (!workload.pods.length) return "no pods";
  const zones = new Map();
  for (const pod of workload.pods) {
    const where = pod.zone || pod.node || (pod.gated ? "gated" : "pending");
    zones.set(where, (zones.get(where) || 0) + 1);
  }
  return [...zones].map(([zone, count]) => (count > 1 ? `${zone} ×${count}` : zone)).join(", ");
}

const EDGE_STATES = {
  met: { sign: "✓", style: "good", text: "within its limit" },
  violated: { sign: "✗", style: "bad", text: "violated" },
  unknown: { sign: "?", style: "", text: "cost unknown" },
  idle: { sign: "·", style: "soft", text: "not placed" },
};

function edgeTable(group) {
  const heads = [
    ...["From", "To", "Worst pair of zones"].map((name) => h("th", {}, name)),
    ...["Cost", "Max", "p50", "Min. bandwidth"].map((name) => h("th", { class: "n" }, name)),
    h("th", {}, "State"),
  ];
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Dependencies of ${group.name}` },
    h("table", {},
      h("thead", {}, h("tr", {}, ...heads)),
      h("tbody", {}, ...group.edges.map(edgeRow))));
}

function edgeRow(edge) {
  const { sign, style, text } = EDGE_STATES[edge.state];
  const zones = edge.origin === edge.destination ? edge.origin || "–" : `${edge.origin} → ${edge.destination}`;
  return h("tr", {},
    h("td", {}, edge.dependent),
    h("td", {}, edge.dependency),
    h("td", {}, zones),
    h("td", { class: "n" }, number(edge.cost)),
    h("td", { class: "n" }, String(edge.maxCost)),
    h("td", { class: "n" }, milliseconds(edge.p50Us)),
    h("td", { class: "n" }, edge.minBandwidthBps ? rate(edge.minBandwidthBps) : "–"),
    h("td", { class: style }, `${sign} ${text}`));
}
