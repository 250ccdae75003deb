// Lines over time, drawn by uPlot in the page's own colours. Times are UTC.

import { day, minute } from "./format.js";

/* global uPlot */
const AXIS_WIDTH = 46;
const charts = new Set();

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Draw every chart again: its colours were read when it was made. */
export function redrawCharts() {
  for (const chart of charts) chart.rebuild();
}

/**
 * A chart in `host`. `spec`: `label`, `height`, `format`, `lines` [{key, label, color, width, dash, bars}], `band`
 * [upper key, lower key], `range` ([low, high] or null for automatic), `timeAxis`.
 * `update({t, …columns})` takes unix seconds and one column per key; null breaks a line. `mark([{first_s, name}])`: upright
 * lines with names, where something new was first seen.
 */
export function createChart(host, spec) {
  let plot = null;
  let data = null;
  let marks = [];

  function build() {
    plot?.destroy();
    plot = null;
    if (data && host.clientWidth > 0) plot = new uPlot(options(spec, host.clientWidth, () => marks), data, host);
  }

  function update(columns) {
    data = [columns.t, ...spec.lines.map((line) => columns[line.key])];
    if (plot) plot.setData(data);
    else build();
  }

  const watcher = new ResizeObserver(() => {
    if (!plot) build();
    else if (Math.abs(plot.width - host.clientWidth) >= 1) plot.setSize({ width: host.clientWidth, height: spec.height });
  });
  watcher.observe(host);
  const chart = {
    update,
    mark(next) {
      marks = next;
      plot?.redraw(false, true);
    },
    rebuild: build,
    destroy() {
      watcher.disconnect();
      plot?.destroy();
      charts.delete(chart);
    },
  };
  charts.add(chart);
  return chart;
}

function options(spec, width, marks) {
  const at = (key) => 1 + spec.lines.findIndex((line) => line.key === key);
  return {
    width,
    height: spec.height,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
    padding: [8, 20, spec.timeAxis ? 0 : 4, 0],
    cursor: { sync: { key: "group" }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
    legend: { live: true },
    scales: { x: { time: true }, y: { range: spec.range ?? automatic } },
    axes: [timeAxis(spec.timeAxis), valueAxis(spec)],
    series: [{ label: "UTC", value: (plot, seconds) => stamp(seconds ?? plot.data[0].at(-1)) }, ...spec.lines.map((line) => series(line, spec))],
    hooks: { draw: [(plot) => drawMarks(plot, marks())] },
    bands: spec.band ? [{ series: spec.band.map(at), fill: color("--band") }] : [],
  };
}

/** Names stand beside their lines, one row lower where two would touch; one that sticks out to the right is turned left. */
function drawMarks({ ctx, bbox, valToPos, scales }, marks) {
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color("--ink");
  ctx.lineWidth = ratio;
  ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  const ends = [];
  for (const { first_s: seconds, name } of marks) {
    if (seconds < scales.x.min || seconds > scales.x.max) continue;
    const x = Math.round(valToPos(seconds, "x", true)) + 0.5;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const text = name.length > 18 ? `${name.slice(0, 17)}…` : name;
    const width = ctx.measureText(text).width;
    const left = x + 4 * ratio + width > bbox.left + bbox.width ? x - 4 * ratio - width : x + 4 * ratio;
    let row = ends.findIndex((end) => end < left);
    if (row < 0) row = ends.length;
    ends[row] = left + width + 6 * ratio;
    ctx.fillText(text, left, bbox.top + (2 + 14 * row) * ratio);
  }
  ctx.restore();
}

const stamp = (seconds) => seconds === undefined ? "" : `${day(seconds * 1e3)} ${minute(seconds * 1e3)}`;

function series(line, spec) {
  return {
    label: line.label,
    stroke: color(line.color),
    width: line.width ?? 1.5,
    dash: line.dash,
    fill: line.bars ? color(line.color) : undefined,
    paths: line.bars ? uPlot.paths.bars({ size: [0.8, 40], gap: 0 }) : undefined,
    points: { show: (plot) => plot.data[0].length < 3, size: 5 },
    // Without a cursor the legend shows the newest value rather than dashes.
    value: (plot, value, index) => spec.format(value ?? plot.data[index]?.at(-1)),
  };
}

/** At least a little room around the values, so that a flat line is not drawn as noise. */
function automatic(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const margin = Math.max((high - low) * 0.1, Math.abs(high) * 0.05, 1e-9);
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

const FONT = "11px system-ui, sans-serif";

function timeAxis(shown) {
  const axis = { stroke: color("--muted"), font: FONT, grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false } };
  if (!shown) return { ...axis, size: 0, values: (_, splits) => splits.map(() => "") };
  const label = (seconds) => (seconds % 86_400 === 0 ? day(seconds * 1e3) : minute(seconds * 1e3));
  return { ...axis, size: 26, space: 60, values: (_, splits) => splits.map(label) };
}

function valueAxis(spec) {
  return {
    stroke: color("--muted"),
    font: FONT,
    size: AXIS_WIDTH,
    space: spec.height < 100 ? 24 : 34,
    grid: { stroke: color("--grid"), width: 1 },
    ticks: { show: false },
    values: (_, splits) => splits.map((value) => spec.axisFormat?.(value) ?? spec.format(value)),
  };
}
