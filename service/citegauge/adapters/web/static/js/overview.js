// The table of all groups. Rows live across refreshes, so that focus, hover and selections survive.

import { groupAddress } from "./address.js";
import { changeText, intervalText, isSure, weight } from "./change.js";
import { arrange, h, setAttribute, setText, svg } from "./dom.js";
import { count, NONE, percent, ratio, score, windowName } from "./format.js";
import { ordered, STATES, statesBar, total } from "./states.js";

const ROWS_DRAWN_MAX = 400;
const FILTER_FROM_ROWS = 9;
/** Below this, quartiles are mostly chance: 13 is the least n for which p25 has a 95 % order-statistic interval. */
export const FEW = 13;
const COLUMNS = ["n", "p25", "p50", "mean"];
/** The 6 h are on the group's page. */
const SHOWN = ["1h", "24h"];

export function createOverview() {
  const filter = h("input", { type: "search", placeholder: "Filter routes", "aria-label": "Filter routes", autocomplete: "off" });
  const body = h("tbody", { role: "rowgroup" });
  const note = h("p", { class: "muted note", hidden: "" });
  const key = h("p", { class: "muted note" },
    "Ranked by what changed: drops first, then changes beyond doubt, falls before rises. Change: the mean of the last hour against the day before it, each model and retriever version against its own past, with its 95 % interval. " +
    `Spread: box p25 to p75, line p50 of the last hour; dot: p50 of 24 h. Grey numbers rest on fewer than ${FEW} traces, or are no more than chance.`);
  const table = h("table", { class: "overview", role: "table" },
    h("caption", { class: "unseen" }, "Cited-chunk recall and top-1 score by route and top_k bucket"), head(), body);
  const element = h("div", {}, h("div", { class: "tools" }, filter), h("div", { class: "scrolls" }, table), note, key);
  const rows = new Map();
  let last = null;

  function update(answer, drops) {
    last = [answer, drops];
    const wanted = filter.value.trim().toLowerCase();
    const groups = sorted(answer.groups, drops).filter((group) => group.route.toLowerCase().includes(wanted));
    const drawn = groups.slice(0, ROWS_DRAWN_MAX).map((group) => {
      const name = JSON.stringify([group.route, group.top_k_bucket]);
      if (!rows.has(name)) rows.set(name, createRow(group));
      const row = rows.get(name);
      row.update(group, drops);
      return row.element;
    });
    arrange(body, drawn);
    const kept = new Set(answer.groups.map((group) => JSON.stringify([group.route, group.top_k_bucket])));
    for (const name of rows.keys()) if (!kept.has(name)) rows.delete(name);
    filter.hidden = answer.groups.length < FILTER_FROM_ROWS;
    const cut = answer.cut || groups.length > ROWS_DRAWN_MAX;
    note.hidden = !cut && groups.length > 0;
    setText(note, cut ? "Not all groups are shown: filter, or see /metrics." : "No route matches the filter.");
  }

  filter.addEventListener("input", () => last && update(...last));
  return { element, update };
}

/** Dropped groups first, then by what changed; the service orders the rest by route and bucket, so rows do not jump about. */
function sorted(groups, drops) {
  const rank = (group) => (dropsOf(group, drops).length ? 10_000 : 0) + weight(group);
  return groups.map((group) => [rank(group), group]).sort(([a], [b]) => b - a).map(([, group]) => group);
}

const dropsOf = (group, drops) =>
  drops.filter((drop) => drop.route === group.route && drop.top_k_bucket === group.top_k_bucket);

function head() {
  const cell = (text, attributes = {}) => h("th", { scope: "col", role: "columnheader", ...attributes }, text);
  const over = (text, columns, name) => cell(text, { scope: "colgroup", colspan: columns, class: `over ${name}` });
  return h("thead", { role: "rowgroup" },
    h("tr", { role: "row" }, h("td", { colspan: 2, role: "cell" }), over("Spread, 1 h", 1, "edge"),
      over("Change, 1 h", 2, "edge"), SHOWN.map((window) => over(`Recall, ${windowName(window)}`, COLUMNS.length, "edge")), over("Top-1 score, 1 h", 4, "edge"),
      over("States, 1 h", 1, "edge")),
    h("tr", { role: "row" }, cell("Route"), cell("top_k"), cell("0 to 1", { class: "edge" }),
      cell("recall", { class: "edge" }), cell("top-1 score"), SHOWN.flatMap(() => COLUMNS.map((name, at) => cell(name, { class: at ? "num" : "num edge" }))),
      ["p25", "p50", "p75"].map((name, at) => cell(name, { class: at ? "num" : "num edge" })), cell("scorer"),
      cell("measured", { class: "edge" })));
}

function createRow({ route, top_k_bucket: bucket }) {
  const address = groupAddress(route, bucket);
  const number = (name, label) => h("td", { class: `num ${name}`, role: "cell", "data-label": label });
  const cells = Object.fromEntries(
    SHOWN.map((window) => [window, COLUMNS.map((name, at) => number(`w${window} ${at ? "" : "edge"}`, name))]));
  const scores = ["p25", "p50", "p75"].map((name, at) => number(`score ${at ? "" : "edge"}`, name));
  const scorer = h("td", { class: "scorer muted", role: "cell" }, h("span", { class: "name" }), h("span"));
  const changes = ["recall", "top-1"].map((name, at) => h("td", { class: `change ${at ? "" : "edge"}`, role: "cell", "data-label": name }));
  const spread = h("td", { class: "spread edge", role: "cell" });
  const states = h("td", { class: "statescell edge", role: "cell" });
  const apart = h("span", { class: "apart" });
  const only = (text) => h("td", { class: "cardlabel", role: "presentation", "aria-hidden": "true" }, text);
  const element = h("tr", { role: "row", class: "row" },
    h("th", { scope: "row", role: "rowheader" }, h("a", { href: address, title: route }, route), apart),
    h("td", { class: "bucket", role: "cell" }, bucket), spread, only("change"), ...changes,
    SHOWN.flatMap((window) => [only(windowName(window)), ...cells[window]]), only("top-1"), ...scores, scorer, states);
  element.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !String(getSelection())) location.hash = address;
  });

  function update(group, drops) {
    const found = dropsOf(group, drops);
    const fell = (what) => found.some((drop) => drop.what === what);
    element.classList.toggle("fell", found.length > 0);
    setAttribute(element, "title", found.length ? found.map((drop) => drop.sentence).join("\n") : null);
    updateChange(changes[0], group.changes["*"], fell("recall"));
    updateChange(changes[1], scoreChange(group), fell("score"));
    for (const window of SHOWN) updateWindow(cells[window], group.windows[window], window === "1h" && fell("recall"));
    updateScore(scores, scorer, group.scores, fell("score"));
    spread.replaceChildren(spreadMark(group.windows["1h"], group.windows["24h"]));
    updateStates(states, group.windows["1h"]?.states ?? {});
    updateApart(apart, route, group.apart["1h"] ?? {});
  }
  return { element, update };
}

function updateWindow(cells, values, fell) {
  COLUMNS.forEach((name, at) => {
    const value = values?.[name];
    setText(cells[at], name === "n" ? count(value) : ratio(value));
    cells[at].classList.toggle("few", !values || values.n < FEW);
    cells[at].classList.toggle("red", fell && name !== "n");
    setAttribute(cells[at], "title", name !== "n" && typeof value === "number" ? value.toFixed(6) : null);
  });
}

/** Of the scorer that is shown, if it alone has a change worth showing; else of the one that changed most. */
function scoreChange({ changes }) {
  const found = Object.entries(changes).filter(([name]) => name !== "*").map(([, change]) => change);
  return found.sort((a, b) => isSure(b) - isSure(a) || a.change - b.change)[0];
}

function updateChange(cell, change, fell) {
  const said = change ? [changeText(change), intervalText(change)] : [NONE, ""];
  if (cell.dataset.said !== said.join()) {
    cell.dataset.said = said.join();
    cell.replaceChildren(h("span", { class: "by" }, said[0]), ...(said[1] ? [" ", h("span", { class: "within" }, said[1])] : []));
  }
  cell.classList.toggle("red", fell);
  cell.classList.toggle("few", !change || !isSure(change));
}

function updateScore(cells, scorer, scores, fell) {
  const now = Object.entries(scores).map(([name, windows]) => [name, windows["1h"]]).filter(([, values]) => values?.n);
  now.sort(([, a], [, b]) => b.n - a.n);
  const [name, values] = now[0] ?? ["", null];
  ["p25", "p50", "p75"].forEach((stat, at) => {
    setText(cells[at], score(values?.[stat]));
    cells[at].classList.toggle("few", !values || values.n < FEW);
    cells[at].classList.toggle("red", fell);
  });
  setText(scorer.firstChild, name);
  setText(scorer.lastChild, now.length > 1 ? ` +${now.length - 1}` : "");
  setAttribute(scorer, "title", now.map(([one, { n }]) => `${one}: n = ${count(n)}`).join("\n") || null);
}

function updateStates(cell, states) {
  const all = total(states);
  const bar = statesBar(states);
  if (cell.firstChild?.getAttribute?.("aria-label") === bar.getAttribute("aria-label")) return;
  cell.replaceChildren(bar, h("span", { class: "num muted" }, all ? percent(states.measured ?? 0, all) : NONE));
}

/** Traces of the route that have no top_k, such as halves: they have no row of their own. */
function updateApart(cell, route, states) {
  const parts = ordered(states);
  const said = parts.map(([name, n]) => `${name} ${count(n)}`).join(", ");
  if (cell.dataset.said === said) return;
  cell.dataset.said = said;
  cell.replaceChildren(...parts.map(([name, n]) =>
    h("a", { href: groupAddress(route, "unknown", { state: name }), title: `1 h, top_k not known: ${STATES[name] ?? name}` },
      `+${count(n)} ${name}`)));
}

/** p25 to p75 as a box and p50 as a line on a scale from 0 to 1; the p50 of 24 h as a dot, to see a shift at a glance. */
function spreadMark(hour, day) {
  // Percentages rather than a viewBox: the mark stretches with its cell and its dot stays round.
  const at = (value) => `${2 + value * 96}%`;
  const mark = svg("svg", { class: "spreadmark", height: 16, role: "img",
    "aria-label": hour?.n ? `1 h: p25 ${ratio(hour.p25)}, p50 ${ratio(hour.p50)}, p75 ${ratio(hour.p75)}` : "no traces in the last hour" });
  mark.append(svg("line", { class: "rail", x1: at(0), x2: at(1), y1: 8, y2: 8 }));
  if (hour?.n) {
    mark.append(svg("rect", { class: "box", x: at(hour.p25), width: `${Math.max(1, (hour.p75 - hour.p25) * 96)}%`, y: 4, height: 8, rx: 1 }));
    mark.append(svg("line", { class: "middle", x1: at(hour.p50), x2: at(hour.p50), y1: 2, y2: 14 }));
  }
  if (day?.n) mark.append(svg("circle", { class: "usual", cx: at(day.p50), cy: 8, r: 2.4 }));
  return mark;
}
