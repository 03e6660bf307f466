// The first view: what is wrong and what ends it, what placement saves, what changed in the last hour.

const SIGNS = { critical: "✗", warning: "✗", info: "·" };

function runbook(alert) {
  const base = state.page.runbook;
  return base && alert ? h("a", { href: `${base}#${alert.toLowerCase()}`, target: "_blank", rel: "noopener noreferrer" }, alert) : h("span", { class: "soft" }, alert);
}

// A name that leads somewhere is a link; others are told as they are.
function named(name) {
  const where = known().get(name);
  return where ? h("a", { class: "link", href: address(...where.split("/")) }, name) : name;
}
function seek(group) {
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const box = [...document.querySelectorAll(".groupbox")].find((each) => each.dataset.group === group);
    if (box) box.scrollIntoView({ block: "start" });
  }));
}

function copied(text) {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select and copy by hand"; }
  });
  return button;
}

const SHOWN_HURT = 6;
function findingBox(finding) {
  const hurt = finding.hurts.slice(0, SHOWN_HURT).flatMap((name, i) => (i ? [", ", named(name)] : [named(name)]));
  const more = finding.hurts.length > SHOWN_HURT ? ` and ${finding.hurts.length - SHOWN_HURT} more` : "";
  return h("li", { class: `finding ${finding.severity}` },
    h("h3", {}, `${SIGNS[finding.severity]} ${finding.what} `, finding.since === null ? null : h("span", { class: "soft" }, `for ${age(since(finding.since))}`)),
    ...finding.because.map((cause) => h("p", { class: "soft" }, `because ${cause}`)),
    hurt.length ? h("p", { class: "soft" }, "hurts ", ...hurt, more) : null,
    ...finding.do.map((line) => h("p", { class: "do" }, h("code", {}, line), copied(line))),
    finding.alert ? h("p", {}, "Runbook: ", runbook(finding.alert)) : null);
}

function problemBox(problem) {
  const fires = problem.firing === null ? "" : problem.firing ? ", firing" : ", not firing yet";
  const rest = problem.count > problem.examples.length && problem.examples.length ? ` and ${problem.count - problem.examples.length} more` : "";
  return h("li", { class: `finding ${problem.severity}` }, h("h3", {}, `${SIGNS[problem.severity]} ${problem.summary}`),
    problem.examples.length ? h("p", { class: "soft" }, problem.examples.join(", ") + rest) : null, h("p", {}, "Runbook: ", runbook(problem.alert), fires));
}

// A problem is the same state as an alert sees it; where a finding names its cause, the cause is told.
function untold() {
  const told = new Set(state.page.findings.map((finding) => finding.alert));
  return state.page.problems.filter((problem) => !told.has(problem.alert));
}

function drawNow() {
  const page = state.page, rest = untold();
  const wrong = page.findings.length || rest.length
    ? h("ul", { class: "findings" }, ...page.findings.map(findingBox), ...rest.map(problemBox))
    : h("p", { class: "good" }, "✓ Nothing is wrong.");
  const saving = page.groups.filter((group) => group.saving);
  const rows = saving.map((group) => {
    const { us, randomUs, cost, randomCost, dependencies } = group.saving;
    const share = randomUs > 0 ? Math.round(100 * (1 - us / randomUs)) : 0;
    return [[named(`${group.namespace}/${group.name}`), "name"], [String(dependencies), "n"], [ms(us), "n"], [ms(randomUs), "n"], [number(cost), "n"], [number(randomCost), "n"],
      [share >= 0 ? `${share} % less` : `${-share} % more`, share >= 0 ? "n good" : "n bad"]];
  });
  const changes = page.changes.map((change) => h("li", {}, h("span", { class: "when" }, `${age(since(change.at))} ago`), h("span", {}, h("span", { class: change.good ? "good" : "bad" }, change.good ? "✓ " : "✗ "), `${change.about}: ${change.what}`)));
  byId("panel-now").replaceChildren(
    h("h2", {}, "What is wrong"), wrong,
    h("h2", {}, "What placement saves"),
    rows.length
      ? table(["AppGroup", ["Dependencies", "n"], ["A call now", "n"], ["at random", "n"], ["Cost now", "n"], ["at random", "n"], ["", "n"]], rows)
      : h("p", { class: "note" }, "No AppGroup has pods placed at both ends of a dependency whose round trip is known."),
    h("h2", {}, "Changed in the last hour"),
    changes.length ? h("ol", { class: "changes" }, ...changes) : h("p", { class: "note" }, "Nothing."));
}
