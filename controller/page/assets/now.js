// The tab Now: findings and their fixes.

const MAX_AFFECTED_SHOWN = 6;
const SIGNS = { critical: "✗", warning: "✗", info: "·" };

function buildCopyButton(text) {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy by hand";
    }
  });
  return button;
}

// Builds an age that `drawAges` keeps current.
function buildAge(at) { return h("span", { class: "soft", "data-since": at }, `for ${formatAge(secondsSince(at))}`); }

function buildFinding(finding) {
  const affected = joinFirst(finding.affects, MAX_AFFECTED_SHOWN);
  return h("li", { class: `finding ${finding.severity}` },
    h("h3", {}, `${SIGNS[finding.severity]} ${finding.summary} `,
      finding.since === null ? null : buildAge(finding.since)),
    ...finding.cause.map((cause) => h("p", { class: "soft" }, `Cause: ${cause}`)),
    affected ? h("p", { class: "soft" }, `Affects ${affected}`) : null,
    ...finding.fix.map((line) => h("p", { class: "fix" }, h("code", {}, line), buildCopyButton(line))),
    finding.alert ? h("p", { class: "soft" }, `Alert and section of the runbook: ${finding.alert}`) : null);
}

function drawNow() {
  const findings = state.overview.findings.length
    ? h("ul", { class: "findings" }, ...state.overview.findings.map(buildFinding))
    : h("p", { class: "good" }, "✓ Nothing is wrong.");
  byId("panel-now").replaceChildren(h("h2", {}, "What is wrong"), findings);
}
