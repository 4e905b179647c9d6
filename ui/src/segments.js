// Converts the events of a run into timeline bars: one per attempt, and one per gap between attempts.
//
//   queued → running → backoff → running → …      sleeping      waiting
//
// Pure: events in, bars out. A bar that has not ended ends at `now`.

const ENDS = new Set(["step.succeeded", "step.received", "step.failed", "step.timeout", "step.skipped", "step.cancelled"]);
const OPENS = new Map([
  ["step.scheduled", "queued"], ["step.leased", "running"], ["step.started", "running"],
  ["step.retrying", "backoff"], ["timer.set", "sleeping"], ["wait.opened", "waiting"], ["approval.requested", "waiting"], ["child.started", "waiting"],
]);
const OUTCOMES = new Map([["step.failed", "bad"], ["step.retrying", "bad"], ["step.timeout", "bad"], ["step.cancelled", "off"]]);

/**
 * @returns {Map<string, {kind: string, outcome: string, attempt?: number, from: number, to: number, is_open: boolean,
 *                        error?: {code: string, message: string}}[]>} bars of each step, in milliseconds
 */
export function segments(events, now) {
  const bars = new Map();
  for (const event of events) {
    if (!event.step || !(ENDS.has(event.type) || OPENS.has(event.type))) continue;
    if (!bars.has(event.step)) bars.set(event.step, []);
    const list = bars.get(event.step);
    const at = Date.parse(event.at);
    const last = list.at(-1);
    const kind = OPENS.get(event.type);
    if (last?.is_open) {
      // A manual retry moves the end of the same backoff.
      if (kind === "backoff" && last.kind === "backoff") continue;
      Object.assign(last, { to: at, is_open: false, outcome: outcome(last.kind, event) });
      if (event.data?.error && last.kind !== "backoff") last.error = event.data.error;
    } else if (!kind && event.type !== "step.skipped" && event.type !== "step.cancelled") {
      // Started and finished in the same record (`set`, `noop`): a bar of zero length.
      const error = event.data?.error;
      list.push({ kind: "running", outcome: OUTCOMES.get(event.type) ?? "good", attempt: event.attempt, from: at, to: at, is_open: false, error });
    }
    if (kind) list.push({ kind, outcome: "open", attempt: event.attempt, from: at, to: Math.max(at, now), is_open: true });
  }
  return bars;
}

const outcome = (kind, event) => (kind === "queued" || kind === "backoff" ? "open" : OUTCOMES.get(event.type) ?? "good");

/** About `count` round tick marks for an axis of `length` milliseconds. */
export function ticks(length, count = 5) {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500]
    .concat([1, 2, 5, 10, 15, 30].map((s) => s * 1e3), [1, 2, 5, 10, 15, 30].map((m) => m * 6e4))
    .concat([1, 2, 3, 6, 12].map((h) => h * 36e5), [1, 2, 5, 7, 14, 30, 60, 120, 365].map((d) => d * 864e5));
  const step = steps.find((step) => length / step <= count) ?? length / count;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, i) => i * step);
}
