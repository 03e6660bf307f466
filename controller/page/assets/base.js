"use strict";
// Shared by all views: the state, building elements without innerHTML (names come from the cluster), number formats,
// and the colour scale.

const state = {
  page: null,        // the newest overview, see controller/page/model.py
  names: [],         // zone names in order
  index: new Map(),  // zone name -> position
  measure: "cost",   // shown in the matrix, a key of MEASURES
  from: -1, to: -1,  // selected pair, positions
};

const SVG = "http://www.w3.org/2000/svg";

// Bases of a cost; signs are those of `kubectl netaware costs`.
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

function byId(id) { return document.getElementById(id); }

// The text without invisible characters, such as those that change its direction.
function plain(text) { return text.replace(/\p{C}/gu, "\ufffd"); }

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : plain(String(value)));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "string" ? plain(child) : child);
  }
  return element;
}

function h(tag, attributes, ...children) { return fill(document.createElement(tag), attributes, children); }
function s(tag, attributes, ...children) { return fill(document.createElementNS(SVG, tag), attributes, children); }

function number(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10 || Number.isInteger(value)) return String(Math.round(value));
  return value >= 1 ? value.toFixed(1) : value.toFixed(2);
}

function ms(us) { return us === null || us === undefined ? "–" : `${number(us / 1000)} ms`; }

function rate(bps) {
  if (bps === null || bps === undefined) return "–";
  for (const [unit, size] of [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]]) {
    if (Math.abs(bps) >= size) return `${Number((bps / size).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(bps)} bit/s`;
}

function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
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
function counted(count, one, many) { return `${count} ${count === 1 ? one : many || `${one}s`}`; }

// Ages are by the server's clock, which may differ from the browser's.
let clockOffset = 0;
function serverNow() { return Date.now() / 1000 + clockOffset; }
function since(at) { return at === null || at === undefined ? null : serverNow() - at; }

// Position of an ordered pair in the columns of the matrix, which omit the diagonal; -1 without a pair.
function cellIndex(from, to) {
  const count = state.names.length;
  return from < 0 || to < 0 || from === to ? -1 : from * (count - 1) + (to > from ? to - 1 : to);
}

function percentileMeasure(name) {
  const of = (columns, i) => (columns[name][i] === null ? null : columns[name][i] / 1000);
  return { name, unit: `${name} round trip, ms`, of };
}

const MEASURES = {
  cost: { name: "Cost", unit: "cost", of: (columns, i) => columns.cost[i] },
  p50: percentileMeasure("p50"),
  p90: percentileMeasure("p90"),
  p99: percentileMeasure("p99"),
};

function rangeOf(values) { return [Math.min(...values), Math.max(...values)]; }

// One of seven shades, in equal steps on a logarithmic scale, because latencies spread over decades.
function shadeOf(value, [low, high]) {
  if (!(high > low)) return 2;
  const step = Math.ceil((7 * Math.log(value / low)) / Math.log(high / low) - 1e-9);
  return Math.min(7, Math.max(1, step));
}
