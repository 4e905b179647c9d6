// The list of runs: newest first, filtered by status and workflow, live.

import { all, get } from "./api.js";
import { html, useState } from "./html.js";
import { credentials } from "./key.js";
import { RUN_CHANGES, useLive } from "./live.js";
import { Copy, Problem, Skeleton } from "./parts.js";
import { go, link } from "./route.js";
import { RUN_FILTERS, Status, words } from "./status.js";
import { Lasting, readClock, When } from "./time.js";
import { TriggerButton, useExampleInput } from "./trigger.js";

const PAGE = 50;
/** Every form but single tasks. */
const WORKFLOW_FORMS = "graph,steps,transitions,script";

export function Runs({ parameters }) {
  const { status = "", workflow = "", cursor = "" } = parameters;
  const [state, setState] = useState({});
  const [workflows, setWorkflows] = useState(null);
  const here = (changes) => link(["runs"], { status, workflow, ...changes });

  const { runs, next, error } = state;
  const is_filtered = status || workflow || cursor;
  const is_new = runs?.length === 0 && !is_filtered;
  useLive(RUN_CHANGES, async (isOver) => {
    try {
      const [page] = await Promise.all([get("/runs", { status, workflow, form: WORKFLOW_FORMS, cursor, limit: PAGE }), readClock()]);
      if (isOver()) return;
      setState({ runs: page.data, next: page.next });
      if (!workflows || (!page.data.length && !is_filtered)) setWorkflows(await all("/workflows"));
    } catch (error) {
      if (!isOver()) setState((before) => ({ ...before, error }));
    }
  }, [status, workflow, cursor], is_new ? 2_000 : 0);

  return html`
    <div class="bar-top">
      <h1>Runs</h1>
      <nav class="chips" aria-label="Filter by status">
        ${RUN_FILTERS.map(([value, label]) => html`
          <a class="chip" href=${here({ status: value, cursor: "" })} aria-current=${value === status ? "true" : undefined}>${label}</a>`)}
      </nav>
      <label class="pick"><span class="unseen">Workflow</span>
        <select value=${workflow} onChange=${(event) => go(here({ workflow: event.target.value, cursor: "" }))}>
          <option value="">All workflows</option>
          ${(workflows ?? []).map((w) => html`<option value=${w.id} selected=${w.id === workflow}>${w.name}</option>`)}
        </select>
      </label>
    </div>
    <${Problem} error=${error} />
    ${!runs && !error && html`<${Skeleton} rows=${8} />`}
    ${runs?.length > 0 && html`<${RunTable} runs=${runs} />`}
    ${runs?.length === 0 && (is_filtered
      ? html`<div class="empty"><h2>No matching runs</h2><p><a class="button" href=${link(["runs"])}>Show all runs</a></p></div>`
      : workflows && html`<${NothingYet} workflows=${workflows} />`)}
    ${(cursor || next) && html`
      <nav class="pages" aria-label="Pages">
        ${cursor && html`<a class="button" href=${here({ cursor: "" })}>Newest</a>`}
        ${next && html`<a class="button" href=${here({ cursor: next })}>Older</a>`}
      </nav>`}`;
}

export const RunTable = ({ runs, is_of_one_workflow }) => html`
  <div class="card flush">
    <table class="runs">
      <thead><tr><th>Status</th>${!is_of_one_workflow && html`<th>Workflow</th>`}<th>Run</th><th>Started</th><th>Duration</th><th>Waiting for, or error</th></tr></thead>
      <tbody>
        ${runs.map((run) => html`
          <tr key=${run.id} data-run=${run.id} data-status=${run.status}>
            <td class="status-of"><${Status} status=${run.status} /></td>
            ${!is_of_one_workflow && html`<td class="who">${run.workflow}</td>`}
            <td class="id"><a class="whole" href=${link(["runs", run.id])}>${run.id}</a></td>
            <td class="started"><${When} at=${run.started_at} /></td>
            <td class="took"><${Lasting} from=${run.started_at} to=${run.finished_at} /></td>
            <td class="why">${run.error_code ? html`<code class="bad-text">${run.error_code}</code>` : run.waiting_for.map(words).join(", ")}</td>
          </tr>`)}
      </tbody>
    </table>
  </div>`;

/** The start of a `curl` command; the key itself is never shown. */
const curl = (path) => `curl ${location.href.split("#")[0]}api/v1${path} \\${credentials().authorization ? `
  -H "authorization: Bearer $ONWARD_API_KEY" \\` : ""}`;

const FIRST = () => `${curl("/workflows")}
  -H 'content-type: application/yaml' --data-binary '
name: hello
tasks:
  greet: { log: { message: "hello {{trigger.body.name}}" } }
  pause: { sleep: 5s, needs: [greet] }
  done:  { set: { greeted: "{{trigger.body.name}}" }, needs: [pause] }
'`;

/** What to do next: create a workflow, or start a run. */
export function NothingYet({ workflows }) {
  if (!workflows.length) {
    const text = FIRST();
    return html`
      <div class="empty">
        <h2>Create your first workflow</h2>
        <p>A workflow is a set of steps and their dependencies. Paste this into a terminal; the workflow appears here at once.</p>
        <div class="code"><pre tabindex="0">${text}</pre><${Copy} text=${text} /></div>
      </div>`;
  }
  return html`<${FirstRun} key=${workflows[0].id} workflow=${workflows[0]} />`;
}

function FirstRun({ workflow }) {
  const input = useExampleInput(workflow);
  const text = `${curl(`/workflows/${workflow.slug}/trigger`)}
  -H 'content-type: application/json' -d '${JSON.stringify(input)}'`;
  return input !== undefined && html`
    <div class="empty">
      <h2>Start your first run</h2>
      <p><b>${workflow.name}</b> is ready. Start it here, or from a terminal:</p>
      <div class="code"><pre tabindex="0">${text}</pre><${Copy} text=${text} /></div>
      <p><${TriggerButton} workflow=${workflow} kind="primary" input=${input} /></p>
    </div>`;
}
