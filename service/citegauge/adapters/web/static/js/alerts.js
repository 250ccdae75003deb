// The episodes of the last 24 h, newest first, as the service judges them from what ClickHouse holds and from the live hour.

import { changeText, intervalText } from "./change.js";
import { h } from "./dom.js";
import { count, day, minute, ratio, score } from "./format.js";

export function drawAlerts(box, { alerts, cut }) {
  const none = h("p", { class: "muted" }, "Nothing had dropped.");
  const note = cut ? [h("p", { class: "muted note" }, "More models and versions than are read at once: the older hours are not judged.")] : [];
  box.replaceChildren(alerts.length ? h("ul", { class: "alerts" }, alerts.map(line)) : none, ...note);
}

function line({ scorer, started_s: started, detected_s: detected, ended_s: ended, worst_s: worst, ongoing, before, after, n, ...change }) {
  const format = scorer === "*" ? ratio : score;
  const until = ongoing ? h("strong", { class: "red" }, "now") : stamp(ended);
  return h("li", { class: ongoing ? "ongoing" : null },
    h("span", { class: "when" }, stamp(started), " to ", until),
    h("span", {}, scorer === "*" ? "recall" : `top-1 score (${scorer})`, " at worst ",
      change.change === null ? "" : [h("strong", {}, changeText(change)), ` (95 %: ${intervalText(change)} %), `], `${format(before)} to ${format(after)}`,
      h("span", { class: "muted" }, `, n = ${count(n)}, at ${stamp(worst)}; detected ${stamp(detected)}`)));
}

const stamp = (seconds) => `${day(seconds * 1e3)} ${minute(seconds * 1e3)}`;
