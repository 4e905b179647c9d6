// The explanation of a run: why it is in its current state, and the possible actions, both from the server.

import { call } from "./api.js";
import { html, useState } from "./html.js";
import { Json, pretty } from "./json.js";
import { Action, JsonBox, Prose } from "./parts.js";
import { go, link } from "./route.js";
import { tone, words } from "./status.js";

export function Explain({ run, explanation, onDone }) {
  const { reason, summary, step, details, next_actions, chain = [] } = explanation;
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
          : html`
            <${Action} key=${action.action} kind=${isHarsh(action) ? "danger" : ""} act=${() => act(action)}
              confirm=${isHarsh(action) ? `${title(action)} this run?` : undefined}>${title(action)}<//>`)}
      </div>
      <details><summary>Evidence</summary>
        ${chain.length > 1 && html`<ol class="chain">${chain.map((cause) => html`<li><${Prose} text=${cause.summary} /></li>`)}</ol>`}
        <${Json} value=${details} label="Evidence" />
      </details>
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

/** The path of an action on this server, or null: "wait" is advice, and the dashboard does not call other hosts. */
function ownPath({ method, path }) {
  if (method === "GET") return null;
  if (path.startsWith("/api/v1/")) return path;
  return path.match(/^https?:\/\/[^/]+.*(\/wh\/[^/?#]+)$/)?.[1] ?? null;
}

const title = ({ action }) => words(action).replace(/^./, (first) => first.toUpperCase());
const isHarsh = ({ action }) => /cancel|delete|reject/.test(action);
