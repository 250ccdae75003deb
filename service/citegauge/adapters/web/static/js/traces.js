// The traces behind a group's number: those with the lowest recall, each with what was retrieved and what was cited.

import { h } from "./dom.js";
import { clock, count, day, ratio, score } from "./format.js";

/** A list that opens; which ones are open survives a refresh. */
export function drawTraces(box, { traces }) {
  const open = new Set([...box.querySelectorAll("details[open]")].map((one) => one.dataset.trace));
  const focused = document.activeElement?.closest?.("details")?.dataset.trace;
  box.replaceChildren(
    ...(traces.length
      ? traces.map((trace) => traceLine(trace, open.has(trace.trace_id)))
      : [h("p", { class: "muted note" }, "No measured trace in this window is stored.")]),
  );
  if (focused) box.querySelector(`details[data-trace="${CSS.escape(focused)}"] summary`)?.focus();
}

function traceLine(trace, isOpen) {
  return h("details", { "data-trace": trace.trace_id, open: isOpen ? "" : null },
    h("summary", {},
      h("span", { class: "num" }, ratio(trace.recall)),
      h("span", {}, `${count(trace.cited_retrieved)} of ${count(trace.retrieved)} cited`),
      h("code", {}, trace.trace_id),
      h("span", { class: "muted" }, `${day(trace.event_ms)} ${clock(trace.event_ms)} · ${trace.model}`)),
    h("table", { class: "chunks" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "num" }, "rank"), h("th", { scope: "col" }, "chunk"),
        h("th", { scope: "col", class: "num" }, "score"), h("th", { scope: "col" }, "cited"))),
      h("tbody", {}, chunkRows(trace))),
    h("p", { class: "muted note" }, `Retriever ${trace.retriever_version}, scorer ${trace.scorer}.`));
}

function chunkRows({ chunk_ids: ids, chunk_scores: scores, cited_ranks: ranks, hallucinated_ids: invented, retrieved }) {
  const cited = new Set(ranks);
  const row = (rank, id, value, said) =>
    h("tr", { class: said === "cited" ? "cited" : null }, h("td", { class: "num" }, rank), h("td", {}, h("code", {}, id)),
      h("td", { class: "num" }, value), h("td", {}, said));
  const rows = ids.map((id, at) => row(String(at + 1), id, scores.length ? score(scores[at]) : "", cited.has(at + 1) ? "cited" : ""));
  if (retrieved > ids.length) rows.push(row("", `and ${count(retrieved - ids.length)} more`, "", ""));
  return [...rows, ...invented.map((id) => row("", id, "", "cited, but not retrieved"))];
}
