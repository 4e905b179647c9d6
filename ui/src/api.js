// The public API, from the browser. Paths are relative to the page, so it also works below a prefix.

import { credentials, refused } from "./key.js";

const BASE = "api/v1";

/** A refusal, as the server said it. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.message);
    Object.assign(this, { status, code: problem.code, hint: problem.hint, at: problem.at, problems: problem.problems });
  }
}

/** `{data, next}` of a GET below /api/v1. */
export const get = (path, parameters) => send("GET", BASE + path + query(parameters));

/** `{data}` of a POST below /api/v1. `body` is JSON as text, sent as it was typed. */
export const post = (path, body, headers) => send("POST", BASE + path, body, headers);

/** An absolute path the server gave, such as a next action's. */
export const call = (method, path, body) => send(method, path.replace(/^\/+/, ""), body);

/**
 * Tells that something was said on a stream (`said`), that it opened, that it ended, or that it failed, `again` if it
 * is going to be tried again. Answers a function that closes it. With a key it is read by hand: an `EventSource` sends none.
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
    // A question that got lost (a laptop that slept) must not hold up the next one; an order is waited for.
    const signal = method === "GET" ? AbortSignal.timeout(30_000) : undefined;
    response = await fetch(url, { signal, method, headers: { accept: "application/json", ...credentials(), ...type, ...more }, body, cache: "no-store" });
  } catch {
    throw new ApiError(0, { code: "unreachable", message: "the server cannot be reached" });
  }
  const text = await response.text();
  let value = {};
  try {
    value = text ? parse(text) : {};
  } catch {
    if (response.ok) throw new ApiError(response.status, { code: "unreadable", message: "the answer is not JSON" });
  }
  if (response.status === 401 && value.error?.code?.startsWith("key_")) refused.value = value.error;
  if (!response.ok) {
    throw new ApiError(response.status, value.error ?? { code: `http_${response.status}`, message: response.statusText });
  }
  return value;
}

/** Numbers a double cannot hold (an id of 20 digits) are shown as they were sent, where the browser can. */
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

/** Every item of a list, page by page, up to a bound. */
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
