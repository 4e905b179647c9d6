// The kinds of steps: a label and an icon each. The API names the kind of every step, in plans and in runs.

import { html } from "./html.js";
import { words } from "./status.js";

const KINDS = {
  http: ["HTTP", "M8 2A6 6 0 1 1 7.99 2ZM2.3 8H13.7M8 2C5.6 4.6 5.6 11.4 8 14C10.4 11.4 10.4 4.6 8 2"],
  task: ["task", "M3 3.5H13V12.5H3ZM5.4 8.2 7.2 10 10.6 6.2"],
  sleep: ["sleep", "M13 9.8A5.4 5.4 0 1 1 6.2 3A4.3 4.3 0 0 0 13 9.8Z"],
  wait_for_webhook: ["wait for webhook", "M8 2.5V9.5M5 6.7 8 9.7 11 6.7M2.8 10V13.2H13.2V10"],
  set: ["set", "M6 2.8C3.6 2.8 5.4 6.8 3 8C5.4 9.2 3.6 13.2 6 13.2M10 2.8C12.4 2.8 10.6 6.8 13 8C10.6 9.2 12.4 13.2 10 13.2"],
  log: ["log", "M3 4.5H13M3 8H13M3 11.5H9"],
  group: ["group", "M2.8 4.5V2.8H4.5M11.5 2.8H13.2V4.5M13.2 11.5V13.2H11.5M4.5 13.2H2.8V11.5M5.5 5.5H10.5V10.5H5.5Z"],
  loop: ["loop", "M12.8 7.2A5 5 0 1 0 12.2 10.6M13.2 3.6V7.4H9.4"],
  conditional: ["conditional", "M8 2.5V6L4 10V13.5M8 6 12 10V13.5M5.8 4.2 8 2 10.2 4.2"],
  parallel: ["parallel", "M8 2.5V5M3.5 13.5V7.5H12.5V13.5M8 5V13.5"],
  bash: ["bash", "M3 4.5 6.5 8 3 11.5M8 11.5H13"],
  tool: ["tool", "M10.2 3A3.2 3.2 0 0 0 7.4 7.4L3 11.8 4.2 13 8.6 8.6A3.2 3.2 0 0 0 13 5.8L11 7 9 5Z"],
  agent: ["agent", "M4 6H12V12.5H4ZM8 6V3M6.3 8.6V9.8M9.7 8.6V9.8"],
  agent_message: ["agent message", "M3 3.5H13V10.5H8L5 13V10.5H3Z"],
  subworkflow: ["subworkflow", "M3 3H8V7H3ZM8 9H13V13H8ZM5.5 7V11H8"],
  wait_for_signal: ["wait for signal", "M8 8.6A.6 .6 0 1 0 8 7.4A.6 .6 0 1 0 8 8.6M5.2 10.8A4 4 0 0 1 5.2 5.2M10.8 5.2A4 4 0 0 1 10.8 10.8M3.2 12.8A6.8 6.8 0 0 1 3.2 3.2M12.8 3.2A6.8 6.8 0 0 1 12.8 12.8"],
  approval: ["approval", "M8 2.2 13 4V8C13 11 10.8 13 8 13.8C5.2 13 3 11 3 8V4ZM5.8 8 7.4 9.6 10.4 6.4"],
  pause: ["pause", "M5.5 3.5V12.5M10.5 3.5V12.5"],
  noop: ["no-op", "M4.5 8H11.5"],
};
const OTHER = "M3.5 3.5H12.5V12.5H3.5Z";

const known = (kind) => (Object.hasOwn(KINDS, kind) ? KINDS[kind] : [words(kind), OTHER]);

export const kindLabel = (kind) => known(kind)[0];

export const KindIcon = ({ kind }) => html`<svg class="kind" viewBox="0 0 16 16" aria-hidden="true"><path d=${known(kind)[1]} /></svg>`;
