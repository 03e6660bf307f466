"use strict";
// Shared by all tabs: the state, builders of elements without innerHTML (names come from the cluster), number formats,
// and the colour scale.

const state = {
  page: null,        // the newest overview, as controller/page/encoding.py encodes it
  names: [],         // zone names in order
  positions: new Map(),  // zone name -> position in names
  measure: "cost",   // shown in the matrix, a key of MEASURES
  from: -1, to: -1,  // positions of the selected pair, -1 for none
};

const SVG = "http://www.w3.org/2000/svg";

// Basis of a cost -> sign behind the cost, as in `kubectl netaware costs`, and meaning.
const BASES = {
  measured: { sign: "", text: "measured" },
  mirrored: { sign: "", text: "measured the other way" },
  stale: { sign: "~", text: "old measurement" },
  inferred: { sign: "*", text: "inferred from a path over other zones" },
  unreachable: { sign: "x", text: "unreachable" },
  given: { sign: "", text: "set by the user" },
  absent: { sign: "", text: "no cost: counts as 100" },
};
const FLAGGED = { sign: "!", text: "newest sample not trusted" };

function isAbsent(value) { return value === null || value === undefined || value === false; }
function byId(id) { return document.getElementById(id); }

// The text with replacements for invisible characters, such as those that change its direction.
function makePrintable(text) { return text.replace(/\p{C}/gu, "\ufffd"); }

// Sets attributes and event listeners (`onclick`), and appends children; leaves out null, undefined and false.
function fill(element, attributes, children) {
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

// Named as in hyperscript: builds an HTML element.
function h(tag, attributes, ...children) { return fill(document.createElement(tag), attributes, children); }
function svg(tag, attributes, ...children) { return fill(document.createElementNS(SVG, tag), attributes, children); }

function number(value) {
  if (isAbsent(value)) return "–";
  if (value >= 10 || Number.isInteger(value)) return String(Math.round(value));
  return value >= 1 ? value.toFixed(1) : value.toFixed(2);
}

function milliseconds(us) { return isAbsent(us) ? "–" : `${number(us / 1000)} ms`; }

function rate(bps) {
  if (isAbsent(bps)) return "–";
  for (const [unit, size] of [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]]) {
    if (Math.abs(bps) >= size) return `${Number((bps / size).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(bps)} bit/s`;
}

function age(seconds) {
  if (isAbsent(seconds)) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

function percent(part, whole) {
  if (!whole) return "–";
  return part > 0 && part < whole / 200 ? "< 1 %" : `${Math.round((100 * part) / whole)} %`;
}
function pluralize(count, one, many) { return `${count} ${count === 1 ? one : many || `${one}s`}`; }

// The first names, and the number of the others.
function joinFirst(names, limit) {
  const more = names.length > limit ? ` and ${names.length - limit} more` : "";
  return `${names.slice(0, limit).join(", ")}${more}`;
}

// Ages use the server's clock, which may differ from the browser's.
let clockOffset = 0;
function secondsSince(at) { return isAbsent(at) ? null : Date.now() / 1000 + clockOffset - at; }

// Position of an ordered pair in the columns of the matrix, which leave out the diagonal; -1 for no pair.
function cellIndex(from, to) {
  const count = state.names.length;
  return from < 0 || to < 0 || from === to ? -1 : from * (count - 1) + (to > from ? to - 1 : to);
}

function percentileMeasure(name) {
  const valueOf = (columns, i) => (columns[name][i] === null ? null : columns[name][i] / 1000);
  return { name, unit: `${name} round trip, ms`, valueOf };
}

const MEASURES = {
  cost: { name: "Cost", unit: "cost", valueOf: (columns, i) => columns.cost[i] },
  p50: percentileMeasure("p50"),
  p90: percentileMeasure("p90"),
  p99: percentileMeasure("p99"),
};

function rangeOf(values) { return [Math.min(...values), Math.max(...values)]; }

const SHADES = 7, ONLY_SHADE = 2, ROUNDING_ERROR = 1e-9;

// The number of a shade, 1 to SHADES. Steps are equal on a logarithmic scale, because latencies spread over decades.
function shadeOf(value, [low, high]) {
  if (!(high > low)) return ONLY_SHADE;
  const step = Math.ceil((SHADES * Math.log(value / low)) / Math.log(high / low) - ROUNDING_ERROR);
  return Math.min(SHADES, Math.max(1, step));
}
