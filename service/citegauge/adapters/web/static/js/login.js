// Asks for the token, where the service wants one. It is kept for this tab only (`api.js`).

import { hasToken, useToken } from "./api.js";
import { setText } from "./dom.js";

const form = document.getElementById("login");
const field = document.getElementById("token");
const said = document.getElementById("login-said");

/** `tryAgain` is called once a token was given. */
export function startLogin(tryAgain) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const value = field.value.trim();
    // What cannot stand in a header is not the token; the browser would refuse to send it.
    if (!/^[!-~]+$/.test(value)) {
      setText(said, "A token is printable ASCII without spaces.");
      return;
    }
    useToken(value);
    field.value = "";
    tryAgain();
  });
}

export function askForToken() {
  setText(said, hasToken() ? "That token is wrong, or no longer right." : "");
  if (form.hidden) {
    form.hidden = false;
    field.focus();
  }
}

export function letIn() {
  form.hidden = true;
}
