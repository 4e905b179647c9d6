// Starting a run by hand: a box for the JSON that becomes `trigger.body`.

import { parse, post } from "./api.js";
import { html, useMemo, useState } from "./html.js";
import { Dialog, Problem } from "./parts.js";
import { go, link } from "./route.js";

export function TriggerButton({ workflow, kind = "", label = "Trigger", input = "{\n  \n}" }) {
  const [is_open, setOpen] = useState(false);
  const why = workflow.enabled === false ? "This workflow is disabled" : undefined;
  return html`
    <button type="button" class=${kind} disabled=${Boolean(why)} title=${why} onClick=${() => setOpen(true)}>${label}</button>
    ${is_open && html`<${TriggerDialog} workflow=${workflow} input=${input} onClose=${() => setOpen(false)} />`}`;
}

function TriggerDialog({ workflow, input, onClose }) {
  const [text, setText] = useState(input);
  const [error, setError] = useState(null);
  const [is_busy, setBusy] = useState(false);
  // A key for each text: pressing twice, or again after a lost answer, starts one run.
  const key = useMemo(randomKey, [text]);
  const start = async (event) => {
    event.preventDefault();
    try {
      if (text.trim()) parse(text);
    } catch (problem) {
      return setError({ code: "not JSON", message: problem.message });
    }
    setBusy(true);
    try {
      const { data } = await post(`/workflows/${encodeURIComponent(workflow.id)}/trigger`, text.trim() || undefined, { "idempotency-key": key });
      onClose();
      go(link(["runs", data.run_id]));
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  const onKeyDown = (event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && start(event);
  return html`
    <${Dialog} title=${`Trigger ${workflow.name}`} onClose=${onClose}>
      <form onSubmit=${start}>
        <label>Input, as JSON
          <textarea rows="8" spellcheck="false" autofocus value=${text} onInput=${(e) => setText(e.target.value)} onKeyDown=${onKeyDown} />
        </label>
        <${Problem} error=${error} />
        <div class="buttons">
          <button type="button" onClick=${onClose}>Close</button>
          <button type="submit" class="primary" disabled=${is_busy}>Start run</button>
        </div>
      </form>
    <//>`;
}

const randomKey = () => `page-${[...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
