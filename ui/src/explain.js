// Why a run is where it is, and what can be done about it: the server's words and the server's actions.

import { call } from "./api.js";
import { html } from "./html.js";
import { Json } from "./json.js";
import { Action } from "./parts.js";
import { link } from "./route.js";
import { words } from "./status.js";

export function Explain({ run, explanation, onDone }) {
  const actions = (explanation.next_actions ?? []).filter(isCall);
  const evidence = explanation.evidence ?? explanation.details;
  return html`
    <section class="explain" aria-label="Explanation" data-reason=${explanation.reason}>
      <p><code>${explanation.reason}</code> ${explanation.summary}
        ${explanation.step && html` <a href=${link(["runs", run.id], { step: explanation.step })}>Show ${explanation.step}</a>`}</p>
      ${actions.length > 0 && html`
        <div class="buttons">
          ${actions.map((action) => html`
            <${Action} key=${name(action)} kind=${isHarsh(action) ? "danger" : ""}
              confirm=${isHarsh(action) ? `${title(action)} this run?` : undefined}
              act=${async () => { await call(action.method, action.path, body(action)); onDone(); }}>
              ${title(action)}
            <//>`)}
        </div>`}
      ${hasContent(evidence) && html`<details><summary>Evidence</summary><${Json} value=${evidence} label="Evidence" /></details>`}
    </section>`;
}

/** Only what changes something at this server becomes a button; "wait" is advice, not a request. */
const isCall = (action) => action.method && action.method !== "GET" && String(action.path ?? "").startsWith("/api/v1/");
const name = (action) => action.action ?? action.name ?? action.path;
const title = (action) => {
  const text = words(action.title ?? action.label ?? name(action));
  return text.charAt(0).toUpperCase() + text.slice(1);
};
const isHarsh = (action) => /cancel|delete|reject/.test(name(action));
const body = (action) => (action.body === undefined || action.body === null ? undefined : JSON.stringify(action.body));
const hasContent = (value) => value && typeof value === "object" && Object.keys(value).length > 0;
