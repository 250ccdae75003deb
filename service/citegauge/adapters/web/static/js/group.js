// One route × top_k bucket: its numbers, lines over 24 h, distributions, states and the groups it is made of.

import { groupAddress, HOME } from "./address.js";
import { drawAlerts } from "./alerts.js";
import { ask } from "./api.js";
import { createBars, recallBars, scoreBars } from "./bars.js";
import { createChart } from "./charts.js";
import { h, setText } from "./dom.js";
import { count, day, minute, ratio, score, windowName, WINDOWS } from "./format.js";
import { createHeat } from "./heat.js";
import { changesList, citationsList, drawNumbers, drawParts, meanings } from "./numbers.js";
import { createRanks } from "./ranks.js";
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
export function createGroup({ route, bucket, window, state, show }) {
  const parts = skeleton({ route, bucket, window, state });
  const recall = createChart(parts.recallLines, RECALL);
  const quantity = createChart(parts.quantityLines, QUANTITY);
  const recallShape = createBars(parts.recallShape, 330);
  const ranks = createRanks(parts.ranks);
  const scorers = new Map();
  let past = null;
  let live = null;
  let askedAt = -Infinity;
  let busy = false;
  let toShow = show;

  function update(answer, found) {
    live = answer;
    const own = found.filter((drop) => drop.route === route && drop.top_k_bucket === bucket);
    const counted = answer.group?.windows[window];
    drawNumbers(parts.numbers, answer.group, own);
    parts.states.replaceChildren(statesList(counted?.states ?? {}, (name) => groupAddress(route, bucket, { window, state: name, show: "traces" })));
    parts.changes.replaceChildren(...changesList(answer.group));
    parts.citations.replaceChildren(citationsList(counted));
    drawParts(parts.parts, answer);
    if (past) drawSeries();
    if (past) drawMarks(past.versions);
  }

  async function history() {
    if (busy || performance.now() - askedAt < HISTORY_MS) return;
    busy = true;
    try {
      past = await askPast();
      parts.trouble.hidden = true;
      for (const element of parts.past) element.hidden = false;
      drawMarks(past.versions);
      drawSeries();
      drawScores();
      recallShape.update(recallBars(past.now.recall.values, past.usual?.recall.values ?? []), { format: ratio, name: `Recall, ${windowName(window)}` });
      ranks.update(past.ranks.ranks, past.usualRanks?.ranks ?? [], `Cited by rank, ${windowName(window)}`);
      drawAlerts(parts.alerts, past.alerts);
      drawTraces(parts.traces, past.traces);
      goTo();
      askedAt = performance.now();
    } catch (error) {
      parts.trouble.hidden = false;
      setText(parts.trouble, `History cannot be shown: ${error.message}. Live numbers above go on.`);
    } finally {
      busy = false;
    }
  }

  async function askPast() {
    const group = { route, top_k_bucket: bucket };
    const of = (path, length) => ask(`api/${path}`, { ...group, window: length });
    const isUsual = window === USUAL;
    const [series, now, usual, heat, ranks, usualRanks, versions, traces, alerts] = await Promise.all([
      ask("api/series", { ...group, window_s: 3600, step_s: SERIES_STEP_S }),
      of("distribution", window), isUsual ? null : of("distribution", USUAL), of("heat", USUAL),
      of("ranks", window), isUsual ? null : of("ranks", USUAL), of("versions", USUAL),
      ask("api/traces", { ...group, window, state }), ask("api/alerts", group),
    ]);
    return { series, now, usual, heat, ranks, usualRanks, versions: versions.versions, traces, alerts };
  }

  /** Once, when the page was opened by an address that names a part of it. */
  function goTo() {
    const part = toShow === "traces" ? parts.tracesPanel : null;
    toShow = null;
    if (!part) return;
    part.scrollIntoView({ block: "start" });
    part.querySelector("h3").focus({ preventScroll: true });
  }

  function drawMarks(versions) {
    const starts = past.alerts.alerts.filter((one) => one.scorer === "*").map((one) => ({ first_s: one.started_s, name: "fell" }));
    recall.mark([...versions, ...starts]);
    parts.marks.hidden = versions.length === 0;
    parts.marks.replaceChildren(...versions.map(({ kind, name, first_s: first }) =>
      h("li", {}, `${day(first * 1e3)} ${minute(first * 1e3)} `, h("span", { class: "muted" }, `${kind} `), h("code", {}, name), h("span", { class: "muted" }, " first seen"))));
  }

  function drawSeries() {
    const now = live?.group?.windows["1h"];
    const asOf = live?.as_of_ms ? Math.floor(live.as_of_ms / 1000) : null;
    const columns = extended(past.series.t, past.series.recall, asOf, now);
    recall.update(columns);
    quantity.update(columns);
    for (const lines of past.series.scores) {
      scorerView(lines.scorer).lines.update(extended(past.series.t, lines, asOf, live?.group?.scores[lines.scorer]?.["1h"]));
    }
  }

  function drawScores() {
    const { now, usual, heat, series, versions } = past;
    const names = new Set([...now.scores, ...(usual?.scores ?? []), ...series.scores, ...heat.scores].map((one) => one.scorer));
    for (const name of names) {
      const of = (answer) => answer?.scores.find((one) => one.scorer === name);
      const view = scorerView(name);
      view.lines.mark(versions);
      view.shape.update(scoreBars(of(now)?.values ?? [], of(usual)?.values ?? []), { format: score, name: `Top-1 score of ${name}, ${windowName(window)}` });
      if (of(heat)) view.heat.update(of(heat), { start: heat.start_s, end: heat.end_s, step: heat.step_s, format: score, name: `Top-1 score of ${name}`, marks: versions });
    }
    parts.noScores.hidden = names.size > 0;
  }

  /** Each scorer has a row of its own: scores of different scorers are not on one scale. */
  function scorerView(name) {
    if (!scorers.has(name)) {
      const [lines, shape, heat] = [h("div", { class: "chart" }), h("div", { class: "chart" }), h("div")];
      parts.scores.append(
        panel("Top-1 score", `${name}, rolling 1 h: p25, p50, p75; below, all scores of each quarter of an hour`, lines, heat),
        panel("Top-1 score", `${name}, ${legend(window)}`, shape));
      scorers.set(name, { lines: createChart(lines, SCORE), shape: createBars(shape, 440), heat: createHeat(heat) });
    }
    return scorers.get(name);
  }

  function destroy() {
    for (const part of [recall, quantity, recallShape, ranks]) part.destroy();
    for (const views of scorers.values()) Object.values(views).forEach((part) => part.destroy());
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

function skeleton({ route, bucket, window, state }) {
  const chart = (name = "") => h("div", { class: `chart ${name}` });
  const parts = {
    numbers: h("table", { class: "numbers" }),
    changes: h("ul", { class: "changes", "aria-label": "Against the day before this hour" }),
    states: h("div"), citations: h("div"),
    recallLines: chart(), quantityLines: chart("quantity"), recallShape: chart(),
    marks: h("ul", { class: "marks", hidden: "", "aria-label": "Versions that are new in these 24 h" }),
    ranks: h("div"), alerts: h("div"),
    scores: h("div", { class: "pairs" }),
    noScores: h("p", { class: "muted note", hidden: "" }, "No top-1 scores: the spans of this group carry none."),
    trouble: h("p", { class: "trouble", role: "alert", hidden: "" }),
    parts: h("div", { class: "scrolls" }),
    traces: h("div", { class: "traces" }),
  };
  const way = (more) => groupAddress(route, bucket, { window, state, ...more });
  const choice = h("nav", { class: "choice", "aria-label": "Window of distributions, states and traces" },
    WINDOWS.map((one) => h("a", { href: way({ window: one }), "aria-current": one === window ? "true" : null }, windowName(one))));
  parts.tracesPanel = panel(state === "measured" ? "Traces with the lowest recall" : `Traces: ${state}`,
    `${windowName(window)}, newest first${state === "measured" ? " among equals" : ""}`,
    state === "measured" ? null : h("p", { class: "note" }, h("a", { href: way({ state: "measured", show: "traces" }) }, "Show the measured ones")), parts.traces);
  parts.tracesPanel.querySelector("h3").setAttribute("tabindex", "-1");
  // What comes from ClickHouse shows once it has come: an empty frame would look like an empty group.
  const lines = h("div", { class: "pairs" },
    panel("Recall, rolling 1 h", "p25 to p50 as a band, traces below", parts.recallLines, parts.quantityLines, parts.marks),
    panel("Recall", legend(window), parts.recallShape));
  const alerts = panel("Alert history", "24 h, UTC: from the estimated start to the end; every quarter of an hour, and the live hour, judged", parts.alerts);
  const curve = h("div", { class: "pairs" },
    h("div", { class: "stack" }, alerts, panel("Made of", "models, retriever versions and scorers, 1 h and 24 h", parts.parts)),
    panel("Cited by rank", `share of the traces that retrieved so many, ${legend(window)}, whisker 95 %`, parts.ranks));
  parts.past = [lines, alerts, curve.lastChild, parts.scores, parts.tracesPanel];
  for (const element of parts.past) element.hidden = true;
  parts.element = h("article", { class: "group" },
    h("div", { class: "title" },
      h("p", {}, h("a", { href: HOME }, "← All routes")),
      h("h2", {}, route, " ", h("span", { class: "muted" }, `top_k ${bucket}`)),
      h("a", { class: "jump", href: way({ show: "traces" }) }, "Traces behind it"), choice),
    h("div", { class: "pairs" },
      panel("Cited-chunk recall", "a proxy: the share of retrieved chunks that the answer cites",
        h("div", { class: "scrolls" }, parts.numbers), parts.changes, meanings()),
      h("section", { class: "panel" },
        h("h3", {}, "States ", h("span", { class: "muted" }, `of traces, ${windowName(window)}`)), parts.states,
        h("h3", { class: "second" }, "Citations ", h("span", { class: "muted" }, windowName(window))), parts.citations)),
    parts.trouble, lines, curve, parts.scores, parts.noScores, parts.tracesPanel);
  return parts;
}
