// The one place that knows the libraries. Everything a template is given becomes text or an attribute,
// never markup: names, bodies and errors come from strangers, and nothing here can make HTML of them.

import { h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render };
export { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export { effect, signal } from "../vendor/signals.js";
export const html = htm.bind(h);
