// Ways to things by name: the search, and addresses that can be passed on, such as #matrix/z1/z3, #groups/shop/web and #map/z1.

// What leads where; pods lead to their group, since that is where they are shown.
function known() {
  const page = state.page, found = new Map();
  for (const name of state.names) found.set(name, `map/${name}`);
  for (const agent of page.agentRows) found.set(agent.node, `agents/${agent.node}`);
  for (const group of page.groups) {
    const key = `${group.namespace}/${group.name}`;
    found.set(key, `groups/${key}`);
    for (const workload of group.workloads) for (const pod of workload.pods) found.set(pod.name, `groups/${key}`);
  }
  return found;
}

function address(view, ...names) { return `#${[view, ...names].map((name) => encodeURIComponent(name).replaceAll("%2F", "/")).join("/")}`; }

// Go where an address says; what is not there is left out, and the view is shown all the same.
function follow(text) {
  let parts = [];
  try { parts = text.replace(/^#/, "").split("/").map(decodeURIComponent); } catch { /* half an escape: somebody cut the address */ }
  const [view, ...names] = parts;
  if (!TABS.includes(view)) return false;
  showTab(view, false);
  if (!state.page || !names.length) return true;
  const [from, to] = names.map((name) => state.index.get(name) ?? -1);
  if (view === "map" && from >= 0) chooseZone(from);
  if (view === "matrix" && from >= 0 && to >= 0 && from !== to) requestAnimationFrame(() => choosePair(from, to, { scroll: true }));
  if (view === "groups") seek(names.join("/"));
  if (view === "agents") requestAnimationFrame(() => requestAnimationFrame(() => {
    const cell = [...document.querySelectorAll("#panel-agents td.name")].find((each) => each.textContent === names[0]);
    if (cell) { cell.scrollIntoView({ block: "center" }); cell.classList.add("sought"); }
  }));
  return true;
}

function keepPlace(view, ...names) { history.replaceState(null, "", address(view, ...names)); }

function drawNames() {
  const names = [...known().keys()].slice(0, 2000), seen = names.join("\n");
  if (drawNames.seen === seen) return;
  drawNames.seen = seen;
  byId("names").replaceChildren(...names.map((name) => h("option", { value: name })));
}

function search() {
  const text = byId("search").value.trim();
  if (!text) return;
  const all = known();
  const found = all.has(text) ? text : [...all.keys()].find((name) => name.includes(text));
  byId("search").setAttribute("aria-invalid", String(found === undefined));
  if (found !== undefined) follow(all.get(found));
}
