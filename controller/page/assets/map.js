// The map: zones as near each other as their round trips are short (on a logarithmic scale, or a region would be one dot),
// regions as areas around their zones. Distances are found by stress majorisation (SMACOF), from a start that depends on
// names alone, so that the picture is the same in every browser and stays where it is while latencies tremble. At 100 zones a
// layout from nothing takes some 15 ms, so it is made once; from then on zones move on from where they are.

const map = { spots: [], key: "", wanted: null, seen: "", palette: null, width: 1000, height: 620 };
const FEW_ZONES = 5;
// On the logarithmic scale; a tenth of a round trip, the controller's own hysteresis. Zones that moved for less would only make
// the picture restless.
const NOT_WORTH_A_MOVE = 0.1;

function medianOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : null;
}

function pairUs(a, b) {
  const m = state.page.matrix;
  const there = m.p50[cellIndex(a, b)], back = m.p50[cellIndex(b, a)];
  if (there !== null && back !== null) return Math.min(there, back);
  return there === null ? back : there;
}

// Row by row, zones times zones.
function wantedDistances() {
  const n = state.names.length;
  const trips = new Array(n * n).fill(null);
  const known = [];
  for (let i = 0; i < n; i++) {
    for (let j = i + 1; j < n; j++) {
      const us = pairUs(i, j);
      trips[i * n + j] = trips[j * n + i] = us;
      if (us !== null) known.push(us);
    }
  }
  known.sort((a, b) => a - b);
  const typical = medianOf(known) || 1000;
  const unit = Math.max(medianOf(known.slice(0, Math.ceil(known.length / 4))) || typical, 100);
  return Float64Array.from(trips, (us, k) => (k % (n + 1) === 0 ? 0 : Math.log1p((us === null ? typical : us) / unit)));
}

function layOut() {
  const n = state.names.length;
  const key = state.names.join("\n");
  const wanted = wantedDistances();
  const known = map.key === key && map.wanted !== null, width = mapWidth();
  if (known && width === map.width && wanted.every((distance, k) => Math.abs(distance - map.wanted[k]) <= NOT_WORTH_A_MOVE)) return map.spots;
  // Drawn as wide as it is shown, so that letters keep their size on a narrow screen.
  map.width = width;
  map.height = Math.max(380, Math.round(width * 0.62));
  map.key = key;
  map.wanted = wanted;
  const start = known ? map.spots.map((spot) => [spot.rawX, spot.rawY]) : startingSpots();
  const x = Float64Array.from(start, ([startX]) => startX), y = Float64Array.from(start, ([, startY]) => startY);
  // Zones that have their places already need a few steps only, and each message makes some more.
  relax(x, y, wanted, known ? 5 : n > 50 ? 120 : 250);
  return fit(x, y);
}

function mapWidth() { return Math.max(320, Math.min(1000, Math.round(byId("map").parentElement.clientWidth) || 1000)); }

// Regions around a circle, their zones around them.
function startingSpots() {
  const zones = state.page.network.zones;
  const regions = [...new Set(zones.map((zone) => zone.region))];
  return zones.map((zone, i) => {
    const around = (2 * Math.PI * regions.indexOf(zone.region)) / regions.length, own = (2 * Math.PI * i) / zones.length;
    return [2 * Math.cos(around) + 0.3 * Math.cos(own), 2 * Math.sin(around) + 0.3 * Math.sin(own)];
  });
}

function relax(x, y, wanted, rounds) {
  const n = x.length;
  const weights = wanted.map((d) => 1 / (d * d || 1e-6));
  const nextX = new Float64Array(n), nextY = new Float64Array(n);
  for (let round = 0; round < rounds; round++) {
    for (let i = 0; i < n; i++) {
      let sumX = 0, sumY = 0, sum = 0;
      for (let j = 0, k = i * n; j < n; j++, k++) {
        if (i === j) continue;
        const dx = x[i] - x[j], dy = y[i] - y[j], stretch = wanted[k] / (Math.sqrt(dx * dx + dy * dy) || 1e-6);
        sumX += weights[k] * (x[j] + stretch * dx);
        sumY += weights[k] * (y[j] + stretch * dy);
        sum += weights[k];
      }
      nextX[i] = sumX / (sum || 1);
      nextY[i] = sumY / (sum || 1);
    }
    x.set(nextX);
    y.set(nextY);
  }
}

// Into the frame, wide side along the width, then apart until no two zones overlap.
function fit(x, y) {
  const n = x.length;
  const spots = Array.from({ length: n }, (_, i) => ({ rawX: x[i], rawY: y[i], x: 0, y: 0 }));
  const range = (values) => [Math.min(...values), Math.max(...values)];
  let [lowX, highX] = range(x), [lowY, highY] = range(y);
  const turned = highY - lowY > highX - lowX;
  const [u, v] = turned ? [y, x] : [x, y];
  [lowX, highX] = range(u);
  [lowY, highY] = range(v);
  const margin = map.width < 600 ? 56 : 90;
  const scale = Math.min((map.width - 2 * margin) / Math.max(highX - lowX, 1e-6), (map.height - 2 * margin) / Math.max(highY - lowY, 1e-6));
  spots.forEach((spot, i) => {
    spot.x = map.width / 2 + (u[i] - (lowX + highX) / 2) * scale;
    spot.y = map.height / 2 + (v[i] - (lowY + highY) / 2) * scale;
  });
  const apart = n > 40 ? 19 : n > 12 ? 34 : n > FEW_ZONES ? 56 : 88;
  for (let round = 0, moved = true; moved && round < 60; round++) {
    moved = false;
    for (let i = 0; i < n; i++) {
      for (let j = i + 1; j < n; j++) {
        const dx = spots[j].x - spots[i].x || 0.01 * (i - j), dy = spots[j].y - spots[i].y || 0.01;
        if (dx >= apart || dx <= -apart || dy >= apart || dy <= -apart) continue;
        const now = Math.sqrt(dx * dx + dy * dy);
        if (now >= apart - 0.01) continue;
        moved = true;
        const push = (apart - now) / 2 / now;
        spots[i].x -= dx * push; spots[i].y -= dy * push;
        spots[j].x += dx * push; spots[j].y += dy * push;
      }
    }
  }
  for (const spot of spots) {
    spot.x = Math.min(map.width - 40, Math.max(40, spot.x));
    spot.y = Math.min(map.height - 30, Math.max(34, spot.y));
  }
  return spots;
}

function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const turn = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const half = (list) => {
    const out = [];
    for (const p of list) { while (out.length > 1 && turn(out[out.length - 2], out[out.length - 1], p) <= 0) out.pop(); out.push(p); }
    return out.slice(0, -1);
  };
  return sorted.length < 3 ? sorted : [...half(sorted), ...half(sorted.reverse())];
}

// The area of a region: the hull of circles around its zones.
function areaOf(members) {
  const ring = [];
  for (const spot of members) for (let a = 0; a < 12; a++) ring.push([spot.x + 30 * Math.cos((a * Math.PI) / 6), spot.y + 30 * Math.sin((a * Math.PI) / 6)]);
  return hull(ring).map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("") + "Z";
}

function drawMap() {
  const svg = byId("map");
  const zones = state.page.network.zones;
  const before = map.spots;
  map.spots = layOut();
  const links = linksToShow(zones);
  const seen = JSON.stringify([state.zone, links.map(([, , us]) => ms(us)), zones.map((zone) => [zone.name, zone.region, zone.nodes, zone.ready, zone.agents])]);
  if (map.spots !== before || seen !== map.seen || colours() !== map.palette) {
    Object.assign(map, { seen, palette: colours() });
    // No more height than the zones take.
    const ys = map.spots.length ? map.spots.map((spot) => spot.y) : [66];
    const top = Math.min(...ys) - 66, bottom = Math.max(...ys) + 50;
    svg.setAttribute("viewBox", `0 ${top.toFixed(0)} ${map.width} ${(bottom - top).toFixed(0)}`);
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.zone : undefined;
    const regions = regionsOf(zones);
    svg.replaceChildren(regionAreas(regions), linkLines(links, regions), regionNames(regions), zoneDots(zones));
    if (focused !== undefined) { const again = svg.querySelector(`[data-zone="${CSS.escape(focused)}"]`); if (again) again.focus(); }
    byId("map-note").textContent = mapNote(zones);
  }
  drawZoneDetail();
}

function mapNote(zones) {
  const shown = state.zone >= 0 ? `lines from ${state.names[state.zone]}` : zones.length <= FEW_ZONES ? "every pair has a line" : "lines join regions, or near zones; choose a zone for its own";
  return `The shorter the round trip (p50, log scale), the nearer; ${shown}.`;
}

function regionsOf(zones) {
  return [...new Set(zones.map((zone) => zone.region))].filter(Boolean).map((name) => {
    const members = map.spots.filter((_, i) => zones[i].region === name);
    return { name, members, x: members.reduce((sum, spot) => sum + spot.x, 0) / members.length, y: Math.min(...members.map((spot) => spot.y)) - 36 };
  });
}

function regionAreas(regions) {
  return s("g", { "aria-hidden": "true" }, ...regions.map(({ members }) => s("path", { class: "region", d: areaOf(members), "stroke-linejoin": "round" })));
}

// Over the lines, which would cross them out.
function regionNames(regions) {
  return s("g", { "aria-hidden": "true" }, ...regions.map(({ name, x, y }) => s("text", { class: "region-name", x, y, "text-anchor": "middle" }, name)));
}

// Which lines to draw: [from spot, to spot, microseconds].
function linksToShow(zones) {
  const n = zones.length;
  const between = (a, b) => [map.spots[a], map.spots[b], pairUs(a, b)];
  if (state.zone >= 0 && state.zone < n) return state.names.map((_, j) => j).filter((j) => j !== state.zone).map((j) => between(state.zone, j));
  const all = [];
  for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) all.push([i, j, pairUs(i, j)]);
  if (n <= FEW_ZONES) return all.map(([i, j]) => between(i, j));
  const regions = [...new Set(zones.map((zone) => zone.region))];
  if (regions.length < 2) {
    // One region: each zone and its two nearest.
    const kept = new Map();
    for (let i = 0; i < n; i++) {
      const others = state.names.map((_, j) => j).filter((j) => j !== i && pairUs(i, j) !== null);
      const near = others.sort((a, b) => pairUs(i, a) - pairUs(i, b)).slice(0, 2);
      for (const j of near) kept.set(`${Math.min(i, j)} ${Math.max(i, j)}`, between(i, j));
    }
    return [...kept.values()];
  }
  const centre = (region) => {
    const members = map.spots.filter((_, i) => zones[i].region === region);
    return { x: members.reduce((sum, spot) => sum + spot.x, 0) / members.length, y: members.reduce((sum, spot) => sum + spot.y, 0) / members.length };
  };
  // One pass over the pairs: of 100 zones there are 4,950.
  const byRegions = new Map();
  for (const [i, j, us] of all) {
    const ends = [zones[i].region, zones[j].region].sort();
    if (ends[0] === ends[1]) continue;
    const name = ends.join("\n");
    if (!byRegions.has(name)) byRegions.set(name, { ends, trips: [] });
    if (us !== null) byRegions.get(name).trips.push(us);
  }
  return [...byRegions.values()].map(({ ends, trips }) => [centre(ends[0]), centre(ends[1]), medianOf(trips)]);
}

function linkLines(links, regions) {
  const group = s("g", { "aria-hidden": "true" });
  const labels = s("g", {});
  const { ends } = classes(links.map(([, , us]) => us));
  const labelled = links.length <= (map.width < 600 ? 12 : 30);
  const small = map.spots.length > 40;
  const taken = [
    ...map.spots.map((spot) => (small ? { x: spot.x, y: spot.y, width: 14, height: 14 } : { x: spot.x, y: spot.y + 8, width: 44, height: 36 })),
    ...regions.map(({ name, x, y }) => ({ x, y: y - 4, width: name.length * 7.5, height: 18 })),
  ];
  links.forEach(([a, b, us]) => {
    const shade = us === null ? 0 : Math.max(2, shadeOf(us, ends));
    group.append(s("path", { class: "link", d: `M${a.x.toFixed(1)} ${a.y.toFixed(1)}L${b.x.toFixed(1)} ${b.y.toFixed(1)}`, stroke: colours().ramp[shade], "stroke-width": labelled ? 1.8 : 1.1, "stroke-dasharray": us === null ? "2 4" : null }));
    if (!labelled) return;
    const text = ms(us);
    const place = freePlace(a, b, text.length * 6.2 + 12, taken);
    labels.append(s("text", { class: "label", x: place.x, y: place.y + 4, "text-anchor": "middle" }, text));
  });
  group.append(labels);
  return group;
}

// Where along a line its label collides with nothing; as near the middle as can be.
function freePlace(a, b, width, taken) {
  const height = 18;
  const at = (share) => ({ x: a.x + (b.x - a.x) * share, y: a.y + (b.y - a.y) * share, width, height });
  const collides = (box) => taken.some((other) => Math.abs(box.x - other.x) < (box.width + other.width) / 2 && Math.abs(box.y - other.y) < (box.height + other.height) / 2);
  const shares = [0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68, 0.26, 0.74, 0.2, 0.8];
  const found = shares.map(at).find((box) => !collides(box)) || at(0.5);
  taken.push(found);
  return found;
}

function zoneDots(zones) {
  const group = s("g", {});
  const radius = zones.length > 40 ? 6 : 9;
  zones.forEach((zone, i) => {
    const spot = map.spots[i];
    const choose = () => chooseZone(state.zone === i ? -1 : i);
    const dot = s("g", {
      class: `zone${state.zone === i ? " chosen" : ""}${zone.ready && !zone.agents ? " blind" : ""}`, tabindex: 0, role: "button", "data-zone": zone.name,
      "aria-pressed": String(state.zone === i), "aria-label": `${zone.name}, ${zone.region || "no region"}, ${counted(zone.nodes, "node")}, ${counted(zone.agents, "agent")}`,
      onclick: choose, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } },
    }, s("circle", { cx: spot.x, cy: spot.y, r: radius }));
    if (zones.length <= 40 || state.zone === i) dot.append(s("text", { x: spot.x, y: spot.y + radius + 13, "text-anchor": "middle" }, shortName(zone)));
    else dot.append(s("title", {}, zone.name));
    group.append(dot);
  });
  return group;
}

// Inside the area of a region its name need not be said again.
function shortName(zone) {
  return zone.region && zone.name.startsWith(`${zone.region}-`) ? zone.name.slice(zone.region.length + 1) : zone.region && zone.name.startsWith(zone.region) ? zone.name.slice(zone.region.length) || zone.name : zone.name;
}

function chooseZone(i) {
  state.zone = i;
  if (i >= 0) keepPlace("map", state.names[i]); else keepPlace("map");
  drawMap();
}

function drawZoneDetail() {
  const box = byId("zone-detail");
  const i = state.zone;
  if (i < 0 || i >= state.names.length) {
    box.replaceChildren(h("p", { class: "soft" }, "Choose a zone to see its latencies."));
    return;
  }
  const zone = state.page.network.zones[i];
  const others = state.names.map((name, j) => [name, j, pairUs(i, j === i ? (i ? 0 : 1) : j)]).filter(([, j]) => j !== i)
    .sort((a, b) => (a[2] === null) - (b[2] === null) || a[2] - b[2]);
  box.replaceChildren(
    h("p", { class: "pairname" }, zone.name),
    h("dl", { class: "facts" }, h("dt", {}, "Region"), h("dd", {}, zone.region || "none"), h("dt", {}, "Nodes"), h("dd", {}, `${zone.ready} of ${zone.nodes} Ready`),
      h("dt", {}, "Agents"), h("dd", { class: zone.agents < zone.ready ? "bad" : "" }, `${zone.agents} of ${zone.ready}`)),
    h("h3", {}, "Round trips, p50, nearest first"),
    h("ol", { class: "worst" }, ...others.slice(0, 20).map(([name, j, us]) => h("li", {}, h("button", { type: "button", onclick: () => { choosePair(i, j); showTab("matrix", true); } }, h("span", {}, name), h("span", {}, ms(us)))))),
    others.length > 20 ? h("p", { class: "soft" }, `and ${others.length - 20} more in the matrix`) : "");
}
