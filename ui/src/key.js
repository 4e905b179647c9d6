// The key of a server that asks for one. It is kept for this tab alone, and forgotten with it.

import { html, signal, useState } from "./html.js";

const NAME = "onward.key";

/** The server refused a request for want of the right key; what it said. */
export const refused = signal(null);

/** The header that carries the key, if there is one. */
export function credentials() {
  const key = sessionStorage.getItem(NAME);
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Shown in place of everything else until a key was given. */
export function AskForKey() {
  const [key, setKey] = useState("");
  const submit = (event) => {
    event.preventDefault();
    // Everything is asked again with it.
    sessionStorage.setItem(NAME, key.trim());
    location.reload();
  };
  const is_wrong = refused.value.code === "key_invalid";
  return html`
    <form class="empty" onSubmit=${submit}>
      <h2>${is_wrong ? "This is not a key of this server" : "This server asks for a key"}</h2>
      <p>It was set as <code>ONWARD_ADMIN_KEY</code>, or printed when the server was first started. It is kept in this tab alone.</p>
      <p><label>Key <input type="password" autocomplete="off" autofocus required value=${key} onInput=${(e) => setKey(e.target.value)} /></label></p>
      <p><button type="submit" class="primary">Open</button></p>
    </form>`;
}
