// Starts the page: reads the address, asks every 5 s, hands the answers to the views.

import { readAddress, samePage } from "./address.js";
import { ask } from "./api.js";
import { redrawCharts } from "./charts.js";
import { h, setText } from "./dom.js";
import { clock, span } from "./format.js";
import { createGroup } from "./group.js";
import { createLost } from "./lost.js";
import { askForToken, letIn, startLogin } from "./login.js";
import { createOverview } from "./overview.js";
import { drawStatus, STALE_MS } from "./status.js";
import { createTrace } from "./trace.js";

const REFRESH_MS = 5_000;
const root = document.documentElement;
const place = document.getElementById("view");
const banner = document.getElementById("banner");
const clockLine = document.getElementById("clock");
const overview = createOverview();

const PAGES = { group: createGroup, trace: createTrace, lost: createLost };
const TITLES = { group: ({ route, bucket }) => `${route} · top_k ${bucket}`, trace: ({ id }) => `trace ${id}`, lost: () => "not found" };

let address = null;
/** The page of one group or trace; null on the overview, which lives on. */
let page = null;
/** The address names a group of which nothing is known: `page` says so instead of drawing it. */
let unknown = false;
let turn = 0;
let timer = 0;
/** When the last answer came (`performance.now()`), and what it said of time. */
let heard = null;
/** The service wants a token: asking again without one is of no use. */
let locked = false;

function open() {
  const next = readAddress();
  const moved = address !== null && !samePage(next, address);
  const choosing = !moved && document.activeElement?.closest(".choice");
  address = next;
  page?.destroy();
  page = null;
  unknown = false;
  delete root.dataset.drawn;
  if (address.view === "overview") {
    place.replaceChildren(overview.element);
    document.title = "citegauge";
  } else {
    page = PAGES[address.view](address);
    place.replaceChildren(page.element);
    if (choosing) page.element.querySelector(".choice [aria-current]").focus();
    document.title = `${TITLES[address.view](address)} · citegauge`;
  }
  if (moved) {
    scrollTo(0, 0);
    document.getElementById("main").focus({ preventScroll: true });
  }
  refresh();
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++turn;
  const shownAddress = address;
  const wanted = shownAddress.view === "group" ? { route: shownAddress.route, top_k_bucket: shownAddress.bucket } : {};
  try {
    const [windows, { drops }] = await Promise.all([ask("api/windows", wanted), ask("api/drops")]);
    if (mine !== turn) return;
    heard = { at: performance.now(), asOfMs: windows.as_of_ms, nowMs: windows.now_ms };
    banner.hidden = true;
    setLocked(false);
    tick();
    root.classList.remove("lost");
    if (shownAddress.view === "group") setUnknown(await isUnknown(windows, wanted));
    if (mine !== turn) return;
    const shownPage = page;
    const view = unknown ? "lost" : shownAddress.view;
    const status = () => drawStatus({ drops, windows, lagMs: lag(), view, at: view === "group" ? wanted : shownPage?.at?.() ?? null });
    await status();
    if (shownPage) {
      shownPage.element.hidden = windows.as_of_ms === null && view === "group";
      shownPage.update(windows, drops);
      await shownPage.history();
      // Only now a trace has told which group it is of.
      if (view === "trace" && mine === turn) await status();
    } else {
      overview.element.hidden = windows.as_of_ms === null;
      overview.update(windows, drops);
    }
    if (mine === turn) root.dataset.drawn = view;
  } catch (error) {
    if (mine === turn && error.locked) setLocked(true);
    else if (mine === turn) sayLost(error);
  } finally {
    // A hidden page asks nothing; it catches up when it is looked at again.
    if (mine === turn && !document.hidden && !locked) timer = setTimeout(refresh, REFRESH_MS);
  }
}

/** Neither a live window nor a pane of the last 24 h has it; while ClickHouse cannot be asked, the live windows decide. */
async function isUnknown(windows, group) {
  if (windows.group !== null || windows.as_of_ms === null) return false;
  try {
    const { recall, scores } = await ask("api/distribution", { ...group, window: "24h" });
    return recall.n === 0 && scores.length === 0;
  } catch {
    return true;
  }
}

function setUnknown(now) {
  if (now === unknown) return;
  unknown = now;
  page?.destroy();
  page = now ? createLost({ what: "group", text: address.route, bucket: address.bucket }) : createGroup(address);
  document.title = `${TITLES[now ? "lost" : "group"](address)} · citegauge`;
  place.replaceChildren(page.element);
}

function setLocked(now) {
  locked = now;
  root.classList.toggle("locked", now);
  if (now) {
    banner.hidden = true;
    root.dataset.drawn = "login";
    askForToken();
  } else {
    letIn();
  }
}

function sayLost(error) {
  banner.hidden = false;
  root.classList.add("lost");
  const since = heard ? ` What you see is from ${clock(heard.nowMs)} UTC.` : "";
  setText(banner, `${error.message}.${since} Trying again every ${REFRESH_MS / 1000} s.`);
}

/** How far the numbers are behind the service's own clock, in ms; the visitor's clock plays no part. */
function lag() {
  if (heard === null || heard.asOfMs === null) return null;
  return heard.nowMs - heard.asOfMs + (performance.now() - heard.at);
}

function tick() {
  const behindMs = lag();
  clockLine.classList.toggle("stale", behindMs !== null && behindMs > STALE_MS);
  if (heard === null) setText(clockLine, "");
  else if (behindMs === null) setText(clockLine, "no numbers yet");
  else setText(clockLine, `as of ${clock(heard.asOfMs)} UTC · ${span(behindMs)} behind`);
}

const THEMES = { auto: "light", light: "dark", dark: "auto" };

function startTheme() {
  const button = document.getElementById("theme");
  const show = () => {
    const theme = root.dataset.theme ?? "auto";
    button.replaceChildren(h("span", {}, "Theme: "), theme);
    button.setAttribute("aria-label", `Theme: ${theme}`);
  };
  button.addEventListener("click", () => {
    const next = THEMES[root.dataset.theme ?? "auto"];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // Storage is switched off: the choice lasts as long as the page.
    }
    show();
    redrawCharts();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  show();
}

startTheme();
startLogin(refresh);
addEventListener("hashchange", ({ oldURL }) => {
  // The skip link's target is a place on this page and no address of another one.
  if (location.hash === "#main") history.replaceState(null, "", new URL(oldURL).hash || "#/");
  else open();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
setInterval(tick, 500);
open();
