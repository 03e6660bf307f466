"use strict";
// What all views need: building elements without innerHTML (names come from the cluster), numbers as people read them, the
// classes of the colour scale, and the one state.

const state = {
  page: null,        // what the server said last, see controller/page/model.py
  names: [],         // zone names in order
  index: new Map(),  // zone name -> position
  measure: "cost",   // what the matrix shows
  from: -1, to: -1,  // selected pair, positions
};

const SVG = "http://www.w3.org/2000/svg";
const BASES = { measured: "measured", mirrored: "measured the other way", stale: "old measurement", inferred: "inferred from a path over other zones", unreachable: "unreachable: the path is dead", given: "set by the user", absent: "no cost: counts as 100" };

function byId(id) { return document.getElementById(id); }

// Without characters that hide what a text says, such as those that turn its direction.
function plain(text) { return text.replace(/\p{C}/gu, "\ufffd"); }

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : plain(String(value)));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(typeof child === "string" ? plain(child) : child);
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

// The server's clock and ours may differ; ages are told by the server's, carried on by ours.
let clockOffset = 0;
function serverNow() { return Date.now() / 1000 + clockOffset; }
function since(at) { return at === null || at === undefined ? null : serverNow() - at; }

function cellIndex(from, to) {
  const n = state.names.length;
  return from < 0 || to < 0 || from === to ? -1 : from * (n - 1) + (to > from ? to - 1 : to);
}

const MEASURES = {
  cost: { name: "Cost", unit: "cost", of: (m, k) => m.cost[k] },
  p50: { name: "p50", unit: "p50 round trip, ms", of: (m, k) => (m.p50[k] === null ? null : m.p50[k] / 1000) },
  p90: { name: "p90", unit: "p90 round trip, ms", of: (m, k) => (m.p90[k] === null ? null : m.p90[k] / 1000) },
  p99: { name: "p99", unit: "p99 round trip, ms", of: (m, k) => (m.p99[k] === null ? null : m.p99[k] / 1000) },
};

// Upper ends of seven classes of equal width on a logarithmic scale, since latencies spread over decades.
function classes(values) {
  let low = Infinity, high = 0;
  for (const value of values) {
    if (value !== null && value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  if (high === 0) return [];
  if (high / low < 1.0000001) return [high];
  const step = Math.log(high / low) / 7;
  const ends = [];
  for (let i = 1; i < 7; i++) ends.push(low * Math.exp(step * i));
  ends.push(high);
  return ends;
}

function classOf(value, ends) {
  for (let i = 0; i < ends.length; i++) if (value <= ends[i] * 1.000000001) return i;
  return ends.length - 1;
}

// Fewer classes than colours spread over the whole ramp.
function shadeOf(value, ends) { return ends.length < 2 ? 1 : Math.round((classOf(value, ends) * 6) / (ends.length - 1)); }
