// A heat map of scores over time: each column is one stretch of time, darker where more of its traces have that score.

import { h, setText, svg } from "./dom.js";
import { count, minute, percent } from "./format.js";
import { MARGIN } from "./bars.js";
import { FEW } from "./overview.js";

const LEVELS = 8;
const HEIGHT = 210;
/** Height of a row for what lies beyond the range, and what keeps it apart from the range. */
const BEYOND = 15;
const GAP = 4;

/** Draw into `host` and again when its width changes. `update(scores, {start, end, step, format, name, marks})`. */
export function createHeat(host) {
  const place = h("div", { class: "chart" });
  const said = h("p", { class: "readout muted" });
  host.append(place, said);
  let drawn = null;
  let column = null;

  function draw() {
    if (!drawn || place.clientWidth === 0) return;
    const focused = place.contains(document.activeElement);
    const picture = heatMap(place.clientWidth, ...drawn);
    place.replaceChildren(picture.element);
    picture.element.addEventListener("pointermove", (event) => point(picture.at(event)));
    picture.element.addEventListener("pointerleave", () => point(null));
    picture.element.addEventListener("keydown", (event) => step(event, picture));
    point(column);
    if (focused) picture.element.focus();

    function point(next) {
      column = next === null ? null : Math.max(0, Math.min(drawn[0].t.length - 1, next));
      picture.point(column);
      setText(said, column === null ? `Each column's shares add up to 100 %; darkest: ${percent(picture.top, 1)} of a column. Arrow keys or a pointer read it.` : describe(...drawn, column));
    }
    function step(event, { element }) {
      const last = drawn[0].t.length - 1;
      const to = { ArrowLeft: (column ?? last + 1) - 1, ArrowRight: (column ?? last - 1) + 1, Home: 0, End: last }[event.key];
      if (to === undefined || last < 0) return;
      event.preventDefault();
      point(to);
      element.setAttribute("aria-valuenow", column);
      element.setAttribute("aria-valuetext", said.textContent);
    }
  }

  const watcher = new ResizeObserver(draw);
  watcher.observe(place);
  return {
    update(scores, words) {
      drawn = [scores, words];
      draw();
    },
    destroy: () => watcher.disconnect(),
  };
}

/** Share of a column that is drawn darkest: the largest one in a row of the range, among columns that are more than chance. */
function darkest({ n, cells, bins }) {
  const inside = ([row]) => row >= 0 && row < bins;
  const largest = (least) => Math.max(0, ...cells.flatMap((column, at) => (n[at] >= least ? column.filter(inside).map(([, found]) => found / n[at]) : [])));
  return largest(FEW) || largest(1) || 1;
}

function heatMap(width, scores, { start, end, step, format, name, marks }) {
  const { low, step: size, bins, below, above, t, n, cells } = scores;
  const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
  const x = (seconds) => MARGIN.left + ((Math.min(end, Math.max(start, seconds)) - start) / (end - start)) * inner.width;
  const range = { top: MARGIN.top + (above ? BEYOND + GAP : 0), bottom: HEIGHT - MARGIN.bottom - (below ? BEYOND + GAP : 0) };
  const y = (bin) => range.bottom - (range.bottom - range.top) * (bin / bins);
  /** Top and bottom of a row. */
  const edges = (row) => (row < 0 ? [range.bottom + GAP, range.bottom + GAP + BEYOND] : row >= bins ? [MARGIN.top, MARGIN.top + BEYOND] : [y(row + 1), y(row)]);
  const top = darkest(scores);
  const paths = Array.from({ length: LEVELS }, () => []);
  t.forEach((seconds, at) => {
    for (const [bin, found] of cells[at]) {
      const level = Math.min(LEVELS, Math.max(1, Math.ceil((found / n[at] / top) * LEVELS)));
      const [upper, lower] = edges(bin).map((edge) => edge.toFixed(1));
      paths[level - 1].push(`M${x(seconds).toFixed(1)} ${lower}H${x(seconds + step).toFixed(1)}V${upper}H${x(seconds).toFixed(1)}Z`);
    }
  });
  const element = svg("svg", { class: "heat", width, height: HEIGHT, tabindex: 0, role: "slider", "aria-label": `${name}: heat map over time, ${count(n.reduce((a, b) => a + b, 0))} traces`,
    "aria-valuemin": 0, "aria-valuemax": Math.max(0, t.length - 1), "aria-valuenow": Math.max(0, t.length - 1), "aria-valuetext": t.length ? describe(scores, { step, format }, t.length - 1) : "nothing" });
  paths.forEach((parts, level) => parts.length && element.append(svg("path", { class: `level level-${level + 1}`, d: parts.join("") })));
  const every = Math.max(1, Math.ceil(bins / 5));
  const label = (at, text, name = "axis") => element.append(svg("text", { class: name, x: MARGIN.left - 8, y: at + 4, "text-anchor": "end" }, text));
  for (let bin = 0; bin <= bins; bin += every) {
    if (!above || y(bin) - range.top > BEYOND) label(y(bin), format(low + bin * size));
  }
  if (above) label(range.top, format(low + bins * size));
  for (const [row, is] of [[-1, below], [bins, above]]) {
    if (!is) continue;
    const [upper, lower] = edges(row);
    const edge = row < 0 ? range.bottom + GAP / 2 : range.top - GAP / 2;
    label((upper + lower) / 2, row < 0 ? "below" : "above", "axis beyond");
    element.append(svg("line", { class: "edge", x1: MARGIN.left, x2: width - MARGIN.right, y1: edge, y2: edge }));
  }
  for (const seconds of hours(start, end, inner.width)) {
    element.append(svg("text", { class: "axis", x: x(seconds), y: HEIGHT - 6, "text-anchor": "middle" }, minute(seconds * 1e3)));
  }
  for (const { first_s: seconds, kind, name: what } of marks) {
    element.append(svg("line", { class: "mark", x1: x(seconds), x2: x(seconds), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }, svg("title", {}, `${kind} ${what} first seen`)));
  }
  const finger = svg("rect", { class: "finger", y: MARGIN.top, height: inner.height, visibility: "hidden" });
  element.append(finger);
  return {
    element, top,
    at(event) {
      const seconds = start + ((event.clientX - element.getBoundingClientRect().left - MARGIN.left) / inner.width) * (end - start);
      const found = t.findIndex((one) => seconds >= one && seconds < one + step);
      return found < 0 ? null : found;
    },
    point(column) {
      finger.setAttribute("visibility", column === null ? "hidden" : "visible");
      if (column === null) return;
      finger.setAttribute("x", x(t[column]));
      finger.setAttribute("width", Math.max(1, x(t[column] + step) - x(t[column])));
    },
  };
}

/** Whole hours (or more, where there is little room) for the time axis. */
function hours(start, end, width) {
  const room = (end - start) / Math.max(1, Math.floor(width / 50));
  const every = [900, 3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600].find((size) => size >= room) ?? 86_400;
  const found = [];
  for (let at = Math.ceil(start / every) * every; at <= end; at += every) found.push(at);
  return found;
}

/** What one column says: the step with most of its traces, and how many lie beyond the range. */
function describe({ low, step: size, bins, t, n, cells }, { step, format }, at) {
  const inside = cells[at].filter(([row]) => row >= 0 && row < bins);
  const said = [];
  if (inside.length) {
    const [bin, most] = inside.reduce((best, cell) => (cell[1] > best[1] ? cell : best));
    said.push(`most often ${format(low + bin * size)} to ${format(low + (bin + 1) * size)} (${percent(most, n[at])})`);
  }
  for (const [row, found] of cells[at]) {
    if (row < 0) said.push(`below ${format(low)}: ${percent(found, n[at])}`);
    if (row >= bins) said.push(`${format(low + bins * size)} or more: ${percent(found, n[at])}`);
  }
  return `${minute(t[at] * 1e3)} to ${minute((t[at] + step) * 1e3)} UTC: n = ${count(n[at])}, ${said.join("; ")}`;
}
