// Formats times and durations. Relative times use the server's clock: a virtual clock is ahead of the browser's, and
// "3 minutes ago" refers to the clock that wrote the event.

import { get } from "./api.js";
import { html, signal } from "./html.js";

/** The server's time in milliseconds, updated once a second. */
export const now = signal(Date.now());
/** `null`, or how many milliseconds a virtual clock is ahead. */
export const ahead = signal(null);

setInterval(() => document.hidden || tick(), 1000);
addEventListener("visibilitychange", tick);

function tick() {
  now.value = Date.now() + (ahead.value ?? 0);
}

/** Asks which clock the server has; a real clock stays real. */
let is_real = false;
export async function readClock() {
  if (is_real) return;
  try {
    const { data } = await get("/dev/clock");
    is_real = data.clock !== "virtual";
    ahead.value = is_real ? null : Date.parse(data.now) - Date.now();
  } catch (error) {
    is_real = error.status === 404;
  }
  tick();
}

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000]];

/** `850 ms`, `4.2 s`, `3 m 20 s`, `13 d 4 h`. */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 999.5) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  const whole = Math.round(ms / 1000) * 1000;
  const first = UNITS.findIndex(([, size]) => whole >= size);
  const [unit, size] = UNITS[first];
  const rest = UNITS[first + 1];
  const second = rest ? Math.floor((whole % size) / rest[1]) : 0;
  return `${Math.floor(whole / size)} ${unit}${second ? ` ${second} ${rest[0]}` : ""}`;
}

/** `just now`, `3 m ago`, `in 2 h 10 m`. */
export function relative(ms, from) {
  const apart = from - ms;
  if (Math.abs(apart) < 2_000) return "just now";
  const [unit, size] = UNITS.find(([, size]) => Math.abs(apart) >= size) ?? UNITS[3];
  const amount = `${Math.floor(Math.abs(apart) / size)} ${unit}`;
  return apart > 0 ? `${amount} ago` : `in ${span(-apart)}`;
}

export const absolute = (iso) => `${new Date(iso).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" })}\n${iso}`;

export function When({ at }) {
  if (!at) return html`<span class="muted">–</span>`;
  return html`<time datetime=${at} title=${absolute(at)}>${relative(Date.parse(at), now.value)}</time>`;
}

/** The duration of a finished run or step, or its duration so far. */
export function Lasting({ from, to }) {
  if (!from) return html`<span class="muted">–</span>`;
  return html`<span class="number">${span((to ? Date.parse(to) : Math.max(now.value, Date.parse(from))) - Date.parse(from))}</span>`;
}
