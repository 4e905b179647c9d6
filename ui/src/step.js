// One step of a run, beside the graph: its kind, attempts, response, and why it was skipped.

import { call } from "./api.js";
import { html, useState } from "./html.js";
import { Inside } from "./inside.js";
import { Json, pretty } from "./json.js";
import { KindIcon, kindLabel } from "./kind.js";
import { Action, Dialog, Fact, JsonBox, Problem } from "./parts.js";
import { go, link } from "./route.js";
import { Status, isTerminal, words } from "./status.js";
import { Lasting, When, span } from "./time.js";

export function StepPanel({ run, node, step, bars, close, onDone }) {
  return html`
    <header><h2>${node.step}</h2><a class="close" href=${close} aria-label="Close the step">✕</a></header>
    <p class="line"><${Status} status=${step.status} /> <span class="tag"><${KindIcon} kind=${node.kind} />${kindLabel(node.kind)}</span>
      ${step.status_code && html`<span class="tag">status ${step.status_code}</span>`}</p>
    <${Problem} error=${step.error} />
    ${!isTerminal(run.status) && !step.finished_at && html`<${Decisions} run=${run} node=${node} step=${step} onDone=${onDone} />`}
    ${isTerminal(run.status) && !node.parent && html`<${Fork} run=${run} node=${node} />`}
    ${step.skipped_because && html`<${Skipped} because=${step.skipped_because} />`}
    <dl class="facts narrow">
      ${step.started_at && html`<${Fact} name="Started"><${When} at=${step.started_at} /><//>
        <${Fact} name="Duration"><${Lasting} from=${step.started_at} to=${step.finished_at} /><//>`}
      ${step.attempt > 0 && html`<${Fact} name="Attempts">${step.attempt}<//>`}
      ${step.copied && html`<${Fact} name="Result">${step.copied === "given" ? "given with the fork" : "copied from the run that was forked"}<//>`}
      ${step.wake_at && html`<${Fact} name="Wakes"><${When} at=${step.wake_at} /><//>`}
      ${step.deadline && html`<${Fact} name="Deadline"><${When} at=${step.deadline} /><//>`}
      ${step.next_attempt_at && html`<${Fact} name="Next attempt"><${When} at=${step.next_attempt_at} /><//>`}
      ${step.child && html`<${Fact} name="Child"><a href=${link(["runs", step.child.run_id])}>${step.child.workflow}</a><//>`}
      ${node.needs.length > 0 && html`<${Fact} name="Needs">${node.needs.join(", ")}<//>`}
    </dl>
    ${node.if && !step.skipped_because?.condition && html`<h3>If</h3><pre class="short">${node.if}</pre>`}
    ${bars.filter((bar) => bar.kind === "running").length > 1 && html`<${Attempts} bars=${bars} />`}
    ${step.approval && html`<${Approval} approval=${step.approval} />`}
    ${node.inside > 0 && step.counts && html`<h3>Inside</h3><${Inside} run=${run} under=${node.step} />`}
    ${step.body !== undefined && html`<h3>Body${step.is_truncated ? " (truncated)" : ""}</h3><${Json} value=${step.body} label="Body" />`}
    ${step.headers && Object.keys(step.headers).length > 0 && html`
      <details><summary>Response headers</summary><${Json} value=${step.headers} label="Response headers" /></details>`}`;
}

/** What an operator can decide about a step that has not settled. */
function Decisions({ run, node, step, onDone }) {
  const [is_open, setOpen] = useState(false);
  const decide = async (verb, body) => {
    await call("POST", `/api/v1/runs/${run.id}/steps/${encodeURIComponent(node.step)}/${verb}`, body);
    onDone();
  };
  const waits = step.status === "sleeping" || step.status === "retrying";
  return html`
    <div class="buttons decisions">
      ${waits && html`<${Action} act=${() => decide("run-now", "{}")}>Run now<//>`}
      <button type="button" onClick=${() => setOpen(true)}>Set result</button>
      <${Action} kind="danger" confirm=${`Skip ${node.step}?`} act=${() => decide("skip", "{}")}>Skip<//>
    </div>
    ${is_open && html`<${JsonBox} title=${`Result of ${node.step}`} label="Result, as JSON" text="{}" verb="Set"
      send=${(body) => decide("result", `{"result": ${body ?? "null"}}`)} onClose=${() => setOpen(false)} />`}`;
}

/** Starts a run that takes over what is not downstream of a step. */
function Fork({ run, node }) {
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const path = `/api/v1/runs/${run.id}/fork`;
  const ask = async () => {
    setError(null);
    setPlan((await call("POST", path, JSON.stringify({ from: node.step, dry_run: true }))).data);
  };
  const fork = async () => {
    try {
      go(link(["runs", (await call("POST", path, JSON.stringify({ from: node.step }))).data.run_id]));
    } catch (problem) {
      setError(problem);
    }
  };
  return html`
    <div class="buttons decisions"><${Action} act=${ask}>Fork from here<//></div>
    ${plan && html`
      <${Dialog} title=${`Fork from ${node.step}?`} onClose=${() => setPlan(null)}>
        <p>A new run takes over the other results, and runs ${plan.would_run.join(", ")}.</p>
        ${plan.would_repeat.length > 0 && html`<p>Of these, ${plan.would_repeat.join(", ")} succeeded before.</p>`}
        <${Problem} error=${error} />
        <div class="buttons">
          <button type="button" onClick=${() => setPlan(null)}>Close</button>
          <button type="button" class="primary" onClick=${fork}>Fork</button>
        </div>
      <//>`}`;
}

function Skipped({ because }) {
  const rows = Object.entries(because.saw ?? because.steps ?? {});
  return html`
    <div class="skipped" data-reason=${because.reason}>
      <strong>Skipped</strong> ${because.reason === "condition_false" ? "because its condition was false" : words(because.reason)}
      ${because.condition && html`<pre class="short">${because.condition}</pre>`}
      ${rows.length > 0 && html`
        <table><tbody>${rows.map(([path, value]) => html`
          <tr><td><code>${path}</code></td><td><code>${typeof value === "string" && because.steps ? words(value) : pretty(value)}</code></td></tr>`)}
        </tbody></table>`}
    </div>`;
}

const Attempts = ({ bars }) => html`
  <h3>Attempts</h3>
  <ol class="attempts">
    ${bars.filter((bar) => bar.kind === "running").map((bar) => html`
      <li class=${bar.outcome}><b>${bar.attempt}</b> <span class="number">${span(bar.to - bar.from)}</span>
        ${bar.error ? html`<span><code>${bar.error.code}</code> ${bar.error.message}</span>` : html`<span>${bar.is_open ? "running" : "succeeded"}</span>`}</li>`)}
  </ol>`;

const Approval = ({ approval }) => html`
  <h3>To be approved</h3>
  <p>${approval.prompt}</p>
  ${approval.items !== null && html`<${Json} value=${approval.items} label="Items" />`}
  ${approval.approvers?.length > 0 && html`<p class="muted">by ${approval.approvers.join(", ")}</p>`}`;
