// Small components that several views share.

import { parse } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";

export function Copy({ text, label = "Copy" }) {
  const [is_copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return; // not allowed on plain HTTP; the user can still select the text
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1_200);
  };
  return html`<button type="button" class="copy" onClick=${copy} aria-live="polite">${is_copied ? "Copied" : label}</button>`;
}

/** A sentence from the server: names in backticks are shown as code, times in local time. */
export const Prose = ({ text }) => String(text ?? "").split(/(`[^`]+`|\d{4}-\d\d-\d\dT[\d:.]+Z)/).map((piece, i) => {
  if (i % 2 === 0) return piece;
  if (piece.startsWith("`")) return html`<code class="word">${piece.slice(1, -1)}</code>`;
  const when = new Date(piece).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  return html`<time datetime=${piece} title=${piece}>${when}</time>`;
});

export const Problem = ({ error }) => error && html`
  <div class="problem" role="alert">
    <strong>${error.code ?? "error"}</strong> <${Prose} text=${error.message} />
    ${error.hint && html`<div class="muted"><${Prose} text=${error.hint} /></div>`}
    ${(error.problems ?? []).slice(1).map((p) => html`<div><${Prose} text=${p.message} /></div>`)}
  </div>`;

/** Instead of a view whose subject does not exist or could not be loaded: the way back, and the error. */
export const NotLoaded = ({ error, back: [href, label] }) => html`
  <div class="crumbs"><a href=${href}>${label}</a></div>
  <${Problem} error=${error} />`;

export const Card = ({ title, aside, children, name }) => html`
  <section class="card" aria-label=${title} data-card=${name}>
    <header><h2>${title}</h2>${aside}</header>
    ${children}
  </section>`;

export const Fact = ({ name, children }) => html`<div class="fact"><dt>${name}</dt><dd>${children}</dd></div>`;

export const Skeleton = ({ rows = 6 }) => html`
  <div class="skeleton" aria-busy="true" aria-label="Loading">${Array.from({ length: rows }, () => html`<i />`)}</div>`;

/** A native dialog: it keeps the focus, Escape closes it. */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useEffect(() => element.current.showModal(), []);
  const onClick = (event) => event.target === element.current && onClose();
  return html`
    <dialog ref=${element} onClose=${onClose} onClick=${onClick} aria-label=${title}>
      <div class="sheet"><h2>${title}</h2>${children}</div>
    </dialog>`;
}

/** A button that sends a request, and shows the error if it fails. */
export function Action({ children, act, kind = "", confirm: question }) {
  const [state, setState] = useState({});
  const [is_asking, ask] = useState(false);
  const run = async () => {
    ask(false);
    setState({ is_busy: true });
    try {
      await act();
      setState({});
    } catch (error) {
      setState({ error });
    }
  };
  return html`
    <span class="action">
      <button type="button" class=${kind} disabled=${state.is_busy} onClick=${question ? () => ask(true) : run}>${children}</button>
      ${state.error && html`<span class="bad-text" role="alert">${state.error.message}</span>`}
      ${is_asking && html`
        <${Dialog} title=${question} onClose=${() => ask(false)}>
          <div class="buttons">
            <button type="button" onClick=${() => ask(false)}>Keep it</button>
            <button type="button" class=${kind} onClick=${run}>${children}</button>
          </div>
        <//>`}
    </span>`;
}

/** A dialog with a text area for JSON. The text is sent unchanged; an empty text area sends no body. */
export function JsonBox({ title, label, text: initial, verb, send, onClose }) {
  const [text, setText] = useState(initial);
  const [error, setError] = useState(null);
  const [is_busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    try {
      if (text.trim()) parse(text);
    } catch (problem) {
      return setError({ code: "not JSON", message: problem.message });
    }
    setBusy(true);
    try {
      await send(text.trim() || undefined);
      onClose();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  const onKeyDown = (event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && submit(event);
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <form onSubmit=${submit}>
        <label>${label}
          <textarea rows="8" spellcheck="false" autofocus value=${text} onInput=${(e) => setText(e.target.value)} onKeyDown=${onKeyDown} />
        </label>
        <${Problem} error=${error} />
        <div class="buttons">
          <button type="button" onClick=${onClose}>Close</button>
          <button type="submit" class="primary" disabled=${is_busy}>${verb}</button>
        </div>
      </form>
    <//>`;
}
