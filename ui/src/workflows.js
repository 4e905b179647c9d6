// The list of workflows, and one workflow: its plan, its latest runs, its definition.

import { get, isMissing } from "./api.js";
import { html, useRef, useState } from "./html.js";
import { Json } from "./json.js";
import { Graph, readPlan } from "./graph.js";
import { RUN_CHANGES, useLive } from "./live.js";
import { Card, Fact, NotLoaded, Problem, Skeleton } from "./parts.js";
import { link } from "./route.js";
import { NothingYet, RunTable } from "./runs.js";
import { When, readClock } from "./time.js";
import { TriggerButton } from "./trigger.js";

export function Workflows({ parameters: { cursor = "" } }) {
  const [{ list, next, error }, setState] = useState({});
  useLive(RUN_CHANGES, async (isOver) => {
    try {
      const [page] = await Promise.all([get("/workflows", { limit: 50, cursor }), readClock()]);
      if (!isOver()) setState({ list: page.data, next: page.next });
    } catch (error) {
      if (!isOver()) setState((before) => ({ ...before, error }));
    }
  }, [cursor], 5_000);
  return html`
    <div class="bar-top"><h1>Workflows</h1></div>
    <${Problem} error=${error} />
    ${!list && !error && html`<${Skeleton} />`}
    ${list?.length === 0 && html`<${NothingYet} workflows=${[]} />`}
    ${list?.length > 0 && html`
      <div class="card flush">
        <table class="workflows">
          <thead><tr><th>Name</th><th>Steps</th><th>Trigger</th><th>Version</th><th>Changed</th><th><span class="unseen">Actions</span></th></tr></thead>
          <tbody>
            ${list.map((w) => html`
              <tr key=${w.id} data-workflow=${w.id}>
                <td class="who"><a class="whole" href=${link(["workflows", w.id])}>${w.name}</a><small>${w.description ?? (w.slug === w.name ? "" : w.slug)}</small></td>
                <td class="number">${w.task_count}</td>
                <td>${w.trigger}</td>
                <td class="number">${w.version}${w.enabled ? "" : html` <span class="tag">disabled</span>`}</td>
                <td><${When} at=${w.updated_at} /></td>
                <td class="acts"><${TriggerButton} workflow=${w} /></td>
              </tr>`)}
          </tbody>
        </table>
      </div>`}
    ${(cursor || next) && html`
      <nav class="pages" aria-label="Pages">
        ${cursor && html`<a class="button" href=${link(["workflows"])}>Newest</a>`}
        ${next && html`<a class="button" href=${link(["workflows"], { cursor: next })}>Older</a>`}
      </nav>`}`;
}

export function Workflow({ id }) {
  const [{ workflow, plan, runs, error }, setState] = useState({});
  const drawn = useRef({});
  useLive(isMissing(error) ? null : RUN_CHANGES, async (isOver) => {
    try {
      const path = `/workflows/${encodeURIComponent(id)}`;
      const { data: workflow } = await get(path);
      if (drawn.current.hash !== workflow.hash) drawn.current = { hash: workflow.hash, plan: await readPlan(path) };
      const [page] = await Promise.all([get("/runs", { workflow: workflow.id, limit: 20 }), readClock()]);
      if (!isOver()) setState({ workflow, plan: drawn.current.plan, runs: page.data });
    } catch (error) {
      if (!isOver()) setState((before) => ({ ...before, error }));
    }
  }, [id]);
  if (!workflow) return error ? html`<${NotLoaded} error=${error} back=${[link(["workflows"]), "Workflows"]} />` : html`<${Skeleton} />`;
  return html`
    <div class="crumbs"><a href=${link(["workflows"])}>Workflows</a></div>
    <div class="bar-top">
      <h1>${workflow.name}</h1>
      ${!workflow.enabled && html`<span class="tag">disabled</span>`}
      <div class="buttons"><${TriggerButton} workflow=${workflow} kind="primary" /></div>
    </div>
    ${workflow.description && html`<p class="lead">${workflow.description}</p>`}
    <${Problem} error=${error} />
    <dl class="facts">
      <${Fact} name="Version">${workflow.version}<//>
      <${Fact} name="Steps">${workflow.task_count}<//>
      <${Fact} name="Trigger">${workflow.trigger}<//>
      <${Fact} name="Changed"><${When} at=${workflow.updated_at} /><//>
      <${Fact} name="Id"><code>${workflow.id}</code><//>
    </dl>
    <${Card} title="Plan" name="plan"><${Graph} ...${plan} steps=${new Map()} /><//>
    <h2 class="between">Latest runs <a href=${link(["runs"], { workflow: workflow.id })}>all runs</a></h2>
    ${runs.length ? html`<${RunTable} runs=${runs} is_of_one_workflow />` : html`<div class="empty small">No runs.</div>`}
    <${Card} title="Definition" name="definition"><${Json} value=${workflow.definition} label="Definition" /><//>`;
}
