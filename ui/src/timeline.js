// The timeline: a row per step, a bar per attempt, with separate bars for queueing, backoff and waits.

import { html, useMemo } from "./html.js";
import { segments, ticks } from "./segments.js";
import { Sign, tone, words } from "./status.js";
import { now, span } from "./time.js";

const KINDS = { queued: "in the queue", running: "running", backoff: "waiting to try again", sleeping: "sleeping", waiting: "waiting" };

export function Timeline({ run, nodes, steps, events, chosen, link }) {
  const begin = Date.parse(run.started_at);
  const is_open = !run.finished_at;
  const end = run.finished_at ? Date.parse(run.finished_at) : Math.max(now.value, begin + 1000);
  const length = Math.max(1, end - begin);
  const bars = useMemo(() => segments(events, end), [events, is_open ? end : 0]);
  const percent = (ms) => Math.min(100, Math.max(0, (ms / length) * 100));
  const marks = ticks(length, 6);

  return html`
    <div class="timeline">
      <div class="row axis" aria-hidden="true">
        <span />
        <div class="track">${marks.map((ms) => html`<span class="mark" style=${{ left: `${percent(ms)}%` }}>${ms ? span(ms) : "0"}</span>`)}</div>
      </div>
      ${nodes.map(({ step: name }) => {
        const status = steps.get(name)?.status ?? "pending";
        const list = bars.get(name) ?? [];
        return html`
          <a key=${name} class="row" href=${link(name)} aria-current=${name === chosen ? "true" : undefined}>
            <span class="name"><${Sign} status=${status} /><b>${name}</b></span>
            <div class="track">
              ${marks.map((ms) => html`<i class="rule" style=${{ left: `${percent(ms)}%` }} />`)}
              ${list.map((bar) => html`<${Bar} bar=${bar} left=${percent(bar.from - begin)} width=${percent(bar.to - bar.from)} />`)}
              ${!list.length && html`<span class="none">${words(status)}</span>`}
            </div>
          </a>`;
      })}
    </div>`;
}

function Bar({ bar, left, width }) {
  const attempt = bar.attempt && bar.kind === "running" ? `attempt ${bar.attempt}, ` : "";
  const title = `${attempt}${KINDS[bar.kind]}: ${span(bar.to - bar.from)}${bar.error ? `\n${bar.error.code}: ${bar.error.message}` : ""}`;
  const colour = bar.kind === "running" && bar.is_open ? tone("running") : bar.outcome;
  return html`<span class=${`bar ${bar.kind} ${colour}`} title=${title} style=${{ left: `${left}%`, width: `${width}%` }} />`;
}
