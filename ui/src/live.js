// Live updates. A stream only says *that* something changed; the view then loads the data from the API again, so
// there is no second copy of the rules. If the stream is refused (a proxy, a limit), the view polls every two seconds
// instead. A hidden tab sends no requests and holds no connection.

import { listen } from "./api.js";
import { signal, useEffect, useRef } from "./html.js";

/** `live`, `polling`, `offline`, or `idle` when nothing shown can change. */
export const connection = signal("idle");

/** The events that change a row in a list of runs. */
export const RUN_CHANGES = "/events/stream?type=run.created,run.waiting,run.resumed,run.completed,run.failed,run.cancelled,run.timeout";

const POLL = 2_000;
const STREAM_AGAIN = 60_000;
const GAP = 250;

/**
 * Calls `load` at once, and again on each event of `stream` or when a key changes; never twice at a time. After a slow
 * response it loads less often. `stream` is null when nothing can change any more. `every` also loads after that many
 * milliseconds, for changes that are on no stream, such as a new workflow.
 */
export function useLive(stream, load, keys, every = 0) {
  const current = useRef(load);
  current.current = load;
  const ring = useRef(() => {});

  useEffect(() => {
    let [is_over, is_busy, is_wanted, timer] = [false, false, false, 0];
    const run = async () => {
      if (is_over || is_busy) return void (is_wanted = true);
      [is_busy, is_wanted] = [true, false];
      const began = performance.now();
      await current.current(() => is_over);
      timer = setTimeout(() => {
        is_busy = false;
        if (is_wanted) run();
      }, Math.max(GAP, 2 * (performance.now() - began)));
    };
    ring.current = run;
    run();
    return () => {
      is_over = true;
      clearTimeout(timer);
    };
  }, keys);

  useEffect(() => {
    if (!stream) return void (connection.value = "idle");
    return follow(stream, () => ring.current());
  }, [stream, ...keys]);

  useEffect(() => {
    const timer = every && setInterval(() => document.hidden || ring.current(), every);
    return () => clearInterval(timer);
  }, [every]);

  return () => ring.current();
}

/** Calls `ring` on each event of the stream, until the returned function is called. */
function follow(path, ring) {
  let leave, poll, again;
  const close = () => {
    leave?.();
    clearInterval(poll);
    clearTimeout(again);
  };
  const open = () => {
    close();
    if (document.hidden) return;
    leave = listen(path, {
      opened: () => {
        connection.value = "live";
        ring();
      },
      said: ring,
      ended: ring,
      failed: (is_tried_again) => {
        if (is_tried_again) return void (connection.value = "offline");
        connection.value = "polling";
        poll = setInterval(ring, POLL);
        again = setTimeout(open, STREAM_AGAIN);
      },
    });
  };
  open();
  document.addEventListener("visibilitychange", open);
  return () => {
    document.removeEventListener("visibilitychange", open);
    close();
  };
}
