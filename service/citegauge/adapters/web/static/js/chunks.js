// The chunks of one trace as a table: rank, id, score, and what became of each.

import { h } from "./dom.js";
import { count, score } from "./format.js";
import { never, showsCited } from "./why.js";

/** Retrieved ones in rank order, then what is cited without being among them. Nothing is said of citations that nobody knows. */
export function chunkTable(trace) {
  const lines = rows(trace);
  if (!lines.length) return h("p", { class: "muted" }, "nothing");
  return h("table", { class: "chunks" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "num" }, "rank"), h("th", { scope: "col" }, "chunk"),
      h("th", { scope: "col", class: "num" }, "score"), showsCited(trace) ? h("th", { scope: "col" }, "cited") : null)),
    h("tbody", {}, lines));
}

function rows(trace) {
  const { chunk_ids: ids, chunk_scores: scores, cited_ranks: ranks, dropped_cited_ids: dropped, unjudged_cited_ids: unjudged, retrieved } = trace;
  const cited = new Set(ranks);
  const row = (rank, id, value, said, kind) =>
    h("tr", { class: kind }, h("td", { class: "num" }, rank), h("td", {}, h("code", {}, id)),
      h("td", { class: "num" }, value), showsCited(trace) ? h("td", {}, said) : null);
  const found = ids.map((id, at) => {
    const is = cited.has(at + 1);
    return row(String(at + 1), id, scores.length ? score(scores[at]) : "", is ? "cited" : "", is ? "cited" : null);
  });
  if (retrieved > ids.length) found.push(row("", `and ${count(retrieved - ids.length)} more`, "", "", null));
  return [
    ...found,
    ...dropped.map((id) => row("", id, "", "cited, but dropped before the context", "stray")),
    ...never(trace).map((id) => row("", id, "", "cited, but not retrieved", "stray")),
    ...unjudged.map((id) => row("", id, "", "cited, cannot be judged", null)),
  ];
}
