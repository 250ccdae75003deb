// The top of the page: what dropped, one sentence each; else that nothing did; else why that cannot be known.

import { askLines } from "./api.js";
import { groupAddress, HOME } from "./address.js";
import { h } from "./dom.js";
import { clock, count, span } from "./format.js";

const SENTENCES_MAX = 12;
export const STALE_MS = 120_000;

const box = document.getElementById("status");
let shown = "";

/**
 * Redraw if anything said has changed; the region is live, so an unchanged one must stay silent. `view`: what is looked at;
 * `at`: the group it is of (`{route, top_k_bucket}`), null where it is of none or that is not known.
 */
export async function drawStatus({ drops, windows, lagMs, view, at }) {
  const stale = lagMs !== null && lagMs > STALE_MS;
  const said = JSON.stringify([drops, windows.as_of_ms === null, stale && Math.round(lagMs / 60_000), quantity(windows), view, at]);
  if (said === shown) return;
  shown = said;
  if (windows.as_of_ms === null) box.replaceChildren(...(await emptyState()));
  else if (drops.length) box.replaceChildren(...dropList(drops, stale, lagMs, windows, view, at));
  else box.replaceChildren(...noDrop(windows, stale, lagMs, view));
}

function dropList(drops, stale, lagMs, windows, view, at) {
  const isHere = (drop) => view === "overview" || (drop.route === at?.route && drop.top_k_bucket === at?.top_k_bucket);
  const here = drops.filter(isHere);
  const elsewhere = drops.length - here.length;
  const items = here.slice(0, SENTENCES_MAX).map((drop) => {
    const show = view === "group" ? "traces" : null;
    return h("li", {}, h("a", { href: groupAddress(drop.route, drop.top_k_bucket, { show }) }, drop.sentence ?? spell(drop)));
  });
  const more = here.length - items.length;
  if (more > 0) items.push(h("li", { class: "muted" }, `and ${count(more)} more, marked in the table`));
  const others = elsewhere > 0 ? [h("p", { class: "muted" }, h("a", { href: HOME }, `${quantityOf(elsewhere)}${at ? " elsewhere" : ""}: see all routes`))] : [];
  if (!here.length) return [...others, ...(stale ? [staleLine(lagMs, windows)] : [])];
  return [
    h("h1", { class: "dropped" }, quantityOf(here.length), view === "trace" ? " in the group of this trace" : ""),
    h("ul", { class: "drops" }, items), ...others,
    ...(stale ? [staleLine(lagMs, windows)] : []),
  ];
}

const quantityOf = (n) => (n === 1 ? "1 drop" : `${count(n)} drops`);

const spell = (drop) =>
  `${drop.route}, top_k ${drop.top_k_bucket}: ${drop.what} fell from ${drop.before} to ${drop.after} (n = ${drop.n})`;

function noDrop(windows, stale, lagMs, view) {
  if (stale) return [h("h1", {}, "No drop known, but the numbers are old"), staleLine(lagMs, windows)];
  if (view === "trace" || view === "lost") return [];
  return [h("h1", {}, "No drop"), h("p", { class: "muted" }, quantity(windows))];
}

const staleLine = (lagMs, windows) =>
  h(
    "p",
    { class: "stale" },
    `As of ${clock(windows.as_of_ms)} UTC, ${span(lagMs)} behind: the worker is behind its topic or stands still. See `,
    h("a", { href: "readyz" }, "/readyz"),
    ".",
  );

function quantity(windows) {
  const hour = (windows.groups ?? [windows.group]).map((group) => group?.windows["1h"]?.n ?? 0);
  const n = hour.reduce((sum, one) => sum + one, 0);
  const groups = windows.groups ? `${count(hour.length)} route × top_k ${hour.length === 1 ? "group" : "groups"}, ` : "";
  return `${groups}${count(n)} measured traces in the last hour`;
}

async function emptyState() {
  const ready = await askLines("readyz");
  return [
    h("h1", {}, "No traces yet"),
    h("p", {}, "citegauge has counted no trace in the last 24 h. What to do, in this order:"),
    h(
      "ol",
      { class: "steps" },
      h("li", {}, "Point ", h("code", {}, "kafka.source_topic"), " at the topic that carries your RAG spans."),
      h("li", {}, "Run ", h("code", {}, "citegauge doctor"), " on a sample of it: it says which fields are missing."),
      h("li", {}, "Old traces are read only from ", h("code", {}, "kafka.start_from"), " on; windows look back 24 h at most."),
    ),
    ...(ready.ok ? [] : [h("p", { class: "muted" }, "/readyz says: ", ready.lines.join(" · ") || "nothing")]),
  ];
}
