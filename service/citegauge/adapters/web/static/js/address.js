// The page's address: `#/`, `#/group?route=…&top_k_bucket=…&window=…&state=…&show=…` or `#/trace/<id>?at=…`.
// Whoever opens it sees the same view.

export const HOME = "#/";
const WINDOWS = ["1h", "6h", "24h"];

/** `more`: `window` (1h unless given), `state` of the listed traces (measured unless given), `show` (a part to go to). */
export function groupAddress(route, bucket, { window = "1h", state = "measured", show = null } = {}) {
  const parameters = new URLSearchParams({ route, top_k_bucket: bucket });
  if (window !== "1h") parameters.set("window", window);
  if (state !== "measured") parameters.set("state", state);
  if (show) parameters.set("show", show);
  return `#/group?${parameters}`;
}

/** `at`: unix seconds near which it is stored, which makes it quick to find; null: anywhere. */
export const traceAddress = (id, at = null) => `#/trace/${id}${at === null ? "" : `?${new URLSearchParams({ at })}`}`;

/**
 * What the address asks for: `{view: "overview"}`, `{view: "group", route, bucket, window, state, show}`, `{view: "trace", id, at}`,
 * or, where it names nothing, `{view: "lost", what, text}` with `what`: `trace` (no id), `group` (route or bucket left out) or `page`.
 */
export function readAddress(hash = location.hash) {
  if (["", "#", "#/"].includes(hash)) return { view: "overview" };
  const [, path, query] = /^#\/([^?]*)(?:\?(.*))?$/s.exec(hash) ?? [null, null, null];
  const parameters = new URLSearchParams(query ?? "");
  if (path?.startsWith("trace/")) {
    const id = plain(path.slice("trace/".length));
    if (!isTraceId(id)) return { view: "lost", what: "trace", text: id };
    return { view: "trace", id, at: /^\d{1,10}$/.test(parameters.get("at") ?? "") ? parameters.get("at") : null };
  }
  if (path !== "group") return { view: "lost", what: "page", text: plain(hash) };
  const [route, bucket] = [parameters.get("route"), parameters.get("top_k_bucket")];
  if (!route || !bucket) return { view: "lost", what: "group", text: route ?? "" };
  const window = WINDOWS.includes(parameters.get("window")) ? parameters.get("window") : "1h";
  return { view: "group", route, bucket, window, state: parameters.get("state") || "measured", show: parameters.get("show") };
}

export const isTraceId = (text) => /^[0-9a-f]{32}$/.test(text);

/** As it was written: an address that cannot be decoded stays as it is. */
function plain(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Whether two addresses are of one page, seen through different windows. */
export const samePage = (one, other) => ["view", "route", "bucket", "id", "text"].every((name) => one[name] === other[name]);
