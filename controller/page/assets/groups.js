// The tab AppGroups: each group as a graph, callers left of callees, and as a table of dependencies.

const MAX_DRAWN_WORKLOADS = 60, MAX_LABELLED_CALLERS = 3, MAX_STOPPED_SHOWN = 5, ORDERING_ROUNDS = 6;
const MAX_TITLE_LENGTH = 25, MAX_PLACEMENT_LENGTH = 30;

function drawGroups() {
  const panel = byId("panel-groups");
  const groups = state.overview.groups;
  if (!groups.length) {
    panel.replaceChildren(h("p", { class: "note" }, "There are no AppGroups."));
    return;
  }
  const openKeys = new Set([...panel.querySelectorAll("details[open]")].map((details) => details.dataset.group));
  panel.replaceChildren(...groups.map((group) => buildGroupBox(group, openKeys)));
}

function buildGroupBox(group, openKeys) {
  const key = `${group.namespace}/${group.name}`;
  const facts = [
    `${group.runningPods} of ${group.numMembers} members running`,
    group.gatedPods ? `${group.gatedPods} gated` : "",
    group.pendingPods ? `${group.pendingPods} pending` : "",
    `total cost ${group.totalCost}`,
  ].filter(Boolean);
  const isDrawn = group.workloads.length <= MAX_DRAWN_WORKLOADS;
  return h("article", { class: "groupbox", "data-group": key, "aria-label": `AppGroup ${key}` },
    h("div", { class: "grouphead" },
      h("h2", {}, key),
      buildGroupSummary(group),
      h("span", { class: "soft" }, facts.join(", ")),
      h("span", { class: "soft" }, group.algorithm)),
    h("p", { class: "note" }, `Order: ${group.order.join(", ")}`),
    ...buildGroupRemarks(group),
    isDrawn ? buildGraph(group) : null,
    h("details", { "data-group": key, open: openKeys.has(key) || !isDrawn },
      h("summary", {}, pluralize(group.dependencies.length, "dependency", "dependencies")),
      buildDependencyTable(group)));
}

function buildGroupSummary(group) {
  const placed = group.dependencies.filter((dependency) => dependency.verdict !== "idle").length;
  if (!placed) return h("span", { class: "soft" }, "nothing placed");
  if (!group.violatedDependencies) return h("span", { class: "good" }, `✓ ${placed} placed dependencies within their limits`);
  return h("span", { class: "bad" }, `✗ ${group.violatedDependencies} of ${placed} placed dependencies violated`);
}

// Builds lines about faults, conditions that are not True, and workloads that the loss of a zone would stop.
function buildGroupRemarks(group) {
  const faults = group.faults.map((fault) => h("p", { class: "bad" }, `✗ ${fault}`));
  const conditions = group.conditions.filter((condition) => condition.status !== "True");
  const texts = conditions.map(({ type, status, message, reason }) => `${type} ${status}: ${message || reason}`);
  const losses = group.zoneLosses.filter((loss) => loss.stoppedWorkloads.length);
  if (losses.length) {
    const parts = losses.map((loss) => `${loss.zone}: ${joinFirst(loss.stoppedWorkloads, MAX_STOPPED_SHOWN)} would stop`);
    texts.push(`Without ${parts.join("; ")}`);
  }
  return [...faults, ...texts.map((text) => h("p", { class: "soft" }, text))];
}

// Lays out the workloads in columns: the column is the longest path from a root, the row is the callers' mean row.
function layOutColumns(group) {
  const depths = findDepths(group);
  const usedDepths = [...new Set(depths.values())].sort((a, b) => a - b);
  const columns = usedDepths.map((depth) => group.workloads.filter(({ selector }) => depths.get(selector) === depth));
  const rows = new Map();
  const numberRows = (column) => column.forEach(({ selector }, row) => rows.set(selector, row));
  const meanRowOfCallers = ({ selector }) => {
    const callerRows = group.dependencies.filter((dependency) => dependency.callee === selector).map((dependency) => rows.get(dependency.caller));
    return callerRows.length ? callerRows.reduce((a, b) => a + b, 0) / callerRows.length : rows.get(selector);
  };
  columns.forEach(numberRows);
  for (let round = 0; round < ORDERING_ROUNDS; round++) {
    for (const column of columns.slice(1)) {
      column.sort((a, b) => meanRowOfCallers(a) - meanRowOfCallers(b) || rows.get(a.selector) - rows.get(b.selector));
      numberRows(column);
    }
  }
  return columns;
}

// Returns the length of the longest path from a root, by selector.
function findDepths(group) {
  const depths = new Map(group.workloads.map((workload) => [workload.selector, 0]));
  // No path without a cycle is longer; with a cycle, depths would never stop growing.
  const maxDepth = group.workloads.length - 1;
  for (let round = 0; round < maxDepth; round++) {
    for (const { caller, callee } of group.dependencies) {
      depths.set(callee, Math.max(depths.get(callee), Math.min(depths.get(caller) + 1, maxDepth)));
    }
  }
  return depths;
}

// Sizes in pixels. `margin` keeps the boxes' borders inside the graph; `titleY` and `placementY` are baselines of text in a box.
const BOX = { width: 212, height: 50, gapX: 112, gapY: 18, margin: 2, padding: 10, titleY: 20, placementY: 38 };
// Control points of a line's curve are this far from its ends; a line to a callee on the left bends around the right side.
const MIN_BEND = 30, BACKWARD_BEND = 60;
const COST_LINE_HEIGHT = 13, COST_GAP = 8, COST_BASELINE = 4;

function buildGraph(group) {
  const columns = layOutColumns(group);
  const tallest = Math.max(...columns.map((column) => column.length));
  const width = columns.length * (BOX.width + BOX.gapX) - BOX.gapX + 2 * BOX.margin;
  const height = tallest * (BOX.height + BOX.gapY) - BOX.gapY + 2 * BOX.margin;
  const positions = new Map();
  columns.forEach((column, c) => {
    const x = BOX.margin + c * (BOX.width + BOX.gapX);
    const top = (height - (column.length * (BOX.height + BOX.gapY) - BOX.gapY)) / 2;
    column.forEach(({ selector }, row) => positions.set(selector, { x, y: top + row * (BOX.height + BOX.gapY) }));
  });
  const lines = group.dependencies.map((dependency) => buildDependency(group, dependency, positions));
  const boxes = group.workloads.map((workload) => buildWorkload(workload, positions.get(workload.selector)));
  const label = `Dependencies of ${group.name}; the table below has the same as text`;
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Graph of ${group.name}` },
    svg("svg", { class: "dag", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
      ...lines.map(({ line }) => line),
      ...boxes,
      ...lines.map(({ cost }) => cost)));
}

// Builds the line of a dependency, and the text of its cost, which is drawn over the boxes.
function buildDependency(group, dependency, positions) {
  const caller = positions.get(dependency.caller), callee = positions.get(dependency.callee);
  const isBackward = callee.x <= caller.x;
  const x1 = caller.x + BOX.width, y1 = caller.y + BOX.height / 2;
  const x2 = isBackward ? callee.x + BOX.width : callee.x, y2 = callee.y + BOX.height / 2;
  const bend = isBackward ? BACKWARD_BEND : Math.max(MIN_BEND, (x2 - x1) / 2);
  const path = `M${x1} ${y1}C${x1 + bend} ${y1} ${isBackward ? x2 + bend : x2 - bend} ${y2} ${x2} ${y2}`;
  const zones = `${dependency.origin} to ${dependency.destination}`;
  const latency = dependency.p50Us === null ? "" : `${formatMilliseconds(dependency.p50Us)}, ${zones}; `;
  const title = `${dependency.caller} → ${dependency.callee}: ${latency}${VERDICTS[dependency.verdict].text}`;
  const line = svg("path", { class: dependency.verdict, d: path }, svg("title", {}, title));
  if (dependency.cost === null) return { line, cost: null };
  // Costs of the callers of one dependency are stacked next to its box.
  const siblings = group.dependencies.filter((other) => other.callee === dependency.callee && other.cost !== null);
  const lineHeight = Math.min(COST_LINE_HEIGHT, (BOX.height - 6) / siblings.length);
  const offset = lineHeight * (siblings.indexOf(dependency) - (siblings.length - 1) / 2);
  let label = siblings.length > MAX_LABELLED_CALLERS ? "" : `${dependency.cost} ≤ ${dependency.maxCost}`;
  if (dependency.verdict === "violated") label = `✗ ${dependency.cost} > ${dependency.maxCost}`;
  const x = x2 + (isBackward ? COST_GAP : -COST_GAP), y = y2 + offset + COST_BASELINE;
  const attributes = { x, y, "text-anchor": isBackward ? "start" : "end" };
  return { line, cost: svg("text", { class: `cost ${dependency.verdict}`, ...attributes }, label) };
}

function buildWorkload(workload, { x, y }) {
  const placement = describePlacement(workload);
  const isPlaced = workload.pods.some((pod) => pod.node);
  const hasOtherName = workload.name && workload.name !== workload.selector;
  const title = hasOtherName ? `${workload.selector} ${workload.name}` : workload.selector;
  const index = workload.index === null ? "" : `#${workload.index}`;
  return svg("g", {},
    svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6, class: isPlaced ? "" : "unplaced" }),
    svg("text", { x: x + BOX.padding, y: y + BOX.titleY }, truncate(title, MAX_TITLE_LENGTH)),
    svg("text", { x: x + BOX.width - BOX.padding, y: y + BOX.titleY, class: "soft", "text-anchor": "end" }, index),
    svg("text", { x: x + BOX.padding, y: y + BOX.placementY, class: "soft" }, truncate(placement, MAX_PLACEMENT_LENGTH)),
    svg("title", {}, `${workload.selector} ${workload.name}: ${placement}`));
}

function truncate(text, length) { return text.length > length ? `${text.slice(0, length - 1)}…` : text; }

// Lists the zones of the pods with their counts, such as "z1 ×2, gated".
function describePlacement(workload) {
  if (!workload.pods.length) return "no pods";
  const counts = new Map();
  for (const pod of workload.pods) {
    const location = pod.zone || pod.node || (pod.hasGates ? "gated" : "pending");
    counts.set(location, (counts.get(location) || 0) + 1);
  }
  return [...counts].map(([location, count]) => (count > 1 ? `${location} ×${count}` : location)).join(", ");
}

const VERDICTS = {
  met: { sign: "✓", style: "good", text: "within its limit" },
  violated: { sign: "✗", style: "bad", text: "violated" },
  unknown: { sign: "?", style: "", text: "cost unknown" },
  idle: { sign: "·", style: "soft", text: "not placed" },
};

function buildDependencyTable(group) {
  const headers = [
    ...["From", "To", "Worst pair of zones"].map((name) => h("th", {}, name)),
    ...["Cost", "Max", "p50", "Min. bandwidth"].map((name) => h("th", { class: "n" }, name)),
    h("th", {}, "State"),
  ];
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Dependencies of ${group.name}` },
    h("table", {},
      h("thead", {}, h("tr", {}, ...headers)),
      h("tbody", {}, ...group.dependencies.map(buildDependencyRow))));
}

function buildDependencyRow(dependency) {
  const { sign, style, text } = VERDICTS[dependency.verdict];
  const zones = dependency.origin === dependency.destination ? dependency.origin || "–" : `${dependency.origin} → ${dependency.destination}`;
  return h("tr", {},
    h("td", {}, dependency.caller),
    h("td", {}, dependency.callee),
    h("td", {}, zones),
    h("td", { class: "n" }, formatNumber(dependency.cost)),
    h("td", { class: "n" }, String(dependency.maxCost)),
    h("td", { class: "n" }, formatMilliseconds(dependency.p50Us)),
    h("td", { class: "n" }, dependency.minBandwidthBps ? formatRate(dependency.minBandwidthBps) : "–"),
    h("td", { class: style }, `${sign} ${text}`));
}
