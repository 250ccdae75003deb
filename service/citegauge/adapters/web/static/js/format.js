// Numbers and times as text. Times are UTC everywhere, as in Kafka and ClickHouse, so that a shared page reads the same.

export const NONE = "–";
const integer = new Intl.NumberFormat("en-US");

export const count = (n) => (n === null || n === undefined ? NONE : integer.format(n));

/** Recall and shares of it: two decimals, always in [0, 1]. */
export const ratio = (value) => (value === null || value === undefined ? NONE : value.toFixed(2));

/** A score has any scale: three significant digits. */
export function score(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100_000)) return value.toExponential(1);
  if (size === 0) return "0";
  return value.toFixed(size < 1 ? 3 : size < 10 ? 2 : size < 100 ? 1 : 0);
}

/** `part` of `whole` as a percentage; small shares keep a digit, so that 0.2 % is not 0 %. */
export function percent(part, whole) {
  if (!whole) return NONE;
  const value = (100 * part) / whole;
  return `${value > 0 && value < 10 ? value.toFixed(1) : value.toFixed(0)} %`;
}

export const clock = (ms) => new Date(ms).toISOString().slice(11, 19);
export const minute = (ms) => new Date(ms).toISOString().slice(11, 16);
export const day = (ms) =>
  new Date(ms).toLocaleDateString("en-GB", { timeZone: "UTC", day: "numeric", month: "short" });

/** How long, in the one unit that matters. */
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return `${s} s`;
  if (s < 2 * 3600) return `${Math.round(s / 60)} min`;
  if (s < 2 * 86400) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

export const WINDOWS = ["1h", "6h", "24h"];
export const windowName = (window) => window.replace("h", " h");
