// The key of a server that requires one. It is stored for this tab only, and dropped with it.

import { html, signal, useState } from "./html.js";

const NAME = "onward.key";

/** The error of a request that was refused because of a missing or wrong key; null while no key is missing. */
export const refused = signal(null);

/** The header that carries the key, if there is one. */
export function credentials() {
  const key = sessionStorage.getItem(NAME);
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Drops a key that the server did not accept, and asks for another. */
export function refuse(error) {
  sessionStorage.removeItem(NAME);
  refused.value = error;
}

/** Shown instead of the views until the server accepts a key; `greet` sends a request with it. */
export function SignIn({ greet }) {
  const [key, setKey] = useState("");
  const [{ is_busy, error }, setState] = useState({});
  const submit = async (event) => {
    event.preventDefault();
    setState({ is_busy: true });
    sessionStorage.setItem(NAME, key.trim());
    try {
      await greet();
      refused.value = null;
    } catch (error) {
      setState({ error });
    }
  };
  const problem = error ?? refused.value;
  const message = problem.code === "key_invalid" ? "This is not the key of this server." : problem.code !== "key_required" && problem.message;
  return html`
    <form class="card sign-in" onSubmit=${submit}>
      <h1>Sign in</h1>
      <p class="muted">This server requires a key: the value of <code>ONWARD_ADMIN_KEY</code>, or the key that was printed when the server first started. It is kept in this tab only.</p>
      <label>Key
        <input type="password" autocomplete="off" autofocus required pattern="[ -~]+" title="A key has only ASCII characters" value=${key} onInput=${(e) => setKey(e.target.value)} />
      </label>
      ${message && html`<p class="bad-text" role="alert">${message}</p>`}
      <button type="submit" class="primary" disabled=${is_busy}>Sign in</button>
    </form>`;
}
