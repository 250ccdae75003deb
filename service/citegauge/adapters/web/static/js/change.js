// What the last hour is to the day before it, as the detectors compare it: each group of models and versions with its own past.

import { h } from "./dom.js";
import { count, ratio, score } from "./format.js";

/** Whole percent with a sign; what rounds to 0 has none. */
function percent(value) {
  const whole = Math.round(100 * value);
  return `${whole < 0 ? "−" : whole > 0 ? "+" : ""}${Math.abs(whole)}`;
}

/** Beyond doubt: the 95 % interval does not hold 0. */
export const isSure = (change) => change.lower > 0 || change.upper < 0;

/** `−49 %` and, apart, its interval `−55 to −43`. */
export const changeText = (change) => `${percent(change.change)} %`;
export const intervalText = (change) => `${percent(change.lower)} to ${percent(change.upper)}`;

/** The sure change of a group that matters most, falls before rises: what the overview is ranked by. Higher comes first. */
export function weight(group) {
  const sure = Object.values(group.changes).filter(isSure).map(({ change }) => Math.round(100 * change));
  const fall = Math.max(0, ...sure.map((change) => -change));
  return fall > 0 ? 1_000 + fall : Math.min(999, Math.max(0, ...sure));
}

/** In one sentence, for a group's page. */
export function changeSentence(name, change) {
  const format = name === "recall" ? ratio : score;
  const said = isSure(change) ? (change.change < 0 ? "fell" : "rose") : "changed by no more than chance";
  return h("li", { class: isSure(change) ? null : "muted" },
    `Mean ${name} ${said}: `, h("strong", {}, changeText(change)), ` (95 %: ${intervalText(change)} %), from ${format(change.before)} to ${format(change.after)}`,
    h("span", { class: "muted" }, `, n = ${count(change.n)} in the last hour against ${count(change.n_before)} of the day before it`));
}
