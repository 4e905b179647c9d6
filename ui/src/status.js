// The statuses of runs and steps: a colour and an icon each. The icon carries the same information as the colour,
// for users who cannot see colours.

import { html } from "./html.js";

const TONES = {
  pending: "idle", queued: "idle",
  running: "active", compensating: "active", cancelling: "active",
  waiting: "wait", sleeping: "wait", paused: "wait",
  retrying: "retry",
  completed: "good", success: "good", received: "good",
  failed: "bad", timeout: "bad", template_error: "bad",
  cancelled: "off", skipped: "off",
};

export const RUN_FILTERS = [
  ["", "All"],
  ["running,pending,compensating,cancelling", "Running"],
  ["waiting", "Waiting"],
  ["completed", "Completed"],
  ["failed,timeout", "Failed"],
  ["cancelled", "Cancelled"],
];

const TERMINAL = ["completed", "failed", "cancelled", "timeout"];

export const tone = (status) => (Object.hasOwn(TONES, status) ? TONES[status] : "idle");
export const isTerminal = (status) => TERMINAL.includes(status);
export const words = (status) => String(status).replaceAll("_", " ");

const SIGNS = {
  good: "M3.5 8.5 6.5 11.5 12.5 5",
  bad: "M4.5 4.5 11.5 11.5M11.5 4.5 4.5 11.5",
  active: "M5.5 4 11.5 8 5.5 12Z",
  wait: "M8 4.5V8L10.5 9.5M8 2A6 6 0 1 1 7.99 2Z",
  retry: "M12.5 8A4.5 4.5 0 1 1 10.8 4.5M12.8 2.5V5.5H9.8",
  off: "M4 8H12",
  idle: "M8 5A3 3 0 1 1 7.99 5Z",
};

export const Sign = ({ status }) =>
  html`<svg class=${`sign tone-${tone(status)}`} viewBox="0 0 16 16" aria-hidden="true"><path d=${SIGNS[tone(status)]} /></svg>`;

export const Status = ({ status }) =>
  html`<span class=${`status tone-${tone(status)}`} data-status=${status}><${Sign} status=${status} />${words(status)}</span>`;
