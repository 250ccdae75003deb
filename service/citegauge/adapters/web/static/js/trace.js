// One trace: its state and why, what was retrieved with which scores, what was cited, and where it came from.

import { groupAddress, HOME } from "./address.js";
import { ask } from "./api.js";
import { chunkTable } from "./chunks.js";
import { h, setText } from "./dom.js";
import { clock, count, day, ratio, score } from "./format.js";
import { answered, remarks, why } from "./why.js";

const AGAIN_MS = 30_000;
const KEPT_DAYS = 14;

/** The view of one address; `history` reads ClickHouse when that is due. */
export function createTrace({ id, at }) {
  const trouble = h("p", { class: "trouble", role: "alert", hidden: "" });
  const way = h("p", { class: "way" }, h("a", { href: HOME }, "← All routes"));
  const body = h("div");
  const element = h("article", { class: "trace" },
    h("div", { class: "title" }, way, h("h2", {}, "Trace ", h("code", {}, id))), trouble, body);
  let askedAt = -Infinity;
  let shown = "";
  /** The group it was last counted in; null until that is known. */
  let counter = null;

  async function history() {
    if (performance.now() - askedAt < AGAIN_MS) return;
    try {
      const { counted } = await ask("api/trace", at === null ? { trace_id: id } : { trace_id: id, at });
      askedAt = performance.now();
      trouble.hidden = true;
      counter = counted.length ? { route: counted[0].route, top_k_bucket: counted[0].top_k_bucket } : null;
      draw(counted);
    } catch (error) {
      trouble.hidden = false;
      setText(trouble, `The trace cannot be shown: ${error.message}.`);
    }
  }

  /** Only what changed is drawn again: a selection or the focus must survive. */
  function draw(counted) {
    const now = JSON.stringify(counted);
    if (now === shown) return;
    shown = now;
    const group = counted[0];
    way.replaceChildren(h("a", { href: HOME }, "← All routes"),
      ...(group ? [" · ", h("a", { href: groupAddress(group.route, group.top_k_bucket) }, `${group.route}, top_k ${group.top_k_bucket}`)] : []));
    const again = counted.length > 1
      ? [h("p", { class: "remark" }, `Counted in ${count(counted.length)} minutes: it went on after its minute had closed. The newest comes first.`)] : [];
    body.replaceChildren(...(counted.length ? [...again, ...counted.map(oneCount)] : [absent()]));
  }

  return { element, update() {}, history, at: () => counter, destroy() {} };
}

const absent = () =>
  h("p", { class: "panel" },
    `No trace with this id is stored. It is older than ${KEPT_DAYS} days (as long as traces are kept), not joined yet, or its id is mistyped.`);

function oneCount(trace) {
  return h("section", { class: "panel" },
    h("p", { class: "verdict" }, h("span", { class: "swatch", "data-state": trace.state }), h("code", {}, trace.state), " ", why(trace)),
    remarks(trace).map((text) => h("p", { class: "remark" }, text)),
    h("div", { class: "sides" },
      h("div", { class: "scrolls" }, h("h3", {}, "Retrieved, in rank order"), chunkTable(trace)),
      h("div", {}, h("h3", {}, "Facts"), facts(trace))));
}

function facts(trace) {
  const lines = [
    [answered(trace) ? "answered" : "retrieved", `${day(trace.event_ms)} ${clock(trace.event_ms)} UTC`],
    ["counted in", `${day(trace.pane_s * 1e3)} ${clock(trace.pane_s * 1e3).slice(0, 5)} UTC`],
    ["route", h("a", { href: groupAddress(trace.route, trace.top_k_bucket) }, trace.route)],
    ["top_k", trace.top_k ? `${count(trace.top_k)} (bucket ${trace.top_k_bucket})` : `not recorded (bucket ${trace.top_k_bucket})`],
    ["recall", ratio(trace.recall)],
    ["by rank", ratio(trace.rank_weighted_recall)],
    ["top-1 score", score(trace.top1_score)],
    ["model", trace.model],
    ["retriever", trace.retriever_version],
    ["scorer", trace.scorer],
    ...(answered(trace) ? [["answer after", trace.lag_ms ? `${(trace.lag_ms / 1e3).toFixed(2)} s (from the end of the retrieval)` : "–"]] : []),
    ["source", trace.source],
  ];
  return h("dl", { class: "facts" }, lines.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
