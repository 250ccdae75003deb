// The traces behind a group's number: those with the lowest recall, or those of another state; each opens to its chunks.

import { traceAddress } from "./address.js";
import { chunkTable } from "./chunks.js";
import { h } from "./dom.js";
import { clock, day, ratio } from "./format.js";
import { inShort, remarks, why } from "./why.js";

/** A list that opens; which ones are open survives a refresh, and so does the focus. */
export function drawTraces(box, { traces, state }) {
  const open = new Set([...box.querySelectorAll("details[open]")].map((one) => one.dataset.trace));
  const at = document.activeElement?.closest?.("[data-trace]");
  const held = box.contains(at) ? [at.dataset.trace, document.activeElement.tagName] : null;
  box.replaceChildren(
    ...(traces.length
      ? traces.map((trace) => traceLine(trace, open.has(trace.trace_id)))
      : [h("p", { class: "muted note" }, `No ${state} trace of this window is stored.`)]),
  );
  if (held) box.querySelector(`[data-trace="${CSS.escape(held[0])}"] ${held[1]}`)?.focus();
}

function traceLine(trace, isOpen) {
  const address = traceAddress(trace.trace_id, trace.pane_s);
  return h("details", { "data-trace": trace.trace_id, open: isOpen ? "" : null },
    h("summary", {},
      h("span", { class: "num" }, ratio(trace.recall)),
      h("span", {}, inShort(trace)),
      h("code", {}, trace.trace_id),
      h("span", { class: "muted" }, `${day(trace.event_ms)} ${clock(trace.event_ms)} · ${trace.model}`)),
    h("div", { class: "opened" },
      h("p", {}, why(trace), " ", remarks(trace).join(" ")),
      chunkTable(trace),
      h("p", {}, h("a", { href: address }, "Everything about this trace"))));
}
