// Starts the page: reads the address, asks every 5 s, hands the answers to the views.

import { readAddress, samePage } from "./address.js";
import { ask } from "./api.js";
import { redrawCharts } from "./charts.js";
import { h, setText } from "./dom.js";
import { clock, span } from "./format.js";
import { createGroup } from "./group.js";
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

let address = null;
/** The page of one group or trace; null on the overview, which lives on. */
let page = null;
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
  delete root.dataset.drawn;
  if (address.view === "overview") {
    place.replaceChildren(overview.element);
    document.title = "citegauge";
  } else {
    page = address.view === "group" ? createGroup(address) : createTrace(address);
    place.replaceChildren(page.element);
    if (choosing) page.element.querySelector(".choice [aria-current]").focus();
    document.title = address.view === "group" ? `${address.route} · top_k ${address.bucket} · citegauge` : `trace ${address.id} · citegauge`;
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
  const [shownAddress, shownPage] = [address, page];
  const wanted = shownAddress.view === "group" ? { route: shownAddress.route, top_k_bucket: shownAddress.bucket } : {};
  try {
    const [windows, { drops }] = await Promise.all([ask("api/windows", wanted), ask("api/drops")]);
    if (mine !== turn) return;
    heard = { at: performance.now(), asOfMs: windows.as_of_ms, nowMs: windows.now_ms };
    banner.hidden = true;
    setLocked(false);
    tick();
    root.classList.remove("lost");
    await drawStatus({ drops, windows, lagMs: lag(), address: shownAddress });
    if (shownPage) {
      shownPage.update(windows, drops);
      await shownPage.history();
    } else {
      overview.element.hidden = windows.as_of_ms === null;
      overview.update(windows, drops);
    }
    if (mine === turn) root.dataset.drawn = shownAddress.view;
  } catch (error) {
    if (mine === turn && error.locked) setLocked(true);
    else if (mine === turn) sayLost(error);
  } finally {
    // A hidden page asks nothing; it catches up when it is looked at again.
    if (mine === turn && !document.hidden && !locked) timer = setTimeout(refresh, REFRESH_MS);
  }
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
addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
setInterval(tick, 500);
open();
