// The explanation of a run: why it is in its current state, and the possible actions, both from the server. The most
// urgent cause comes with its actions and evidence; the others are a list.

import { call } from "./api.js";
import { html, useState } from "./html.js";
import { Json, pretty } from "./json.js";
import { Action, Dialog, JsonBox, Problem, Prose } from "./parts.js";
import { go, link } from "./route.js";
import { tone, words } from "./status.js";

export function Explain({ run, explanation, onDone }) {
  const { reason, summary, step, details, next_actions, chain = [], causes = [], more_causes = 0 } = explanation;
  const actions = next_actions.map((action) => ({ ...action, path: ownPath(action) })).filter((action) => action.path);
  const act = async (action, body = action.body === undefined ? undefined : JSON.stringify(action.body)) => {
    const { data } = await call(action.method, action.path, body);
    const made = data?.run_id ?? run.id;
    if (made === run.id) onDone();
    else go(link(["runs", made]));
  };
  return html`
    <section class=${`explain tone-${tone(explanation.status)}`} aria-label="Explanation" data-reason=${reason}>
      <p><code>${reason}</code> <${Prose} text=${summary} />
        ${step && html` <a href=${link(["runs", run.id], { step })}>Show step</a>`}</p>
      <div class="buttons">
        ${actions.map((action) => action.action === "call_webhook"
          ? html`<${Callback} key=${action.path} action=${action} act=${act} />`
          : DECISIONS.has(action.action) ? html`<${Decide} key=${action.action} action=${action} act=${act} />`
          : html`
            <${Action} key=${action.action} kind=${isHarsh(action) ? "danger" : ""} act=${() => act(action)}
              confirm=${isHarsh(action) ? `${title(action)} this run?` : undefined}>${title(action)}<//>`)}
      </div>
      <details><summary>Evidence</summary>
        ${chain.length > 1 && html`<ol class="chain">${chain.map((cause) => html`<li><${Prose} text=${cause.summary} /></li>`)}</ol>`}
        <${Json} value=${details} label="Evidence" />
      </details>
      ${causes.length > 1 && html`
        <ul class="causes" aria-label="Other causes">
          ${causes.slice(1).map((cause) => html`
            <li data-reason=${cause.reason}><code>${cause.reason}</code> <${Prose} text=${cause.summary} />
              ${cause.step && html` <a href=${link(["runs", run.id], { step: cause.step })}>Show step</a>`}</li>`)}
          ${more_causes > 0 && html`<li class="muted">and ${more_causes} more</li>`}
        </ul>`}
    </section>`;
}

/** Sends the callback that the run waits for. */
function Callback({ action, act }) {
  const [is_open, setOpen] = useState(false);
  return html`
    <button type="button" onClick=${() => setOpen(true)}>${title(action)}</button>
    ${is_open && html`<${JsonBox} title=${title(action)} label="Payload of the callback, as JSON" text=${pretty(action.body ?? {})} verb="Send"
      send=${(body) => act(action, body ?? "null")} onClose=${() => setOpen(false)} />`}`;
}

const DECISIONS = new Set(["approve", "reject"]);

/** Approves or rejects; the server records who did. */
function Decide({ action, act }) {
  const [is_open, setOpen] = useState(false);
  const [decision, change] = useState({ actor: localStorage.getItem(ACTOR) ?? "", comment: "" });
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    localStorage.setItem(ACTOR, decision.actor);
    try {
      await act(action, JSON.stringify({ ...action.body, ...decision }));
      setOpen(false);
    } catch (problem) {
      setError(problem);
    }
  };
  const field = (name) => ({ value: decision[name], onInput: (event) => change({ ...decision, [name]: event.target.value }) });
  return html`
    <button type="button" class=${isHarsh(action) ? "danger" : ""} onClick=${() => setOpen(true)}>${title(action)}</button>
    ${is_open && html`
      <${Dialog} title=${`${title(action)} ${action.body?.step ?? "this step"}?`} onClose=${() => setOpen(false)}>
        <form onSubmit=${submit}>
          <label>Your name <input required autofocus maxlength="1024" ...${field("actor")} /></label>
          <label>Comment <input maxlength="1024" ...${field("comment")} /></label>
          <${Problem} error=${error} />
          <div class="buttons">
            <button type="button" onClick=${() => setOpen(false)}>Close</button>
            <button type="submit" class=${isHarsh(action) ? "danger" : "primary"}>${title(action)}</button>
          </div>
        </form>
      <//>`}`;
}

/** Under this name the browser remembers who decided last. */
const ACTOR = "onward.actor";

/** The path of an action on this server, or null: "wait" is advice, and the dashboard does not call other hosts. */
function ownPath({ method, path }) {
  if (method === "GET") return null;
  if (path.startsWith("/api/v1/")) return path;
  return path.match(/^https?:\/\/[^/]+.*(\/wh\/[^/?#]+)$/)?.[1] ?? null;
}

const title = ({ action }) => words(action).replace(/^./, (first) => first.toUpperCase());
const isHarsh = ({ action }) => /cancel|delete|reject/.test(action);
