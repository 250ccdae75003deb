// The rank curve: of the traces that retrieved at least r chunks, the share that cite the chunk at rank r.

import { axisOfShares, MARGIN } from "./bars.js";
import { h, svg } from "./dom.js";
import { count, percent } from "./format.js";

const HEIGHT = 234;

/** Draw into `host` and again when its width changes. `update(now, usual, name)`: `[{rank, cited, n, lower, upper}]`, usual may be empty. */
export function createRanks(host) {
  const place = h("div", { class: "chart" });
  const numbers = h("tbody");
  host.append(place, h("details", { class: "asnumbers" }, h("summary", {}, "As numbers"), h("div", { class: "scrolls" },
    h("table", { class: "numbers" },
      h("thead", {}, h("tr", {}, ["rank", "cited", "of", "share", "95 %"].map((text) => h("th", { scope: "col", class: "num" }, text)))), numbers))));
  let drawn = null;
  const draw = () => drawn && place.clientWidth > 0 && place.replaceChildren(picture(place.clientWidth, ...drawn));
  const watcher = new ResizeObserver(draw);
  watcher.observe(place);
  return {
    update(now, usual, name) {
      drawn = [now, usual, name];
      draw();
      numbers.replaceChildren(...now.map((one) => h("tr", {},
        [one.rank, count(one.cited), count(one.n), percent(one.cited, one.n), interval(one)].map((text) => h("td", { class: "num" }, text)))));
    },
    destroy: () => watcher.disconnect(),
  };
}

const interval = ({ lower, upper }) => `${(100 * lower).toFixed(0)}–${(100 * upper).toFixed(0)} %`;

function picture(width, now, usual, name) {
  const ranks = Math.max(1, now.length, usual.length);
  const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
  const first = now[0];
  const drawing = svg("svg", { class: "bars ranks", width, height: HEIGHT, role: "img",
    "aria-label": first ? `${name}: rank 1 is cited by ${percent(first.cited, first.n)} of ${count(first.n)} traces; the numbers follow` : `${name}: no measured traces` });
  const highest = Math.max(0.05, ...now.map((one) => one.upper), ...usual.map((one) => one.cited / one.n));
  const y = axisOfShares(drawing, Math.min(1, highest), { width, inner });
  const slot = inner.width / ranks;
  const x = (rank) => MARGIN.left + (rank - 0.5) * slot;
  const wide = Math.min(34, Math.max(2, slot * 0.62));
  const every = Math.max(1, Math.ceil(ranks / Math.max(1, Math.floor(inner.width / 26))));
  for (let rank = 1; rank <= ranks; rank += every) {
    drawing.append(svg("text", { class: "axis", x: x(rank), y: HEIGHT - 6, "text-anchor": "middle" }, rank));
  }
  const before = new Map(usual.map((one) => [one.rank, one]));
  for (const one of now) {
    const [middle, level, day] = [x(one.rank), y(one.cited / one.n), before.get(one.rank)];
    drawing.append(svg("rect", { class: "bar", x: middle - wide / 2, width: wide, y: level, height: y(0) - level }));
    drawing.append(svg("line", { class: "whisker", x1: middle, x2: middle, y1: y(one.upper), y2: y(one.lower) }));
    if (day) drawing.append(svg("line", { class: "usual", x1: middle - wide / 2 - 2, x2: middle + wide / 2 + 2, y1: y(day.cited / day.n), y2: y(day.cited / day.n) }));
    const said = `Rank ${one.rank}: cited by ${percent(one.cited, one.n)} (${interval(one)}; n = ${count(one.n)})` + (day ? `; 24 h: ${percent(day.cited, day.n)}` : "");
    drawing.append(svg("rect", { class: "hit", x: middle - slot / 2, width: slot, y: MARGIN.top, height: inner.height }, svg("title", {}, said)));
  }
  return drawing;
}
