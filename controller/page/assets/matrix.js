// The matrix on two canvases: the lower one holds the numbers and is drawn when data change, the upper one holds the cursor
// and is drawn when somebody moves. At 100 zones a move therefore costs two rectangles and not 9,900; and of what changed, only
// the cells that look different are drawn again.

const matrix = { cell: 0, left: 0, top: 0, gap: 6, xs: [], hoverFrom: -1, hoverTo: -1, scale: { low: 0, ends: [] }, frame: "", palette: null, looks: [] };
const FONT = "system-ui, sans-serif";

function matrixLayout() {
  const zones = state.page.network.zones;
  const n = zones.length;
  const box = byId("matrix-box");
  const context = byId("matrix").getContext("2d");
  context.font = `11px ${FONT}`;
  const longest = Math.min(150, Math.max(30, ...zones.map((zone) => context.measureText(zone.name).width)));
  const regions = zones.filter((zone, i) => i === 0 || zone.region !== zones[i - 1].region).length;
  matrix.gap = n > 40 ? 3 : 8;
  matrix.left = Math.ceil(longest) + 26;
  const room = Math.max(260, box.clientWidth || 800) - matrix.left - (regions - 1) * matrix.gap - 4;
  // Few zones get large cells, but not more than a screen holds.
  const largest = Math.max(46, Math.min(130, Math.floor(Math.max(480, innerHeight - 380) / n)));
  matrix.cell = Math.max(7, Math.min(largest, Math.floor(room / n)));
  matrix.top = Math.ceil(longest) + 26;
  matrix.xs = [];
  let at = 0;
  zones.forEach((zone, i) => {
    if (i > 0 && zone.region !== zones[i - 1].region) at += matrix.gap;
    matrix.xs.push(at);
    at += matrix.cell;
  });
  matrix.size = at;
  for (const id of ["matrix", "matrix-cursor"]) {
    const canvas = byId(id);
    const ratio = window.devicePixelRatio || 1;
    const width = matrix.left + at + 2, height = matrix.top + at + 2;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }
}

function matrixValues() {
  const measure = MEASURES[state.measure];
  const m = state.page.matrix;
  const values = new Array(m.cost.length);
  for (let k = 0; k < values.length; k++) values[k] = measure.of(m, k);
  return values;
}

function drawMatrix() {
  matrixLayout();
  const canvas = byId("matrix"), context = canvas.getContext("2d");
  const c = colours();
  const zones = state.page.network.zones;
  const values = matrixValues();
  matrix.scale = classes(values);
  // Everything but the cells: where this is as before, so are they, unless they look different.
  const frame = JSON.stringify([zones.map((zone) => [zone.name, zone.region, zone.ready > 0 && !zone.agents]), matrix.cell, canvas.width, canvas.height]);
  const afresh = frame !== matrix.frame || c !== matrix.palette;
  if (afresh) {
    Object.assign(matrix, { frame, palette: c, looks: [] });
    context.fillStyle = c.ground;
    context.fillRect(0, 0, matrix.left + matrix.size + 2, matrix.top + matrix.size + 2);
    drawZoneNames(context, zones, c);
  }
  context.font = `${matrix.cell >= 60 ? 15 : matrix.cell >= 34 ? 12 : 10}px ${FONT}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let from = 0, k = 0; from < zones.length; from++) {
    for (let to = 0; to < zones.length; to++) {
      if (from === to) continue;
      const look = lookOf(values[k], k);
      if (matrix.looks[k] !== look) {
        drawCell(context, from, to, values[k], c, !afresh);
        matrix.looks[k] = look;
      }
      k++;
    }
  }
  drawCursor();
  drawLegend();
}

// Whatever a cell's drawing depends on.
function lookOf(value, k) {
  const m = state.page.matrix;
  if (value === null || value === undefined) return "none";
  return `${shadeOf(value, matrix.scale.ends)}${m.basis[k]}${m.doubts[k] ? "!" : ""}${matrix.cell >= 24 ? number(value) : ""}`;
}

function drawZoneNames(context, zones, c) {
  context.textBaseline = "middle";
  const size = Math.max(7, Math.min(11, matrix.cell));
  zones.forEach((zone, i) => {
    const middle = matrix.xs[i] + matrix.cell / 2;
    context.font = `${size}px ${FONT}`;
    context.fillStyle = zone.ready && !zone.agents ? c.bad : c.ink;
    context.textAlign = "right";
    context.fillText(clipped(context, zone.name, matrix.left - 22), matrix.left - 6, matrix.top + middle);
    context.save();
    context.translate(matrix.left + middle, matrix.top - 6);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(clipped(context, zone.name, matrix.top - 22), 0, 0);
    context.restore();
  });
  // Regions as brackets on both sides.
  context.fillStyle = c.soft;
  context.strokeStyle = c.strong;
  context.font = `600 10px ${FONT}`;
  for (let i = 0; i < zones.length; ) {
    let last = i;
    while (last + 1 < zones.length && zones[last + 1].region === zones[i].region) last++;
    const start = matrix.xs[i], length = matrix.xs[last] + matrix.cell - start;
    const name = clipped(context, zones[i].region || "no region", length);
    context.textAlign = "center";
    context.fillText(name, matrix.left + start + length / 2, 7);
    context.beginPath();
    context.moveTo(matrix.left + start + 1, 14.5);
    context.lineTo(matrix.left + start + length - 1, 14.5);
    context.moveTo(14.5, matrix.top + start + 1);
    context.lineTo(14.5, matrix.top + start + length - 1);
    context.stroke();
    context.save();
    context.translate(7, matrix.top + start + length / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(name, 0, 0);
    context.restore();
    i = last + 1;
  }
}

function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return end > 1 ? `${text.slice(0, end)}…` : "";
}

function drawCell(context, from, to, value, c, over) {
  const x = matrix.left + matrix.xs[to], y = matrix.top + matrix.xs[from], size = matrix.cell;
  const k = cellIndex(from, to);
  const m = state.page.matrix;
  const inner = size > 14 ? size - 1 : size - 0.5;
  if (over) {
    context.fillStyle = c.ground;
    context.fillRect(x, y, size, size);
  }
  if (value === null || value === undefined) {
    context.strokeStyle = c.line;
    context.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
    if (size > 14) { context.fillStyle = c.soft; context.fillText("·", x + size / 2, y + size / 2); }
    return;
  }
  const shade = shadeOf(value, matrix.scale.ends);
  context.fillStyle = c.ramp[shade];
  context.fillRect(x, y, inner, inner);
  if (size >= 24) {
    context.fillStyle = onShade(shade);
    context.fillText(number(value), x + size / 2, y + size / 2 + 0.5);
  }
  if ("siu".includes(m.basis[k])) hatch(context, x, y, inner, m.basis[k], onShade(shade));
  if (m.doubts[k]) corner(context, x, y, inner, c);
}

// Old: lines one way; inferred: dots; dead: a cross. All are seen without colours.
function hatch(context, x, y, size, basis, colour) {
  context.save();
  context.globalAlpha = 0.55;
  context.strokeStyle = context.fillStyle = colour;
  if (basis === "i") {
    const step = Math.max(3, size / 6);
    for (let a = step / 2; a < size; a += step) { context.fillRect(x + a, y + 1, 1, 1); context.fillRect(x + a, y + size - 2, 1, 1); context.fillRect(x + 1, y + a, 1, 1); context.fillRect(x + size - 2, y + a, 1, 1); }
  } else if (basis === "u") {
    context.beginPath();
    context.moveTo(x, y); context.lineTo(x + size, y + size);
    context.moveTo(x + size, y); context.lineTo(x, y + size);
    context.lineWidth = 1.5;
    context.stroke();
  } else {
    context.beginPath();
    context.rect(x, y, size, size);
    context.clip();
    context.beginPath();
    for (let a = -size; a < size; a += 5) { context.moveTo(x + a, y + size); context.lineTo(x + a + size, y); }
    context.lineWidth = 0.8;
    context.stroke();
  }
  context.restore();
}

function corner(context, x, y, size, c) {
  const edge = Math.max(4, Math.min(9, size / 2.5));
  context.fillStyle = c.bad;
  context.beginPath();
  context.moveTo(x + size - edge, y);
  context.lineTo(x + size, y);
  context.lineTo(x + size, y + edge);
  context.fill();
}

function drawCursor() {
  const canvas = byId("matrix-cursor");
  const context = canvas.getContext("2d");
  const c = colours();
  context.clearRect(0, 0, matrix.left + matrix.size + 2, matrix.top + matrix.size + 2);
  const line = (from, to, colour, width) => {
    if (from < 0 || to < 0 || from === to || from >= matrix.xs.length || to >= matrix.xs.length) return;
    const x = matrix.left + matrix.xs[to], y = matrix.top + matrix.xs[from];
    context.fillStyle = colour;
    // Over the names alone: over cells it would look like another class of the scale.
    context.globalAlpha = 0.2;
    context.fillRect(18, y, matrix.left - 20, matrix.cell - 1);
    context.fillRect(x, 18, matrix.cell - 1, matrix.top - 20);
    context.globalAlpha = 1;
    // Two lines, so that it is seen on every shade.
    for (const [stroke, size] of [[c.ground, width + 3], [colour, width]]) {
      context.strokeStyle = stroke;
      context.lineWidth = size;
      context.strokeRect(x - 1, y - 1, matrix.cell + 1, matrix.cell + 1);
    }
  };
  if (matrix.hoverFrom !== state.from || matrix.hoverTo !== state.to) line(matrix.hoverFrom, matrix.hoverTo, c.soft, 1);
  line(state.from, state.to, c.accent, 2.5);
}

function cellAt(event) {
  const box = byId("matrix-cursor").getBoundingClientRect();
  const find = (offset) => matrix.xs.findIndex((start) => offset >= start && offset < start + matrix.cell);
  return [find(event.clientY - box.top - matrix.top), find(event.clientX - box.left - matrix.left)];
}

function drawLegend() {
  const { low, ends } = matrix.scale;
  const whole = state.measure === "cost" || state.measure === "age";
  const ramp = h("span", { class: "ramp" });
  let start = low;
  ends.forEach((end) => {
    const last = whole ? Math.floor(end * 1.000000001) : end;
    if (whole && last < Math.floor(start)) return;
    const shade = shadeOf(last, ends);
    const text = number(whole ? Math.floor(start) : start) === number(last) ? number(last) : `${number(whole ? Math.floor(start) : start)}–${number(last)}`;
    const step = h("span", {}, text);
    step.style.background = colours().ramp[shade];
    step.style.color = onShade(shade);
    ramp.append(step);
    start = whole ? last + 1 : end;
  });
  const m = state.page.matrix;
  const signs = [];
  if (m.basis.includes("s")) signs.push(["s", "old measurement"]);
  if (m.basis.includes("i")) signs.push(["i", "inferred from a path"]);
  if (m.basis.includes("u")) signs.push(["u", "unreachable"]);
  if (m.doubts.some((doubt) => doubt)) signs.push(["!", "newest sample not trusted"]);
  const samples = signs.map(([kind, text]) => {
    const canvas = h("canvas", { width: 28, height: 28, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    const c = colours();
    context.fillStyle = c.ramp[2];
    context.fillRect(0, 0, 14, 14);
    if (kind === "!") corner(context, 0, 0, 14, c); else hatch(context, 0, 0, 14, kind, onShade(2));
    return h("span", { class: "sign" }, canvas, text);
  });
  const unit = state.measure === "cost" && state.page.network.weights === "NetperfCosts"
    ? `cost; 1 = ${number(state.page.network.unitUs / 1000)} ms of ${state.page.network.percentile}, rounded up`
    : state.measure === "month" ? `${MEASURES.month.unit}${state.page.network.currency ? `, ${state.page.network.currency}` : ": no prices are set (traffic.prices)"}`
    : state.measure === "traffic" && m.traffic.every((bps) => bps === null) ? `${MEASURES.traffic.unit}: nobody measures it (traffic.prometheusUrl, page.prometheusUrl)` : MEASURES[state.measure].unit;
  const none = m.cost.includes(null) ? [h("span", {}, "· none")] : [];
  byId("matrix-legend").replaceChildren(h("span", {}, unit), ramp, ...samples, ...none);
}

function choosePair(from, to, { scroll = false } = {}) {
  state.from = from;
  state.to = to;
  drawCursor();
  drawPairDetail();
  if (scroll && from >= 0) {
    const box = byId("matrix-box");
    const x = matrix.left + matrix.xs[to], y = matrix.top + matrix.xs[from];
    if (x < box.scrollLeft + matrix.left || x + matrix.cell > box.scrollLeft + box.clientWidth) box.scrollLeft = x - box.clientWidth / 2;
    if (y < box.scrollTop + matrix.top || y + matrix.cell > box.scrollTop + box.clientHeight) box.scrollTop = y - box.clientHeight / 2;
  }
  byId("cell-text").textContent = from < 0 ? "" : describePair(from, to);
  if (from >= 0) keepPlace("matrix", state.names[from], state.names[to]);
}

function describePair(from, to) {
  if (from === to) return `${state.names[from]} to itself`;
  const k = cellIndex(from, to), m = state.page.matrix;
  const cost = m.cost[k] === null ? "no cost" : `cost ${m.cost[k]}`;
  return `${state.names[from]} to ${state.names[to]}: ${cost}, p50 ${ms(m.p50[k])}, ${BASES[m.basis[k]]}${m.doubts[k] ? `, not trusted: ${m.doubts[k]}` : ""}${m.traffic[k] === null ? "" : `, traffic ${rate(m.traffic[k])}`}${m.month[k] === null ? "" : `, ${money(m.month[k])} a month`}`;
}

function drawPairDetail() {
  const box = byId("pair-detail");
  const k = cellIndex(state.from, state.to);
  const parts = [];
  if (k >= 0) {
    const m = state.page.matrix;
    const back = cellIndex(state.to, state.from);
    const facts = [
      ["Cost", m.cost[k] === null ? "none" : m.cost[k]], ["The other way", m.cost[back] === null ? "none" : m.cost[back]],
      ["Rests on", BASES[m.basis[k]]],
      ["p50", ms(m.p50[k])], ["p90", ms(m.p90[k])], ["p99", ms(m.p99[k])],
      m.jitter[k] === null ? null : ["Jitter", ms(m.jitter[k])],
      m.loss[k] ? ["Loss", `${number(m.loss[k] * 100)} %`] : null,
      ["Measured", m.at[k] === null ? "not yet" : `${age(since(m.at[k]))} ago`],
      m.prober[k] ? ["By", m.prober[k]] : null,
      m.nodes[k] || m.nodes[back] ? ["Between", (m.nodes[k] || m.nodes[back]).replace(" ", " and ")] : null,
      m.traffic[k] === null ? null : ["Traffic of calls", rate(m.traffic[k])],
      m.month[k] === null ? null : ["Costs a month", money(m.month[k])],
      m.capacity[k] === null ? null : ["Bandwidth", rate(m.capacity[k])],
      m.allocated[k] === null ? null : ["Allocated", rate(m.allocated[k])],
    ].filter(Boolean);
    parts.push(
      h("p", { class: "pairname" }, `${state.names[state.from]} → ${state.names[state.to]}`),
      m.doubts[k] ? h("p", { class: "bad" }, `✗ newest sample not trusted: ${m.doubts[k]}`) : null,
      h("dl", { class: "facts" }, ...facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
    );
  } else {
    parts.push(h("p", { class: "soft" }, "Choose a pair in the matrix to see what its cost rests on."));
  }
  box.replaceChildren(...parts.filter(Boolean));
}

function startMatrix() {
  const measures = byId("measures");
  const keys = Object.keys(MEASURES);
  const select = (key) => {
    state.measure = key;
    for (const button of measures.children) {
      const chosen = button.dataset.measure === key;
      button.setAttribute("aria-checked", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
    if (state.page) drawMatrix();
  };
  measures.replaceChildren(...keys.map((key) => h("button", { type: "button", role: "radio", "data-measure": key, onclick: () => select(key) }, MEASURES[key].name)));
  measures.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    select(keys[(keys.indexOf(state.measure) + step + keys.length) % keys.length]);
    measures.querySelector('[aria-checked="true"]').focus();
  });
  select("cost");
  const cursor = byId("matrix-cursor");
  let waiting = false;
  cursor.addEventListener("mousemove", (event) => {
    [matrix.hoverFrom, matrix.hoverTo] = cellAt(event);
    if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; drawCursor(); }); }
    cursor.title = matrix.hoverFrom >= 0 && matrix.hoverTo >= 0 ? describePair(matrix.hoverFrom, matrix.hoverTo) : "";
  });
  cursor.addEventListener("mouseleave", () => { matrix.hoverFrom = matrix.hoverTo = -1; drawCursor(); });
  cursor.addEventListener("click", (event) => {
    const [from, to] = cellAt(event);
    if (from >= 0 && to >= 0 && from !== to) choosePair(from, to);
  });
  cursor.addEventListener("keydown", moveInMatrix);
}

function moveInMatrix(event) {
  const n = state.names.length;
  if (n < 2) return;
  const step = event.shiftKey ? 10 : 1;
  const moves = { ArrowRight: [0, step], ArrowLeft: [0, -step], ArrowDown: [step, 0], ArrowUp: [-step, 0] };
  let [from, to] = [Math.max(0, state.from), Math.max(0, state.to)];
  if (event.key in moves) {
    const [down, right] = moves[event.key];
    if (state.from >= 0) { from += down; to += right; }
    const within = (value) => Math.min(n - 1, Math.max(0, value));
    [from, to] = [within(from), within(to)];
    // The diagonal is nobody's pair: go on in the same direction, or stay.
    if (from === to) { from = within(from + Math.sign(down)); to = within(to + (Math.sign(right) || (down === 0 ? 1 : 0))); }
    if (from === to) return;
  } else if (event.key === "Home") to = from === 0 ? 1 : 0;
  else if (event.key === "End") to = from === n - 1 ? n - 2 : n - 1;
  else if (event.key === "x" && state.from >= 0) [from, to] = [to, from];
  else if (event.key === "Escape") { choosePair(-1, -1); return; }
  else return;
  event.preventDefault();
  choosePair(from, to, { scroll: true });
}
