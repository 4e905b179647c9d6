// The key of a server that requires one. It is stored for this tab only, and dropped with it.

import { html, signal, useState } from "./html.js";

const NAME = "onward.key";

/** The error of a request that was refused because of a missing or wrong key. */
export const refused = signal(null);

/** The header that carries the key, if there is one. */
export function credentials() {
  const key = sessionStorage.getItem(NAME);
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Shown instead of the views until the user enters a key. */
export function AskForKey() {
  const [key, setKey] = useState("");
  const submit = (event) => {
    event.preventDefault();
    // All views load again with the key.
    sessionStorage.setItem(NAME, key.trim());
    location.reload();
  };
  const is_wrong = refused.value.code === "key_invalid";
  return html`
    <form class="empty" onSubmit=${submit}>
      <h2>${is_wrong ? "This is not a key of this server" : "This server requires a key"}</h2>
      <p>It is the value of <code>ONWARD_ADMIN_KEY</code>, or was printed when the server first started. The browser keeps it in this tab only.</p>
      <p><label>Key <input type="password" autocomplete="off" autofocus required value=${key} onInput=${(e) => setKey(e.target.value)} /></label></p>
      <p><button type="submit" class="primary">Open</button></p>
    </form>`;
}
