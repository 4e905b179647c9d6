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
  noop: ["no-op", "M4.5 8H11.5"],
};
const OTHER = "M3.5 3.5H12.5V12.5H3.5Z";

const known = (kind) => (Object.hasOwn(KINDS, kind) ? KINDS[kind] : [words(kind), OTHER]);

export const kindLabel = (kind) => known(kind)[0];

export const KindIcon = ({ kind }) => html`<svg class="kind" viewBox="0 0 16 16" aria-hidden="true"><path d=${known(kind)[1]} /></svg>`;
