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

/** `at`: unix seconds near which it is stored, which makes it quick to find. */
export const traceAddress = (id, at) => `#/trace/${id}?${new URLSearchParams({ at })}`;

/** What the address asks for: `{view: "overview"}`, `{view: "group", route, bucket, window, state, show}` or `{view: "trace", id, at}`. */
export function readAddress(hash = location.hash) {
  const match = /^#\/(group|trace\/([0-9a-f]{32}))(?:\?(.*))?$/s.exec(hash);
  if (!match) return { view: "overview" };
  const parameters = new URLSearchParams(match[3] ?? "");
  if (match[2]) return { view: "trace", id: match[2], at: /^\d{1,10}$/.test(parameters.get("at") ?? "") ? parameters.get("at") : null };
  const [route, bucket] = [parameters.get("route"), parameters.get("top_k_bucket")];
  if (!route || !bucket) return { view: "overview" };
  const window = WINDOWS.includes(parameters.get("window")) ? parameters.get("window") : "1h";
  return { view: "group", route, bucket, window, state: parameters.get("state") || "measured", show: parameters.get("show") };
}

/** Whether two addresses are of one page, seen through different windows. */
export const samePage = (one, other) => ["view", "route", "bucket", "id"].every((name) => one[name] === other[name]);
