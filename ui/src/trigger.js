// Starts a run: a dialog for the JSON that becomes `trigger.body`.

import { get, post } from "./api.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { exampleInput } from "./input.js";
import { pretty } from "./json.js";
import { JsonBox } from "./parts.js";
import { go, link } from "./route.js";

/** Without an `input`, the dialog proposes an example with the fields that the workflow reads. */
export function TriggerButton({ workflow, kind = "", label = "Trigger", input }) {
  const [is_open, setOpen] = useState(false);
  const why = workflow.enabled === false ? "This workflow is disabled" : undefined;
  const Box = input === undefined ? ExampleBox : TriggerBox;
  return html`
    <button type="button" class=${kind} disabled=${Boolean(why)} title=${why} onClick=${() => setOpen(true)}>${label}</button>
    ${is_open && html`<${Box} workflow=${workflow} input=${input} onClose=${() => setOpen(false)} />`}`;
}

function ExampleBox({ workflow, onClose }) {
  const input = useExampleInput(workflow);
  return input !== undefined && html`<${TriggerBox} workflow=${workflow} input=${input} onClose=${onClose} />`;
}

function TriggerBox({ workflow, input, onClose }) {
  // One idempotency key per text: a double click, or a repeat after a lost response, starts one run.
  const keys = useMemo(() => new Map(), []);
  const send = async (body) => {
    if (!keys.has(body)) keys.set(body, randomKey());
    const { data } = await post(`/workflows/${encodeURIComponent(workflow.id)}/trigger`, body, { "idempotency-key": keys.get(body) });
    go(link(["runs", data.run_id]));
  };
  return html`<${JsonBox} title=${`Trigger ${workflow.name}`} label="Input, as JSON" text=${pretty(input)} verb="Start run" send=${send} onClose=${onClose} />`;
}

/** An example input for the workflow, or undefined until its definition is loaded; lists come without definitions. */
export function useExampleInput({ id, definition: given }) {
  const [definition, setDefinition] = useState(given);
  useEffect(() => {
    if (definition) return;
    get(`/workflows/${encodeURIComponent(id)}`).then(({ data }) => setDefinition(data.definition), () => setDefinition({}));
  }, []);
  return useMemo(() => definition && exampleInput(definition), [definition]);
}

const randomKey = () => `page-${[...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
