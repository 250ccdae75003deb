// Asks the service. Every failure becomes one sentence.

const WAIT_MS = 25_000;

/** GET a JSON answer. Throws an Error whose message is one line for the reader. */
export async function ask(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, { signal: AbortSignal.timeout(WAIT_MS), cache: "no-store" });
  } catch (error) {
    const reason = error.name === "TimeoutError" ? `no answer within ${WAIT_MS / 1000} s` : "no connection";
    throw new Error(`citegauge does not answer (${reason})`);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Error(body?.error ?? `citegauge answered ${response.status} ${response.statusText}`);
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
