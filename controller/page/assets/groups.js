// AppGroups: each as a graph, callers left of their dependencies, and as a table of dependencies with their costs.

const MAX_DRAWN_WORKLOADS = 60;
const MAX_LABELS = 3;

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
  const placed = group.edges.filter((edge) => edge.state !== "idle").length;
  const summary = group.violated
    ? h("span", { class: "bad" }, `✗ ${group.violated} of ${placed} placed dependencies violated`)
    : placed
      ? h("span", { class: "good" }, `✓ ${placed} placed dependencies within their limits`)
      : h("span", { class: "soft" }, "nothing placed");
  const facts = [
    `${group.running} of ${group.members} members running`,
    group.gated ? `${group.gated} gated` : "",
    group.pending ? `${group.pending} pending` : "",
    `total cost ${group.totalCost}`,
  ].filter(Boolean);
  const unmet = group.conditions.filter((condition) => condition.status !== "True");
  const remarks = [
    ...group.faults.map((fault) => h("p", { class: "bad" }, `✗ ${fault}`)),
    ...unmet.map(({ type, status, message, reason }) => (
      h("p", { class: "soft" }, `${type} ${status}: ${message || reason}`))),
  ];
  const losses = (group.zoneLosses || []).filter((loss) => loss.stops.length);
  if (losses.length) {
    const stops = losses.map((loss) => `${loss.zone}: ${joinFirst(loss.stops)} would stop`);
    remarks.push(h("p", { class: "soft" }, `Without ${stops.join("; ")}`));
  } else if (placed && group.zoneLosses?.length > 1) {
    remarks.push(h("p", { class: "soft" }, "Every workload survives the loss of any one zone."));
  }
  const isDrawn = group.workloads.length <= MAX_DRAWN_WORKLOADS;
  return h("article", { class: "groupbox", "data-group": key, "aria-label": `AppGroup ${key}` },
    h("div", { class: "grouphead" },
      h("h2", {}, key),
      summary,
      h("span", { class: "soft" }, facts.join(", ")),
      h("span", { class: "soft" }, group.algorithm)),
    h("p", { class: "note" }, `Order: ${group.order.join(" ")}`),
    ...remarks,
    isDrawn ? drawGraph(group) : null,
    h("details", { "data-group": key, open: open.has(key) || !isDrawn },
      h("summary", {}, counted(group.edges.length, "dependency", "dependencies")),
      edgeTable(group)));
}

// Layered layout: a workload's column is its longest path from a root, its row the mean row of its callers.
function layers(group) {
  const depth = new Map(group.workloads.map((workload) => [workload.selector, 0]));
  // Bounded by the number of workloads, because a cycle never settles.
  for (let round = 0; round < group.workloads.length; round++) {
    let moved = false;
    for (const edge of group.edges) {
      const next = Math.min(depth.get(edge.dependant) + 1, group.workloads.length - 1);
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
  for (let round = 0; round < 6; round++) {
    columns.forEach((column, c) => {
      if (c === 0) return;
      const barycenter = (workload) => {
        const calls = group.edges.filter((edge) => edge.dependency === workload.selector);
        const rows = calls.map((edge) => row.get(edge.dependant));
        return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : row.get(workload.selector);
      };
      column.sort((a, b) => barycenter(a) - barycenter(b) || row.get(a.selector) - row.get(b.selector));
      column.forEach((workload, i) => row.set(workload.selector, i));
    });
  }
  return columns;
}

const BOX = { width: 212, height: 50, gapX: 112, gapY: 18 };

function drawGraph(group) {
  const columns = layers(group);
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
    s("svg", { class: "dag", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
      ...edges.map(({ line }) => line),
      ...boxes,
      ...edges.map(({ cost }) => cost)));
}

// The line of a dependency, and the text of its cost, which is drawn above the boxes.
function drawEdge(group, edge, positionOf) {
  const caller = positionOf.get(edge.dependant), callee = positionOf.get(edge.dependency);
  const isBackward = callee.x <= caller.x;
  const x1 = caller.x + BOX.width, y1 = caller.y + BOX.height / 2;
  const x2 = isBackward ? callee.x + BOX.width : callee.x, y2 = callee.y + BOX.height / 2;
  const bend = isBackward ? 60 : Math.max(30, (x2 - x1) / 2);
  const path = `M${x1} ${y1}C${x1 + bend} ${y1} ${isBackward ? x2 + bend : x2 - bend} ${y2} ${x2} ${y2}`;
  const measured = edge.p50Us === null ? "" : `${ms(edge.p50Us)} from ${edge.origin} to ${edge.destination}; `;
  const title = `${edge.dependant} → ${edge.dependency}: ${measured}${EDGE_STATES[edge.state][2]}`;
  const line = s("path", { class: edge.state, d: path }, s("title", {}, title));
  if (edge.cost === null) return { line, cost: null };
  // Labels are next to the dependency's box, stacked.
  const siblings = group.edges.filter((other) => other.dependency === edge.dependency && other.cost !== null);
  const position = siblings.indexOf(edge) - (siblings.length - 1) / 2;
  const offset = siblings.length > 1 ? position * Math.min(13, 44 / siblings.length) : 0;
  const isViolated = edge.state === "violated";
  const isHidden = siblings.length > MAX_LABELS && !isViolated;
  const label = isHidden ? "" : isViolated ? `✗ ${edge.cost} > ${edge.maxCost}` : `${edge.cost} ≤ ${edge.maxCost}`;
  const place = { x: x2 + (isBackward ? 8 : -8), y: y2 + offset + 4, "text-anchor": isBackward ? "start" : "end" };
  return { line, cost: s("text", { class: `cost ${edge.state}`, ...place }, label) };
}

function drawWorkload(workload, { x, y }) {
  const where = placement(workload);
  const isPlaced = workload.pods.some((pod) => pod.node);
  const hasOwnName = workload.name && workload.name !== workload.selector;
  const title = hasOwnName ? `${workload.selector} ${workload.name}` : workload.selector;
  const index = workload.index === null ? "" : `#${workload.index}`;
  return s("g", {},
    s("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6, class: isPlaced ? "" : "unplaced" }),
    s("text", { x: x + 10, y: y + 20 }, truncate(title, 25)),
    s("text", { x: x + BOX.width - 8, y: y + 20, class: "soft", "text-anchor": "end" }, index),
    s("text", { x: x + 10, y: y + 38, class: "soft" }, truncate(where, 30)),
    s("title", {}, `${workload.selector} ${workload.name}: ${where}`));
}

function joinFirst(names) {
  return names.length > 5 ? `${names.slice(0, 5).join(", ")} and ${names.length - 5} more` : names.join(", ");
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
  met: ["✓", "good", "within its limit"],
  violated: ["✗", "bad", "violated"],
  unknown: ["?", "", "cost unknown"],
  idle: ["·", "soft", "not placed"],
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
  const [sign, style, text] = EDGE_STATES[edge.state];
  const zones = edge.origin === edge.destination ? edge.origin || "–" : `${edge.origin} → ${edge.destination}`;
  return h("tr", {},
    h("td", {}, edge.dependant),
    h("td", {}, edge.dependency),
    h("td", {}, zones),
    h("td", { class: "n" }, edge.cost === null ? "–" : String(edge.cost)),
    h("td", { class: "n" }, String(edge.maxCost)),
    h("td", { class: "n" }, edge.p50Us === null ? "–" : ms(edge.p50Us)),
    h("td", { class: "n" }, edge.minBandwidthBps ? rate(edge.minBandwidthBps) : "–"),
    h("td", { class: style }, `${sign} ${text}`));
}
