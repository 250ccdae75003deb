// A distribution as bars of shares, with a tick where each bar usually stands (the 24 h distribution).

import { svg } from "./dom.js";
import { count, percent } from "./format.js";

export const MARGIN = { top: 10, right: 18, bottom: 24, left: 46 };
const EXACT_MAX = 13;
const RECALL_BINS = 20;
const SCORE_BINS = 30;

/** Bars for recall: one per distinct fraction while these are few, else in steps of 0.05 around their middles. */
export function recallBars(now, usual) {
  const distinct = new Set([...now, ...usual].map(([value]) => value.toFixed(6)));
  if (distinct.size <= EXACT_MAX) {
    return bars(now, usual, (value) => Number(value.toFixed(6)), { low: -0.03, high: 1.03, width: 0.03, ticks: [0, 0.25, 0.5, 0.75, 1] });
  }
  const bin = (value) => Math.round(value * RECALL_BINS) / RECALL_BINS;
  return bars(now, usual, bin, { low: -0.03, high: 1.03, width: 0.042, ticks: [0, 0.25, 0.5, 0.75, 1] });
}

/** Bars for scores: equal bins over the range that occurs. */
export function scoreBars(now, usual) {
  const values = [...now, ...usual].map(([value]) => value);
  let [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  if (low >= 0 && high <= 1 && high - low > 0.3) [low, high] = [0, 1];
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  const width = (high - low) / SCORE_BINS;
  const bin = (value) => low + (Math.min(SCORE_BINS - 1, Math.floor((value - low) / width)) + 0.5) * width;
  return bars(now, usual, bin, { low, high, width: width * 0.86, ticks: [0, 1, 2, 3, 4].map((at) => low + ((high - low) * at) / 4) });
}

function bars(now, usual, bin, axis) {
  const [nowN, usualN] = [quantity(now), quantity(usual)];
  const found = new Map();
  const add = (pairs, field) => {
    for (const [value, n] of pairs) {
      const at = bin(value);
      const bar = found.get(at) ?? { at, now: 0, usual: 0 };
      bar[field] += n;
      found.set(at, bar);
    }
  };
  add(now, "now");
  add(usual, "usual");
  return { ...axis, nowN, usualN, bars: [...found.values()].sort((a, b) => a.at - b.at) };
}

const quantity = (pairs) => pairs.reduce((sum, [, n]) => sum + n, 0);

/** Draw into `host`, `height` px high, and again whenever its width changes. `update(shape, {format, name})`. */
export function createBars(host, height) {
  let drawn = null;
  const draw = () => drawn && host.clientWidth > 0 && host.replaceChildren(picture(host.clientWidth, height, ...drawn));
  const watcher = new ResizeObserver(draw);
  watcher.observe(host);
  return {
    update(shape, words) {
      drawn = [shape, words];
      draw();
    },
    destroy: () => watcher.disconnect(),
  };
}

/** Draw lines and labels for shares from 0 to at least `highest`; returns where a share stands. */
export function axisOfShares(drawing, highest, { width, inner }) {
  const step = [0.02, 0.05, 0.1, 0.2, 0.25].find((size) => highest / size <= 4.5) ?? 0.25;
  const top = Math.ceil(highest / step - 1e-9) * step;
  const y = (value) => MARGIN.top + inner.height * (1 - value / top);
  for (let line = 0; line <= top + 1e-9; line += step) {
    drawing.append(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(line), y2: y(line) }));
    drawing.append(svg("text", { class: "axis", x: MARGIN.left - 8, y: y(line) + 4, "text-anchor": "end" }, `${Math.round(line * 100)} %`));
  }
  return y;
}

function picture(width, height, shape, { format, name }) {
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const share = (bar, field, n) => (n ? bar[field] / n : 0);
  const highest = Math.max(0.05, ...shape.bars.flatMap((bar) => [share(bar, "now", shape.nowN), share(bar, "usual", shape.usualN)]));
  const x = (value) => MARGIN.left + ((value - shape.low) / (shape.high - shape.low)) * inner.width;
  const drawing = svg("svg", { class: "bars", width, height, role: "img", "aria-label": describe(shape, format, name) });
  const y = axisOfShares(drawing, highest, { width, inner });
  for (const tick of shape.ticks) {
    drawing.append(svg("text", { class: "axis", x: x(tick), y: height - 6, "text-anchor": "middle" }, format(tick)));
  }
  const wide = Math.max(2, (shape.width / (shape.high - shape.low)) * inner.width);
  for (const bar of shape.bars) {
    const left = x(bar.at) - wide / 2;
    const said = `${format(bar.at)}: ${percent(bar.now, shape.nowN)} (n = ${count(bar.now)})` + (shape.usualN ? `; 24 h: ${percent(bar.usual, shape.usualN)}` : "");
    const level = y(share(bar, "now", shape.nowN));
    drawing.append(svg("rect", { class: "bar", x: left, width: wide, y: level, height: y(0) - level }));
    if (bar.usual) {
      const usual = y(share(bar, "usual", shape.usualN));
      drawing.append(svg("line", { class: "usual", x1: left - 2, x2: left + wide + 2, y1: usual, y2: usual }));
    }
    drawing.append(svg("rect", { class: "hit", x: left - 1, width: wide + 2, y: MARGIN.top, height: inner.height }, svg("title", {}, said)));
  }
  return drawing;
}

function describe(shape, format, name) {
  const most = [...shape.bars].sort((a, b) => b.now - a.now).slice(0, 4).filter((bar) => bar.now);
  return `${name}, ${count(shape.nowN)} traces. Most often: ${most.map((bar) => `${format(bar.at)} (${percent(bar.now, shape.nowN)})`).join(", ") || "nothing"}`;
}
