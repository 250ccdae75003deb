// The tables of a group: its windows, what became of its citations, and the groups it is made of.

import { changeSentence } from "./change.js";
import { arrange, h } from "./dom.js";
import { count, NONE, percent, ratio, score, windowName, WINDOWS } from "./format.js";
import { FEW } from "./overview.js";

const NUMBERS = [
  ["n", (w) => count(w.n)],
  ["p25", (w) => ratio(w.p25)],
  ["p50", (w) => ratio(w.p50)],
  ["p75", (w) => ratio(w.p75)],
  ["mean", (w) => ratio(w.mean)],
  ["95 %", (w) => interval(w.mean_lower, w.mean_upper), "interval of the mean, from 30 traces on"],
  ["cites any", (w) => (w.cited_any_ratio === null ? NONE : percent(w.cited_any_ratio, 1)), "answers that cite at least one retrieved chunk"],
  ["by rank", (w) => ratio(w.rank_weighted_mean), "mean recall with each chunk weighted by 1 / rank"],
  ["not retrieved", (w) => percent(w.hallucinated, w.citations), "citations that name a chunk that was not retrieved"],
  ["bad format", (w) => count(w.nonconformant), "answers that should have been structured and are not"],
];

const interval = (lower, upper) => (typeof lower === "number" ? `${ratio(lower)}–${ratio(upper)}` : NONE);

/** What the less usual columns mean, for readers without a pointer to hover with. */
export const meanings = () =>
  h("dl", { class: "meanings" }, NUMBERS.filter(([, , title]) => title).map(([name, , title]) => [h("dt", {}, name), h("dd", {}, title)]));

export function drawNumbers(table, group, drops) {
  const fell = drops.some((drop) => drop.what === "recall");
  const row = (window) => {
    const values = group?.windows[window];
    const cells = NUMBERS.map(([name, text]) => {
      const red = fell && window === "1h" && ["p25", "p50", "p75", "mean"].includes(name);
      const few = !values || values.n < FEW;
      const within = { p25: [values?.p25_lower, values?.p25_upper], p50: [values?.p50_lower, values?.p50_upper] }[name];
      const title = within && typeof within[0] === "number" ? `95 %: ${interval(...within)}` : null;
      return h("td", { title, class: `num${red ? " red" : ""}${few ? " few" : ""}` }, values ? text(values) : NONE);
    });
    return h("tr", {}, h("th", { scope: "row" }, windowName(window)), cells);
  };
  table.replaceChildren(
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Window"),
      NUMBERS.map(([name]) => h("th", { scope: "col", class: "num" }, name)))),
    h("tbody", {}, WINDOWS.map(row)));
}

const PARTS_DRAWN_MAX = 60;

export function drawParts(box, { parts, cut }) {
  const rows = parts.slice(0, PARTS_DRAWN_MAX).map((part) => {
    const [hour, whole] = [part.windows["1h"], part.windows["24h"]];
    const cells = [hour, whole].flatMap((w) => [count(w?.n), ratio(w?.p25), ratio(w?.p50), ratio(w?.mean), score(w?.score.p50)]
      .map((text, at) => h("td", { class: `num${at ? "" : " edge"}${!w || w.n < FEW ? " few" : ""}` }, text)));
    return h("tr", {}, [part.model, part.retriever_version, part.scorer].map((text) => h("td", {}, text)), cells);
  });
  const heads = ["n", "p25", "p50", "mean", "score p50"];
  const table = h("table", { class: "numbers" },
    h("thead", {},
      h("tr", {}, h("td", { colspan: 3 }), ["1 h", "24 h"].map((text) => h("th", { scope: "colgroup", colspan: heads.length, class: "over edge" }, text))),
      h("tr", {}, ["Model", "Retriever", "Scorer"].map((text) => h("th", { scope: "col" }, text)),
        [0, 1].flatMap(() => heads.map((text, at) => h("th", { scope: "col", class: at ? "num" : "num edge" }, text))))),
    h("tbody", {}, rows));
  const more = cut || parts.length > rows.length;
  arrange(box, [table, ...(more ? [h("p", { class: "muted note" }, "Not all are shown; ClickHouse's table panes has them.")] : [])]);
}

/** What changed against the group's own past; nothing where there is no past yet. */
export function changesList(group) {
  const changes = Object.entries(group?.changes ?? {});
  return changes.map(([scorer, change]) => changeSentence(scorer === "*" ? "recall" : `top-1 score (${scorer})`, change));
}

/** What became of the window's citations. */
export function citationsList(window) {
  if (!window?.citations) return h("p", { class: "muted" }, "none");
  const never = window.hallucinated - window.dropped_citations;
  const lines = [
    ["valid", window.citations - window.hallucinated - window.unresolved, "of a chunk in the context"],
    ["never retrieved", never, "hallucinated: no stage returned that chunk"],
    ["dropped", window.dropped_citations, "returned by an earlier stage, not in the context"],
    ["unresolved", window.unresolved, "out of range, or malformed"],
  ];
  return h("ul", { class: "states" }, lines.map(([name, n, meaning]) =>
    h("li", {}, h("span", {}), h("span", { class: "num" }, percent(n, window.citations)), h("span", { class: "num muted" }, count(n)),
      h("span", {}, name, h("span", { class: "muted" }, ` ${meaning}`)))));
}
