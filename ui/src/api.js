// The public API, called from the browser. Paths are relative, so the dashboard also works below a path prefix.

import { credentials, refuse } from "./key.js";

const BASE = "api/v1";

/** An error response of the server. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.message);
    Object.assign(this, { status, code: problem.code, hint: problem.hint, at: problem.at, problems: problem.problems });
  }
}

/** Whether the server says that the thing at this address does not exist, so that asking again is pointless. */
export const isMissing = (error) => error?.status === 400 || error?.status === 404;

/** Sends a GET below /api/v1 and returns `{data, next}`. */
export const get = (path, parameters) => send("GET", BASE + path + query(parameters));

/** Sends a POST below /api/v1 and returns `{data}`. `body` is JSON text, sent unchanged. */
export const post = (path, body, headers) => send("POST", BASE + path, body, headers);

/** Calls an absolute path that the server returned, such as that of a next action. */
export const call = (method, path, body) => send(method, path.replace(/^\/+/, ""), body);

/**
 * Follows an event stream and calls `opened`, `said` (for each event), `ended` or `failed` (with `true` if it reconnects).
 * Returns a function that closes the stream. With a key it uses `fetch`, because an `EventSource` cannot send headers.
 */
export function listen(path, { opened, said, ended, failed }) {
  const headers = credentials();
  if (headers.authorization) return listenByHand(BASE + path, headers, { opened, said, ended, failed });
  const source = new EventSource(BASE + path);
  source.onopen = opened;
  source.onmessage = said;
  source.addEventListener("end", () => {
    source.close();
    ended();
  });
  source.onerror = () => failed(source.readyState === EventSource.CONNECTING);
  return () => source.close();
}

const AGAIN = 2_000;

function listenByHand(url, headers, { opened, said, ended, failed }) {
  const closing = new AbortController();
  let timer;
  const connect = async () => {
    try {
      const accept = { accept: "text/event-stream", ...headers };
      const response = await fetch(url, { headers: accept, signal: closing.signal, cache: "no-store" });
      if (!response.ok) return failed(false);
      opened();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = "", part; !(part = await reader.read()).done; ) {
        const blocks = (text + part.value).split("\n\n");
        text = blocks.pop();
        for (const lines of blocks.map((block) => block.split("\n"))) {
          if (lines.includes("event: end")) return ended();
          if (lines.some((line) => line.startsWith("data:"))) said();
        }
      }
    } catch {
      if (closing.signal.aborted) return;
    }
    failed(true);
    timer = setTimeout(connect, AGAIN);
  };
  connect();
  return () => {
    clearTimeout(timer);
    closing.abort();
  };
}

async function send(method, url, body, more = {}) {
  let response;
  try {
    const type = body === undefined ? {} : { "content-type": "application/json" };
    // A GET that got lost (the laptop slept) must not block the next one; requests that change something have no timeout.
    const signal = method === "GET" ? AbortSignal.timeout(30_000) : undefined;
    response = await fetch(url, { signal, method, headers: { accept: "application/json", ...credentials(), ...type, ...more }, body, cache: "no-store" });
  } catch {
    throw new ApiError(0, { code: "unreachable", message: "the server is unreachable" });
  }
  const text = await response.text();
  let value = {};
  try {
    value = text ? parse(text) : {};
  } catch {
    if (response.ok) throw new ApiError(response.status, { code: "unreadable", message: "the response is not JSON" });
  }
  if (response.status === 401 && value.error?.code?.startsWith("key_")) refuse(value.error);
  if (!response.ok) {
    throw new ApiError(response.status, value.error ?? { code: `http_${response.status}`, message: response.statusText });
  }
  return value;
}

/** Keeps numbers that a double cannot hold (an id of 20 digits) as they were sent, if the browser supports it. */
export function parse(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context?.source && JSON.rawJSON && String(value) !== context.source
      ? JSON.rawJSON(context.source)
      : value);
}

function query(parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** All items of a list, fetched page by page, up to a bound. */
export async function all(path, bound = 2000) {
  const items = [];
  let cursor;
  do {
    const page = await get(path, { limit: 500, cursor });
    items.push(...page.data);
    cursor = page.next;
  } while (cursor && items.length < bound);
  return items;
}
