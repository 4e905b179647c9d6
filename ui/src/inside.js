// What is inside of a group, a loop or an iteration: a tree that loads each level when it is opened, because a loop may have
// thousands of iterations.

import { get } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { Json } from "./json.js";
import { kindLabel } from "./kind.js";
import { Problem } from "./parts.js";
import { link } from "./route.js";
import { Sign, isTerminal, words } from "./status.js";

const PAGE = 50;
/** The kinds of steps that have others inside. */
const HOLDERS = new Set(["group", "loop", "iteration", "conditional", "parallel"]);

export function Inside({ run, under }) {
  const [{ steps, next, error }, setState] = useState({ steps: [] });
  const load = async (cursor) => {
    try {
      const page = await get(`/runs/${encodeURIComponent(run.id)}/steps`, { under, limit: PAGE, cursor });
      setState((before) => ({ steps: cursor ? before.steps.concat(page.data) : page.data, next: page.next }));
    } catch (error) {
      setState((before) => ({ ...before, error }));
    }
  };
  // While the run is open each change of it loads the first page again.
  useEffect(() => void load(), [run.id, under, isTerminal(run.status) || run]);
  return html`
    <ul class="inside-tree" data-under=${under}>
      ${steps.map((step) => html`<li key=${step.step}><${Row} run=${run} step=${step} under=${under} /></li>`)}
    </ul>
    <${Problem} error=${error} />
    ${next && html`<button type="button" onClick=${() => load(next)}>Show more</button>`}`;
}

function Row({ run, step, under }) {
  const [is_open, setOpen] = useState(false);
  const name = step.step.slice(under.length).replace(/^\//, "");
  return html`
    <details data-step=${step.step} data-status=${step.status} onToggle=${(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
      <summary><${Sign} status=${step.status} /> <b>${name}</b>
        <small class="muted">${step.type === "iteration" ? "" : kindLabel(step.type)} ${words(step.status)}</small></summary>
      <${Problem} error=${step.error} />
      ${step.child && html`<p><a href=${link(["runs", step.child.run_id])}>Run of ${step.child.workflow}</a></p>`}
      ${is_open && HOLDERS.has(step.type) && html`<${Inside} run=${run} under=${step.step} />`}
      ${is_open && step.body !== undefined && html`<${Json} value=${step.body} label=${`Body of ${step.step}`} />`}
    </details>`;
}
