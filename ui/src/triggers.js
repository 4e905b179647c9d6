// Schedules and webhooks: their next fire time, their last run, and buttons to run, enable and disable them.

import { all, get, post } from "./api.js";
import { html, useState } from "./html.js";
import { RUN_CHANGES, useLive } from "./live.js";
import { Action, Copy, Problem, Skeleton } from "./parts.js";
import { go, link } from "./route.js";
import { words } from "./status.js";
import { When, readClock } from "./time.js";

export function Triggers({ parameters: { cursor = "" } }) {
  const [{ list, next, error }, setState] = useState({});
  const [names, setNames] = useState(new Map());
  const refresh = useLive(RUN_CHANGES, async (isOver) => {
    try {
      const [page] = await Promise.all([get("/triggers", { limit: 50, cursor }), readClock()]);
      if (isOver()) return;
      setState({ list: page.data, next: page.next });
      if (page.data.some((trigger) => !names.has(trigger.workflow_id))) {
        setNames(new Map((await all("/workflows")).map((workflow) => [workflow.id, workflow.name])));
      }
    } catch (error) {
      if (!isOver()) setState((before) => ({ ...before, error }));
    }
  }, [cursor], 5_000);
  return html`
    <div class="bar-top"><h1>Triggers</h1></div>
    <${Problem} error=${error} />
    ${!list && !error && html`<${Skeleton} />`}
    ${list?.length === 0 && html`
      <div class="empty"><h2>No schedules or webhooks</h2>
        <p>A workflow with <code>trigger: cron</code> or <code>trigger: webhook</code> has its own trigger; create others with <code>POST /api/v1/triggers</code>.</p></div>`}
    ${list?.length > 0 && html`
      <div class="card flush">
        <table class="triggers">
          <thead><tr><th>Name</th><th>Workflow</th><th>When</th><th>Next</th><th>Last run</th><th><span class="unseen">Actions</span></th></tr></thead>
          <tbody>${list.map((trigger) => html`<${Row} key=${trigger.id} trigger=${trigger} workflow=${names.get(trigger.workflow_id)} refresh=${refresh} />`)}</tbody>
        </table>
      </div>`}
    ${(cursor || next) && html`
      <nav class="pages" aria-label="Pages">
        ${cursor && html`<a class="button" href=${link(["triggers"])}>Newest</a>`}
        ${next && html`<a class="button" href=${link(["triggers"], { cursor: next })}>Older</a>`}
      </nav>`}`;
}

function Row({ trigger, workflow, refresh }) {
  const path = `/triggers/${encodeURIComponent(trigger.id)}`;
  const turn = async () => {
    await post(`${path}/${trigger.enabled ? "disable" : "enable"}`);
    refresh();
  };
  const run = async () => go(link(["runs", (await post(`${path}/run`)).data.run_id]));
  return html`
    <tr data-trigger=${trigger.id}>
      <td class="who">${trigger.name}<small>${words(trigger.type)}${trigger.note ? ` · ${trigger.note}` : ""}</small></td>
      <td class="of"><a href=${link(["workflows", trigger.workflow_id])}>${workflow ?? trigger.workflow_id}</a></td>
      <td class="when">${trigger.webhook_url
        ? html`<code>${trigger.webhook_url}</code> <${Copy} text=${trigger.webhook_url} />`
        : html`<code>${trigger.config?.cron ?? ""}</code> <small>${trigger.config?.timezone ?? ""}</small>`}</td>
      <td>${trigger.enabled ? html`<${When} at=${trigger.next_at} />` : html`<span class="tag">disabled</span>`}</td>
      <td>${trigger.last_run_id
        ? html`<a href=${link(["runs", trigger.last_run_id])}><${When} at=${trigger.last_run_at} /></a>`
        : html`<span class="muted">never</span>`}</td>
      <td class="acts"><${Action} act=${run}>Run<//> <${Action} act=${turn}>${trigger.enabled ? "Disable" : "Enable"}<//></td>
    </tr>`;
}
