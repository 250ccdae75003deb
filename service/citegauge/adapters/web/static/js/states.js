// What a trace's result state means, in words, and the bar that shows their shares.

import { h } from "./dom.js";
import { count, percent } from "./format.js";

/** In the order in which they are drawn. Only `measured` enters a ratio. */
export const STATES = {
  measured: "retrieved chunks and citations are both known",
  nonconformant: "the answer should have been structured and is not: look at the prompt or the model",
  no_output: "the answer text was not captured, so its citations cannot be known",
  no_generation: "a retrieval without an answer",
  no_retrieval: "an answer without a retrieval",
  empty_retrieval: "the retriever ran and returned nothing",
  ids_missing: "retrieved chunks carry no ids",
  truncated: "attributes were cut by the SDK's limit",
  granularity_mismatch: "files are cited but chunks are retrieved",
  retrieved_is_cited: "the source lists only what it cites",
  no_citation_format: "answers of this route never cite",
  bad_time: "the span's time cannot be true",
};

const ORDER = Object.keys(STATES);

/** [name, n] of the states that occur, known ones first in the order above. */
export function ordered(states) {
  const rank = (name) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  return Object.entries(states)
    .filter(([, n]) => n > 0)
    .sort(([a], [b]) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

export const total = (states) => Object.values(states).reduce((sum, n) => sum + n, 0);

/** A stacked bar; its label says the shares in words. */
export function statesBar(states) {
  const all = total(states);
  const parts = ordered(states);
  const label = parts.map(([name, n]) => `${name} ${percent(n, all)}`).join(", ") || "no traces";
  const bar = h("div", { class: "statesbar", role: "img", "aria-label": label, title: label });
  for (const [name, n] of parts) {
    const piece = h("span", { "data-state": STATES[name] ? name : "other" });
    piece.style.flexGrow = n;
    bar.append(piece);
  }
  return bar;
}

/** The same with a line per state that says what it means; `addressOf(name)` is where its traces are listed. */
export function statesList(states, addressOf) {
  const all = total(states);
  return h(
    "ul",
    { class: "states" },
    ordered(states).map(([name, n]) =>
      h(
        "li",
        {},
        h("span", { class: "swatch", "data-state": STATES[name] ? name : "other" }),
        h("span", { class: "num" }, percent(n, all)),
        h("span", { class: "num muted" }, count(n)),
        h("span", {}, h("a", { href: addressOf(name) }, h("code", {}, name)), h("span", { class: "muted" }, ` ${STATES[name] ?? ""}`)),
      ),
    ),
  );
}
