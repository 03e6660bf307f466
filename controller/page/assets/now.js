// The first view: findings and their fixes.

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
function ageBox(at) { return h("span", { class: "soft", "data-since": at }, `for ${age(since(at))}`); }

const MAX_AFFECTED = 6;
function findingBox(finding) {
  const sinceBox = finding.since === null ? null : ageBox(finding.since);
  const affected = finding.affects.slice(0, MAX_AFFECTED).join(", ");
  const more = finding.affects.length > MAX_AFFECTED ? ` and ${finding.affects.length - MAX_AFFECTED} more` : "";
  return h("li", { class: `finding ${finding.severity}` },
    h("h3", {}, `${SIGNS[finding.severity]} ${finding.summary} `, sinceBox),
    ...finding.cause.map((cause) => h("p", { class: "soft" }, `Cause: ${cause}`)),
    affected ? h("p", { class: "soft" }, `Affects ${affected}${more}`) : null,
    ...finding.fix.map((line) => h("p", { class: "fix" }, h("code", {}, line), copyButton(line))),
    finding.alert ? h("p", { class: "soft" }, `Alert and section of the runbook: ${finding.alert}`) : null);
}

function drawNow() {
  const page = state.page;
  const wrong = page.findings.length
    ? h("ul", { class: "findings" }, ...page.findings.map(findingBox))
    : h("p", { class: "good" }, "✓ Nothing is wrong.");
  byId("panel-now").replaceChildren(h("h2", {}, "What is wrong"), wrong);
}
