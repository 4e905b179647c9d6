// The route: the part of the URL after `#`, as path segments and parameters.
//
//   #/runs?status=failed      #/runs/run_…?step=charge      #/workflows/order-processing

import { signal } from "./html.js";

export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?");
  const segments = path.split("/").filter(Boolean).map(decode);
  return { segments: segments.length ? segments : ["runs"], parameters: Object.fromEntries(new URLSearchParams(search)) };
}

export function link(segments, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${segments.map(encodeURIComponent).join("/")}${search}`;
}

export const route = signal(parse(location.hash));
addEventListener("hashchange", () => (route.value = parse(location.hash)));

export const go = (hash) => (location.hash = hash);

/** Changes the URL without a new history entry, for example when a step is selected. */
export function replace(hash) {
  history.replaceState(null, "", hash);
  route.value = parse(hash);
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
