// The public API, from the browser. Paths are relative to the page, so it also works below a prefix.

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

export const streamUrl = (path) => BASE + path;

async function send(method, url, body, more = {}) {
  let response;
  try {
    const type = body === undefined ? {} : { "content-type": "application/json" };
    // A question that got lost (a laptop that slept) must not hold up the next one; an order is waited for.
    const signal = method === "GET" ? AbortSignal.timeout(30_000) : undefined;
    response = await fetch(url, { signal, method, headers: { accept: "application/json", ...type, ...more }, body, cache: "no-store" });
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
