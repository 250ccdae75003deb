// Asks the service. Every failure becomes one sentence.

const WAIT_MS = 25_000;
const KEY = "citegauge.token";

let token = recall();

/** The token of earlier, for as long as this tab lives; no other tab and no other site can read it. */
function recall() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** Send this token from now on. */
export function useToken(value) {
  token = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // Storage is switched off: the token lasts as long as the page.
  }
}

export const hasToken = () => token !== "";

/** GET a JSON answer. Throws an Error whose message is one line for the reader; `locked`: the token is missing or wrong. */
export async function ask(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, {
      signal: AbortSignal.timeout(WAIT_MS),
      cache: "no-store",
      headers: token ? { Authorization: `Bearer ${token}` } : {},
    });
  } catch (error) {
    const reason = error.name === "TimeoutError" ? `no answer within ${WAIT_MS / 1000} s` : "no connection";
    throw new Error(`citegauge does not answer (${reason})`);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) {
    const error = new Error(body?.error ?? `citegauge answered ${response.status} ${response.statusText}`);
    error.locked = response.status === 401;
    throw error;
  }
  if (body === null) throw new Error("citegauge answered something that is not JSON");
  return body;
}

/** The lines of a health check, whatever its status. */
export async function askLines(path) {
  try {
    const response = await fetch(path, { signal: AbortSignal.timeout(WAIT_MS), cache: "no-store" });
    return { ok: response.ok, lines: (await response.text()).trim().split("\n") };
  } catch {
    return { ok: false, lines: [] };
  }
}
