"use strict";
// Shared by all tabs: the state, number formats, the colour scale, and builders of elements without innerHTML, because
// names come from the cluster.

const state = {
  overview: null,    // the newest overview, as controller/page/encoding.py encodes it
  names: [],         // zone names in the order of the overview
  measure: "cost",   // shown in the matrix, a key of MEASURES
  origin: -1,        // position of the selected pair's origin in names, -1 for none
  destination: -1,
};

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

// Basis of a cost -> sign behind the cost, as in `kubectl netaware costs`, and its meaning. Bases without doubt have no sign.
const BASES = {
  measured: { sign: "", text: "measured" },
  mirrored: { sign: "", text: "measured in the reverse direction" },
  stale: { sign: "~", text: "old measurement" },
  inferred: { sign: "*", text: "inferred from a path over other zones" },
  unreachable: { sign: "x", text: "unreachable" },
  given: { sign: "", text: "set by the user" },
  absent: { sign: "", text: "no cost: counts as 100" },
};
const FLAGGED = { sign: "!", text: "sample not trusted" };

function isAbsent(value) { return value === null || value === undefined || value === false; }
function byId(id) { return document.getElementById(id); }

// Replaces invisible characters, such as those that change the direction of text.
function makePrintable(text) { return text.replace(/\p{C}/gu, "\ufffd"); }

// Sets attributes and event listeners (`onclick`), and appends children; ignores null, undefined and false.
function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (isAbsent(value)) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : makePrintable(String(value)));
  }
  for (const child of children.flat()) {
    if (isAbsent(child)) continue;
    element.append(typeof child === "string" ? makePrintable(child) : child);
  }
  return element;
}

// Returns a new HTML (`h`, hyperscript's name) or SVG element.
function h(tag, attributes, ...children) { return fillElement(document.createElement(tag), attributes, children); }
function svg(tag, attributes, ...children) { return fillElement(document.createElementNS(SVG_NAMESPACE, tag), attributes, children); }

function formatNumber(value) {
  if (isAbsent(value)) return "–";
  if (value > 0 && value < 0.005) return "< 0.01";
  if (value >= 9.95 || Number.isInteger(value)) return String(Math.round(value));
  return value >= 0.995 ? value.toFixed(1) : value.toFixed(2);
}

function formatMilliseconds(us) { return isAbsent(us) ? "–" : `${formatNumber(us / 1000)} ms`; }

function formatRate(bps) {
  if (isAbsent(bps)) return "–";
  for (const [unit, size] of [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]]) {
    if (Math.abs(bps) >= 0.9995 * size) return `${Number((bps / size).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(bps)} bit/s`;
}

function formatAge(seconds) {
  if (isAbsent(seconds)) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

function formatPercent(part, whole) {
  if (!whole) return "–";
  return part > 0 && part < whole / 200 ? "< 1 %" : `${Math.round((100 * part) / whole)} %`;
}
function pluralize(count, singular, plural) { return `${count} ${count === 1 ? singular : plural || `${singular}s`}`; }

// Lists the first names, and counts the others.
function joinFirst(names, limit) {
  const suffix = names.length > limit ? ` and ${names.length - limit} more` : "";
  return `${names.slice(0, limit).join(", ")}${suffix}`;
}

// Ages use the server's clock, which may differ from the browser's.
let clockOffsetS = 0;
function secondsSince(at) { return isAbsent(at) ? null : Date.now() / 1000 + clockOffsetS - at; }

// Returns the position of an ordered pair in the columns of the matrix, which have no diagonal; -1 for no pair.
function findCellIndex(origin, destination) {
  if (origin < 0 || destination < 0 || origin === destination) return -1;
  return origin * (state.names.length - 1) + (destination > origin ? destination - 1 : destination);
}

function makePercentileMeasure(name) {
  const valuesOf = (columns) => columns[`${name}Us`].map((us) => (us === null ? null : us / 1000));
  return { name, unit: `${name} round trip, ms`, valuesOf };
}

// What the matrix can show; `columns` is the overview's matrix, an array of all pairs for each field.
const MEASURES = {
  cost: { name: "Cost", unit: "cost", valuesOf: (columns) => columns.cost },
  p50: makePercentileMeasure("p50"),
  p90: makePercentileMeasure("p90"),
  p99: makePercentileMeasure("p99"),
};

// Returns the lowest and the highest value; of none [Infinity, -Infinity]. Math.min(...values) fails with 100,000 values.
function rangeOf(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

const SHADE_COUNT = 7;
const SHADE_OF_EQUAL_VALUES = 2;  // light, because equal values are neither good nor bad
const ROUNDING_ERROR = 1e-9;

// Returns a shade from 1 to SHADE_COUNT. Steps are equal on a logarithmic scale, because latencies differ by powers of ten.
function shadeOf(value, [low, high]) {
  if (!(high > low)) return SHADE_OF_EQUAL_VALUES;
  const step = Math.ceil((SHADE_COUNT * Math.log(value / low)) / Math.log(high / low) - ROUNDING_ERROR);
  return Math.min(SHADE_COUNT, Math.max(1, step));
}
