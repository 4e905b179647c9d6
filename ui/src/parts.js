// Small parts several pages share.

import { html, useEffect, useRef, useState } from "./html.js";

export function Copy({ text, label = "Copy" }) {
  const [is_copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return; // a page on plain HTTP may not; the text can still be selected
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1_200);
  };
  return html`<button type="button" class="copy" onClick=${copy} aria-live="polite">${is_copied ? "Copied" : label}</button>`;
}

export const Problem = ({ error }) => error && html`
  <div class="problem" role="alert">
    <strong>${error.code ?? "error"}</strong> ${error.message}
    ${error.hint && html`<div class="muted">${error.hint}</div>`}
    ${(error.problems ?? []).slice(1).map((p) => html`<div>${p.message}</div>`)}
  </div>`;

export const Card = ({ title, aside, children, name }) => html`
  <section class="card" aria-label=${title} data-card=${name}>
    <header><h2>${title}</h2>${aside}</header>
    ${children}
  </section>`;

export const Fact = ({ name, children }) => html`<div class="fact"><dt>${name}</dt><dd>${children}</dd></div>`;

export const Skeleton = ({ rows = 6 }) => html`
  <div class="skeleton" aria-busy="true" aria-label="Loading">${Array.from({ length: rows }, () => html`<i />`)}</div>`;

/** A native dialog: focus stays inside, Escape closes. */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useEffect(() => element.current.showModal(), []);
  const onClick = (event) => event.target === element.current && onClose();
  return html`
    <dialog ref=${element} onClose=${onClose} onClick=${onClick} aria-label=${title}>
      <div class="sheet"><h2>${title}</h2>${children}</div>
    </dialog>`;
}

/** A button that does something at the server, and says so when it could not. */
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
