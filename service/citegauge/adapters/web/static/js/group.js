// One route × top_k bucket: its numbers, lines over 24 h, distributions, states and the groups it is made of.

import { groupAddress, HOME } from "./address.js";
import { ask } from "./api.js";
import { createBars, recallBars, scoreBars } from "./bars.js";
import { createChart } from "./charts.js";
import { arrange, h, setText } from "./dom.js";
import { count, NONE, percent, ratio, score, windowName, WINDOWS } from "./format.js";
import { FEW } from "./overview.js";
import { statesList } from "./states.js";
import { drawTraces } from "./traces.js";

const HISTORY_MS = 30_000;
const SERIES_STEP_S = 300;
const USUAL = "24h";

const RECALL = {
  label: "Recall, rolling 1 h",
  height: 210,
  format: ratio,
  range: [0, 1],
  band: ["p50", "p25"],
  lines: [
    { key: "p50", label: "p50", color: "--data", width: 2 },
    { key: "p25", label: "p25", color: "--data-2", width: 1.25 },
    { key: "mean", label: "mean", color: "--ink", width: 1.25, dash: [4, 4] },
  ],
};
const QUANTITY = {
  label: "Measured traces per rolling 1 h",
  height: 84,
  format: count,
  axisFormat: (value) => (value >= 10_000 ? `${Math.round(value / 1000)}k` : count(value)),
  range: (_, __, high) => [0, Math.max(1, high ?? 1) * 1.1],
  timeAxis: true,
  lines: [{ key: "n", label: "n", color: "--data-3", width: 1 }],
};
const SCORE = {
  height: 210,
  format: score,
  range: null,
  band: ["p75", "p25"],
  timeAxis: true,
  lines: [
    { key: "p75", label: "p75", color: "--data-2", width: 1 },
    { key: "p50", label: "p50", color: "--data", width: 2 },
    { key: "p25", label: "p25", color: "--data-2", width: 1.25 },
  ],
};

/** The view of one address; `update` takes live numbers, `history` reads ClickHouse when that is due. */
export function createGroup({ route, bucket, window }) {
  const parts = skeleton(route, bucket, window);
  const recall = createChart(parts.recallLines, RECALL);
  const quantity = createChart(parts.quantityLines, QUANTITY);
  const recallShape = createBars(parts.recallShape, 330);
  const scorers = new Map();
  let series = null;
  let live = null;
  let askedAt = -Infinity;
  let busy = false;

  function update(answer, drops) {
    live = answer;
    const own = drops.filter((drop) => drop.route === route && drop.top_k_bucket === bucket);
    drawNumbers(parts.numbers, answer.group, own);
    parts.states.replaceChildren(statesList(answer.group?.windows[window]?.states ?? {}));
    drawParts(parts.parts, answer);
    if (series) drawSeries();
  }

  async function history() {
    if (busy || performance.now() - askedAt < HISTORY_MS) return;
    busy = true;
    try {
      const group = { route, top_k_bucket: bucket };
      const [lines, now, usual, traces] = await Promise.all([
        ask("api/series", { ...group, window_s: 3600, step_s: SERIES_STEP_S }),
        ask("api/distribution", { ...group, window }),
        window === USUAL ? null : ask("api/distribution", { ...group, window: USUAL }),
        ask("api/traces", { ...group, window }),
      ]);
      series = lines;
      parts.trouble.hidden = true;
      for (const element of parts.past) element.hidden = false;
      drawSeries();
      drawDistributions(now, usual);
      drawTraces(parts.traces, traces);
      askedAt = performance.now();
    } catch (error) {
      parts.trouble.hidden = false;
      setText(parts.trouble, `History cannot be shown: ${error.message}. Live numbers above go on.`);
    } finally {
      busy = false;
    }
  }

  function drawSeries() {
    const now = live?.group?.windows["1h"];
    const asOf = live?.as_of_ms ? Math.floor(live.as_of_ms / 1000) : null;
    const columns = extended(series.t, series.recall, asOf, now);
    recall.update(columns);
    quantity.update(columns);
    for (const lines of series.scores) {
      scorerView(lines.scorer).lines.update(extended(series.t, lines, asOf, live?.group?.scores[lines.scorer]?.["1h"]));
    }
  }

  function drawDistributions(now, usual) {
    recallShape.update(recallBars(now.recall.values, usual?.recall.values ?? []), { format: ratio, name: `Recall, ${windowName(window)}` });
    const names = new Set([...now.scores, ...(usual?.scores ?? []), ...series.scores].map((one) => one.scorer));
    for (const name of names) {
      const values = (answer) => answer?.scores.find((one) => one.scorer === name)?.values ?? [];
      scorerView(name).shape.update(scoreBars(values(now), values(usual)), { format: score, name: `Top-1 score of ${name}, ${windowName(window)}` });
    }
    parts.noScores.hidden = names.size > 0;
  }

  /** Each scorer has a row of its own: scores of different scorers are not on one scale. */
  function scorerView(name) {
    if (!scorers.has(name)) {
      const [lines, shape] = [h("div", { class: "chart" }), h("div", { class: "chart" })];
      parts.scores.append(
        panel(`Top-1 score, rolling 1 h`, name, lines), panel("Top-1 score", `${name}, ${legend(window)}`, shape));
      scorers.set(name, { lines: createChart(lines, SCORE), shape: createBars(shape, 234) });
    }
    return scorers.get(name);
  }

  function destroy() {
    for (const part of [recall, quantity, recallShape]) part.destroy();
    for (const { lines, shape } of scorers.values()) [lines, shape].forEach((part) => part.destroy());
  }

  return { element: parts.element, update, history, destroy };
}

/** The lines from ClickHouse plus the live window as their newest point, so that chart and table end on one number. */
function extended(t, lines, asOf, now) {
  const columns = { t: [...t] };
  const isNewer = now && asOf !== null && asOf > (t.at(-1) ?? -Infinity);
  if (isNewer) columns.t.push(asOf);
  for (const [key, values] of Object.entries(lines)) {
    if (Array.isArray(values)) columns[key] = isNewer ? [...values, now[key] ?? null] : values;
  }
  return columns;
}

const legend = (window) => (window === USUAL ? "24 h" : `bars ${windowName(window)}, ticks 24 h`);

const panel = (title, detail, ...content) =>
  h("section", { class: "panel" }, h("h3", {}, title, " ", h("span", { class: "muted" }, detail)), ...content);

function skeleton(route, bucket, window) {
  const parts = {
    numbers: h("table", { class: "numbers" }),
    states: h("div"),
    recallLines: h("div", { class: "chart" }),
    quantityLines: h("div", { class: "chart quantity" }),
    recallShape: h("div", { class: "chart" }),
    scores: h("div", { class: "pairs" }),
    noScores: h("p", { class: "muted note", hidden: "" }, "No top-1 scores: the spans of this group carry none."),
    trouble: h("p", { class: "trouble", role: "alert", hidden: "" }),
    parts: h("div", { class: "scrolls" }),
    traces: h("div", { class: "traces" }),
  };
  const choice = h("nav", { class: "choice", "aria-label": "Window of distributions and states" },
    WINDOWS.map((one) => h("a", { href: groupAddress(route, bucket, one), "aria-current": one === window ? "true" : null }, windowName(one))));
  // What comes from ClickHouse shows once it has come: an empty frame would look like an empty group.
  parts.past = [
    h("div", { class: "pairs", hidden: "" },
      panel("Recall, rolling 1 h", "p25 to p50 as a band, traces below", parts.recallLines, parts.quantityLines),
      panel("Recall", legend(window), parts.recallShape)),
    parts.scores,
  ];
  const traces = panel("Lowest recall", `${windowName(window)}, newest first among equals`, parts.traces);
  traces.hidden = true;
  parts.past.push(traces);
  parts.element = h("article", { class: "group" },
    h("div", { class: "title" },
      h("p", {}, h("a", { href: HOME }, "← All routes")),
      h("h2", {}, route, " ", h("span", { class: "muted" }, `top_k ${bucket}`)), choice),
    h("div", { class: "pairs" },
      panel("Cited-chunk recall", "a proxy: the share of retrieved chunks that the answer cites",
        h("div", { class: "scrolls" }, parts.numbers), meanings()),
      panel("States", windowName(window), parts.states)),
    parts.trouble, parts.past[0],
    panel("Made of", "models, retriever versions and scorers, 1 h and 24 h", parts.parts),
    parts.scores, parts.noScores, traces);
  return parts;
}

const NUMBERS = [
  ["n", (w) => count(w.n)],
  ["p25", (w) => ratio(w.p25)],
  ["p50", (w) => ratio(w.p50)],
  ["p75", (w) => ratio(w.p75)],
  ["mean", (w) => ratio(w.mean)],
  ["cites any", (w) => (w.cited_any_ratio === null ? NONE : percent(w.cited_any_ratio, 1)), "answers that cite at least one retrieved chunk"],
  ["by rank", (w) => ratio(w.rank_weighted_mean), "mean recall with each chunk weighted by 1 / rank"],
  ["not retrieved", (w) => percent(w.hallucinated, w.citations), "citations that name a chunk that was not retrieved"],
  ["bad format", (w) => count(w.nonconformant), "answers that should have been structured and are not"],
];

/** What the less usual columns mean, for readers without a pointer to hover with. */
const meanings = () =>
  h("dl", { class: "meanings" }, NUMBERS.filter(([, , title]) => title).map(([name, , title]) => [h("dt", {}, name), h("dd", {}, title)]));

function drawNumbers(table, group, drops) {
  const fell = drops.some((drop) => drop.what === "recall");
  const row = (window) => {
    const values = group?.windows[window];
    const cells = NUMBERS.map(([name, text]) => {
      const red = fell && window === "1h" && ["p25", "p50", "p75", "mean"].includes(name);
      const few = !values || values.n < FEW;
      return h("td", { class: `num${red ? " red" : ""}${few ? " few" : ""}` }, values ? text(values) : NONE);
    });
    return h("tr", {}, h("th", { scope: "row" }, windowName(window)), cells);
  };
  table.replaceChildren(
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Window"),
      NUMBERS.map(([name]) => h("th", { scope: "col", class: "num" }, name)))),
    h("tbody", {}, WINDOWS.map(row)));
}

const PARTS_DRAWN_MAX = 60;

function drawParts(box, { parts, cut }) {
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
