// One run: its status and the reason, its plan, its timeline and its events.

import { get, isMissing, post } from "./api.js";
import { html, useMemo, useRef, useState } from "./html.js";
import { Explain } from "./explain.js";
import { Graph, readPlan } from "./graph.js";
import { Json } from "./json.js";
import { useLive } from "./live.js";
import { Action, Card, Copy, Fact, NotLoaded, Problem, Skeleton } from "./parts.js";
import { link } from "./route.js";
import { segments } from "./segments.js";
import { Status, isTerminal, words } from "./status.js";
import { StepPanel } from "./step.js";
import { Timeline } from "./timeline.js";
import { Lasting, When, absolute, now, readClock, span } from "./time.js";
import { TriggerButton } from "./trigger.js";

/** Beyond this many events the view shows only the first ones; the API has the rest. */
const EVENTS_MAX = 2_000;

export function Run({ id, parameters }) {
  const [state, setState] = useState({});
  const known = useRef({});
  if (known.current.id !== id) known.current = { id, events: [] };

  const path = `/runs/${encodeURIComponent(id)}`;
  const load = async (isOver) => {
    const mine = known.current;
    try {
      const [run, , explanation] = await Promise.all([
        get(path).then((answer) => answer.data),
        catchUp(path, mine),
        get(`${path}/explain`).then((answer) => answer.data, () => null),
        readClock(),
      ]);
      mine.graph ??= await readPlan(path); // it does not change during a run
      if (!isOver()) setState({ id, run, explanation, graph: mine.graph, events: mine.events });
    } catch (error) {
      if (!isOver()) setState((before) => ({ ...before, id, error }));
    }
  };
  const is_over = state.id === id && (isMissing(state.error) || (state.run && isTerminal(state.run.status)));
  const refresh = useLive(is_over ? null : `${path}/stream`, load, [id]);

  if (state.id !== id || !state.run) {
    return state.id === id && state.error ? html`<${NotLoaded} error=${state.error} back=${[link(["runs"]), "Runs"]} />` : html`<${Skeleton} rows=${10} />`;
  }
  return html`<${Page} ...${state} chosen=${parameters.step} refresh=${refresh} />`;
}

/** Loads the events after the last known one. Replaces the list each time, so that dependent views update. */
async function catchUp(path, mine) {
  for (let cursor = mine.events.at(-1)?.seq; mine.events.length < EVENTS_MAX;) {
    const page = await get(`${path}/events`, { limit: 500, cursor });
    const last = mine.events.at(-1)?.seq ?? 0;
    const fresh = page.data.filter((event) => event.seq > last);
    if (fresh.length) mine.events = mine.events.concat(fresh);
    if (!page.next) return;
    cursor = page.next;
  }
}

function Page({ run, graph, events, explanation, error, chosen, refresh }) {
  const steps = useMemo(() => new Map(Object.entries(run.tasks)), [run]);
  const bars = useMemo(() => segments(events, now.peek()), [events]);
  const node = graph.nodes.find((node) => node.step === outermost(chosen ?? ""));
  const here = (step) => link(["runs", run.id], { step });
  const cancel = async () => {
    await post(`/runs/${run.id}/cancel`);
    refresh();
  };
  const offers_cancel = explanation?.next_actions.some(({ action }) => action === "cancel");
  return html`
    <div class="crumbs"><a href=${link(["runs"])}>Runs</a><a href=${link(["workflows", run.workflow_id])}>${run.workflow}</a></div>
    <div class="bar-top">
      <${Status} status=${run.status} />
      <h1>${run.workflow}</h1>
      <code class="id">${run.id}</code><${Copy} text=${run.id} label="Copy id" />
      <div class="buttons">
        <${TriggerButton} workflow=${{ id: run.workflow_id, name: run.workflow }} label="Run again" input=${run.input} />
        ${!isTerminal(run.status) && !offers_cancel && html`<${Action} kind="danger" confirm="Cancel this run?" act=${cancel}>Cancel<//>`}
      </div>
    </div>
    <dl class="facts">
      <${Fact} name="Started"><${When} at=${run.started_at} /><//>
      <${Fact} name="Duration"><${Lasting} from=${run.started_at} to=${run.finished_at} /><//>
      ${run.finished_at ? html`<${Fact} name="Finished"><${When} at=${run.finished_at} /><//>`
        : html`<${Fact} name="Expires"><${When} at=${run.expires_at} /><//>`}
      ${run.parent ? html`<${Fact} name="Started by"><a href=${link(["runs", run.parent.run_id], { step: run.parent.step })}>${run.parent.step}</a> of ${run.parent.workflow}<//>`
        : html`<${Fact} name="Started by">${words(run.trigger.type)}<//>`}
      ${run.forked_from && html`<${Fact} name="Fork of"><a href=${link(["runs", run.forked_from.run_id], { step: run.forked_from.step })}>${run.forked_from.step}</a><//>`}
      <${Fact} name="Version">${run.version}<//>
      ${run.failed_steps.length > 0 && html`<${Fact} name="Failed steps">${run.failed_steps.map((step, i) =>
        html`${i ? ", " : ""}<a class="bad-text" href=${here(outermost(step))}>${step}</a>`)}<//>`}
      ${run.recovery && html`<${Fact} name="Undone"><${Undone} recovery=${run.recovery} link=${(step) => here(outermost(step))} /><//>`}
      ${run.cancelled_by && html`<${Fact} name="Cancelled by">${run.cancelled_by}<//>`}
      ${Object.entries(run.labels).map(([key, value]) => html`<${Fact} name=${key}>${value}<//>`)}
    </dl>
    <${Problem} error=${error} />
    ${explanation ? html`<${Explain} run=${run} explanation=${explanation} onDone=${refresh} />` : html`<${Problem} error=${run.error} />`}
    <div class="columns">
      <div>
        <${Card} title="Plan" name="graph"><${Graph} ...${graph} steps=${steps} chosen=${chosen} link=${here} /><//>
        <${Card} title="Timeline" name="timeline"><${Timeline} run=${run} nodes=${graph.nodes} steps=${steps} events=${events} chosen=${chosen} link=${here} /><//>
        <${Card} title="Events" name="events" aside=${html`<span class="muted number">${events.length}${events.length >= EVENTS_MAX ? "+" : ""}</span>`}>
          <${Events} run=${run} events=${events} />
        <//>
      </div>
      <aside class=${`panel ${node ? "of-step" : ""}`} aria-label=${node ? `Step ${node.step}` : "Input"}>
        ${node ? html`<${StepPanel} key=${node.step} run=${run} node=${node} step=${steps.get(node.step)} bars=${bars.get(node.step) ?? []} close=${here()} onDone=${refresh} />`
          : html`<${About} run=${run} />`}
      </aside>
    </div>`;
}

/** The step of the plan that an inner step is in: `orders` of `orders[3]/charge`. */
const outermost = (step) => step.split(/[[/]/)[0];

/** What was undone, in order, and what is left. */
const Undone = ({ recovery, link }) => html`
  <span data-recovery=${recovery.status}>
    ${recovery.steps.map(({ step, status }, i) => html`${i ? ", " : ""}<a href=${link(step)} class=${status === "success" ? "" : "bad-text"}>${step}</a>${
      status === "success" ? "" : ` (${words(status)})`}`)}
    ${recovery.remaining.length > 0 && html`<span class="muted">${recovery.steps.length ? "; " : ""}still to undo: ${recovery.remaining.join(", ")}</span>`}
  </span>`;

const About = ({ run }) => html`
  <header><h2>Input</h2></header>
  <${Json} value=${run.input} label="Input" />
  ${run.output !== null && html`<h3>Output</h3><${Json} value=${run.output} label="Output" />`}
  <p class="muted">Select a step to see its response.</p>`;

function Events({ run, events }) {
  const begin = Date.parse(run.started_at);
  return html`
    <ol class="events">
      ${events.map((event) => html`
        <li key=${event.seq} data-type=${event.type}>
          <details>
            <summary>
              <span class="number muted">${event.seq}</span>
              <time class="number" datetime=${event.at} title=${absolute(event.at)}>+${span(Date.parse(event.at) - begin)}</time>
              <code>${event.type}</code>
              <span class="who">${event.step ?? ""}${event.attempt > 1 ? ` · attempt ${event.attempt}` : ""}</span>
              <span class="what">${event.data?.error?.message ?? event.data?.reason ?? ""}</span>
            </summary>
            <${Json} value=${event.data} label=${`Event ${event.seq}`} />
          </details>
        </li>`)}
    </ol>`;
}
