// The only module that imports the libraries. Template values become text or attributes, never markup: names,
// bodies and errors are untrusted, and nothing here can turn them into HTML.

import { h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render };
export { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export { effect, signal } from "../vendor/signals.js";
export const html = htm.bind(h);
