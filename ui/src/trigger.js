// Starts a run: a dialog for the JSON that becomes `trigger.body`.

import { post } from "./api.js";
import { html, useMemo, useState } from "./html.js";
import { JsonBox } from "./parts.js";
import { go, link } from "./route.js";

export function TriggerButton({ workflow, kind = "", label = "Trigger", input = "{\n  \n}" }) {
  const [is_open, setOpen] = useState(false);
  const why = workflow.enabled === false ? "This workflow is disabled" : undefined;
  return html`
    <button type="button" class=${kind} disabled=${Boolean(why)} title=${why} onClick=${() => setOpen(true)}>${label}</button>
    ${is_open && html`<${TriggerBox} workflow=${workflow} input=${input} onClose=${() => setOpen(false)} />`}`;
}

function TriggerBox({ workflow, input, onClose }) {
  // One idempotency key per text: a double click, or a repeat after a lost response, starts one run.
  const keys = useMemo(() => new Map(), []);
  const send = async (body) => {
    if (!keys.has(body)) keys.set(body, randomKey());
    const { data } = await post(`/workflows/${encodeURIComponent(workflow.id)}/trigger`, body, { "idempotency-key": keys.get(body) });
    go(link(["runs", data.run_id]));
  };
  return html`<${JsonBox} title=${`Trigger ${workflow.name}`} label="Input, as JSON" text=${input} verb="Start run" send=${send} onClose=${onClose} />`;
}

const randomKey = () => `page-${[...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
