// What happened to one trace, in sentences: why it has its state, and what else is odd about it.

import { count, ratio } from "./format.js";

const chunks = (n) => `${count(n)} retrieved ${n === 1 ? "chunk" : "chunks"}`;
const WHY = {
  measured: ({ cited_retrieved: cited, retrieved, recall }) =>
    cited
      ? `The answer cites ${count(cited)} of the ${chunks(retrieved)}, so its recall is ${ratio(recall)}.`
      : `The answer cites none of the ${chunks(retrieved)}, so its recall is ${ratio(recall)}.`,
  nonconformant: () =>
    "The answer should have been structured, is not, and names no chunk that can be resolved. It is counted by itself: a broken format must not look like a retrieval that fell.",
  no_output: () => "The answer's text was not captured, so what it cites cannot be known. That is not a recall of 0.",
  no_generation: () =>
    "No answer to this retrieval had come when its minute closed: there was none, or its span was not sent, or it came too late.",
  no_retrieval: () =>
    "No retrieval for this answer had come when its minute closed: there was none, or its span was not sent, or it came too late.",
  empty_retrieval: () => "The retriever ran and returned nothing, so there was nothing to cite.",
  ids_missing: () => "Retrieved chunks carry no ids, so citations cannot be matched with them.",
  truncated: ({ retrieved }) =>
    `The tracing SDK's limit cut the list of chunks; ${count(retrieved)} are left, and a ratio over them would be wrong.`,
  granularity_mismatch: () => "The answer cites whole files (or numbers that count something else) while chunks were retrieved: the two cannot be compared.",
  retrieved_is_cited: () => "This source lists only what the answer cites, so the ratio would be 1 by construction.",
  no_citation_format: () => "Answers of this route never cite: its setting says so (cites = false).",
  bad_time: () => "A span's time cannot be true, so nobody knows which minute the trace belongs to.",
};

/** States in which the whole retrieved set is known, so that citations are counted: those of the service. */
const JUDGED = new Set(["measured", "nonconformant", "empty_retrieval"]);

/** Why the trace has its state. */
export const why = (trace) => WHY[trace.state]?.(trace) ?? "";

/** Whether an answer to this trace is known at all: what retrieved nothing may have had one, and then it came later. */
export const answered = ({ state, lag_ms: lag }) => state !== "no_generation" && (state !== "empty_retrieval" || lag > 0);

/** What is known of its citations, in a few words. Of an unmeasured trace it is no count: "0 of 5" would be a recall of 0. */
export function inShort(trace) {
  if (trace.state === "measured") return `${count(trace.cited_retrieved)} of ${count(trace.retrieved)} cited`;
  const found = trace.state === "no_retrieval" ? "" : trace.retrieved ? `${count(trace.retrieved)} retrieved` : "none retrieved";
  return [found, answered(trace) ? "" : "no answer"].filter(Boolean).join(", ") || "no retrieval";
}

/** Whether what became of single chunks can be shown: their citations count, or some are known. */
export const showsCited = (trace) => JUDGED.has(trace.state) || trace.cited_ranks.length > 0 || trace.unjudged_cited_ids.length > 0;

/** What else a reader should know, one sentence each. */
export function remarks(trace) {
  const [invented, dropped] = [never(trace).length, trace.dropped_cited_ids.length];
  const said = [];
  if (invented) said.push(`It cites ${count(invented)} ${invented === 1 ? "chunk that was" : "chunks that were"} never retrieved: hallucinated citations, counted and kept out of the ratio.`);
  if (dropped) said.push(`It cites ${count(dropped)} ${dropped === 1 ? "chunk" : "chunks"} that an earlier stage returned, but that did not reach the model's context.`);
  if (!JUDGED.has(trace.state)) {
    if (trace.cited_ranks.length || trace.unjudged_cited_ids.length || trace.unresolved) said.push("What it cites is not counted: in this state nobody can know which citations are valid.");
  } else if (trace.unresolved) said.push(`${count(trace.unresolved)} of its citations cannot be resolved (out of range, or malformed).`);
  if (trace.ids_dropped) said.push(`${count(trace.ids_dropped)} null or empty chunk ${trace.ids_dropped === 1 ? "id was" : "ids were"} left out.`);
  if (trace.nonconformant && trace.state === "measured") said.push("The answer should have been structured and is not; its citations could be read all the same.");
  if (trace.synthetic_ids) said.push("The chunks carry no ids of their own; theirs were made from their contents.");
  return said;
}

/** Cited chunks that no stage returned. */
export const never = (trace) => trace.hallucinated_ids.filter((id) => !trace.dropped_cited_ids.includes(id));
