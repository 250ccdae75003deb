// The page's address: `#/` or `#/group?route=…&top_k_bucket=…&window=…`. Whoever opens it sees the same view.

export const HOME = "#/";

export function groupAddress(route, bucket, window) {
  const parameters = new URLSearchParams({ route, top_k_bucket: bucket });
  if (window && window !== "1h") parameters.set("window", window);
  return `#/group?${parameters}`;
}

/** The view that the address asks for: `{view: "overview"}` or `{view: "group", route, bucket, window}`. */
export function readAddress(hash = location.hash) {
  const match = /^#\/group\?(.*)$/s.exec(hash);
  if (match) {
    const parameters = new URLSearchParams(match[1]);
    const [route, bucket] = [parameters.get("route"), parameters.get("top_k_bucket")];
    const window = parameters.get("window") ?? "1h";
    if (route && bucket) return { view: "group", route, bucket, window: ["1h", "6h", "24h"].includes(window) ? window : "1h" };
  }
  return { view: "overview" };
}
