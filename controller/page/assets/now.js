// The tab Now: findings and their fixes.

const MAX_AFFECTED = 6;
const SIGNS = { critical: "✗", warning: "✗", info: "·" };

function copyButton(text) {
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

// An age that `drawAges` keeps current.
function ageBox(at) { return h("span", { class: "soft", "data-since": at }, `for ${age(secondsSince(at))}`); }

function findingBox(finding) {
  const affected = joinFirst(finding.affects, MAX_AFFECTED);
  return h("li", { class: `finding ${finding.severity}` },
    h("h3", {}, `${SIGNS[finding.severity]} ${finding.summary} `,
      finding.since === null ? null : ageBox(finding.since)),
    ...finding.cause.map((cause) => h("p", { class: "soft" }, `Cause: ${cause}`)),
    affected ? h("p", { class: "soft" }, `Affects ${affected}`) : null,
    ...finding.fix.map((line) => h("p", { class: "fix" }, h("code", {}, line), copyButton(line))),
    finding.alert ? h("p", { class: "soft" }, `Alert and section of the runbook: ${finding.alert}`) : null);
}

function drawNow() {
  const findings = state.page.findings.length
    ? h("ul", { class: "findings" }, ...state.page.findings.map(findingBox))
    : h("p", { class: "good" }, "✓ Nothing is wrong.");
  byId("panel-now").replaceChildren(h("h2", {}, "What is wrong"), findings);
}
