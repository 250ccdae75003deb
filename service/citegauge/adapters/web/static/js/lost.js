// Where an address leads nowhere: what it names, what would be right, and what there is.

import { groupAddress, HOME, isTraceId, traceAddress } from "./address.js";
import { ask } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";

const LINKS_MAX = 30;
const TEXT_MAX = 200;
const EXAMPLE = "4bf92f3577b34da6a3ce929d0e0e4736";

/** `what`: `trace`, `page` or `group`; `text`: what was asked for; `bucket`: of a group, null where none was named. */
export function createLost({ what, text, bucket = null }) {
  const known = h("div");
  const shown = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text;
  const [title, said] = words(what, shown, bucket);
  const element = h("article", { class: "lostpage" },
    h("div", { class: "title" }, h("p", {}, h("a", { href: HOME }, "← All routes")), h("h2", {}, title)),
    h("section", { class: "panel" }, said.map((part) => h("p", {}, part)), known));
  let drawn = "";

  async function history() {
    if (what === "trace") return;
    const { groups } = await ask("api/windows");
    const now = JSON.stringify(groups.map((group) => [group.route, group.top_k_bucket]));
    if (now === drawn) return;
    drawn = now;
    known.replaceChildren(...links(groups, text));
  }

  return { element, update() {}, history, destroy() {} };
}

function words(what, text, bucket) {
  if (what === "trace") {
    const near = text.toLowerCase().replaceAll("-", "").trim();
    const meant = isTraceId(near) ? [["Did you mean ", h("a", { href: traceAddress(near) }, h("code", {}, near)), "?"]] : [];
    return ["Not a trace id", [
      [h("code", {}, text || "(nothing)"), " is no trace id."],
      ["A trace id is 32 lower-case hexadecimal digits, without dashes, such as ", h("code", {}, EXAMPLE), "."],
      ...meant,
    ]];
  }
  if (what === "page") return ["No such page", [["The address ", h("code", {}, text), " leads nowhere."]]];
  if (bucket === null) return ["Which route, and which top_k?", [["The address names ", text ? ["the route ", h("code", {}, text), ", but no top_k bucket."] : "no route."]]];
  return ["No such route", [
    ["In the last 24 h no trace of the route ", h("code", {}, text), " with top_k ", h("code", {}, bucket), " was counted. Its name is mistyped, or it has no traffic any more."],
  ]];
}

/** The buckets of the same route first, then routes whose names hold it or are held by it, then the others by name. */
function links(groups, text) {
  if (!groups.length) return [];
  const wanted = text.toLowerCase();
  const rank = ({ route }) => {
    const name = route.toLowerCase();
    return name === wanted ? 0 : wanted && (name.includes(wanted) || wanted.includes(name)) ? 1 : 2;
  };
  const found = groups.map((group) => [rank(group), group]).sort(([a], [b]) => a - b).map(([, group]) => group);
  const items = found.slice(0, LINKS_MAX).map((group) =>
    h("li", {}, h("a", { href: groupAddress(group.route, group.top_k_bucket) }, group.route, " ", h("span", { class: "muted" }, `top_k ${group.top_k_bucket}`))));
  const more = found.length - items.length;
  return [h("h3", { class: "second" }, "These have traces"), h("ul", { class: "known" }, items),
    ...(more > 0 ? [h("p", { class: "muted note" }, h("a", { href: HOME }, `and ${count(more)} more`))] : [])];
}
