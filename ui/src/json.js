// Shows a JSON value: indented, coloured, with a copy button. Tokens become text nodes in spans.

import { html, useMemo } from "./html.js";
import { Copy } from "./parts.js";

/** Colouring creates one element per token; longer texts are shown plain, which is faster. */
const COLOURED_MAX = 40_000;

export const pretty = (value) => JSON.stringify(value, null, 2) ?? "null";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d[\d.eE+-]*/g;

/** Splits the text into pieces, each with a class or none; joined they are the text. */
export function tokens(text) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > end) pieces.push([null, text.slice(end, match.index)]);
    const [whole, string, colon] = match;
    if (string && colon) pieces.push(["key", string], [null, colon]);
    else pieces.push([string ? "string" : "literal", whole]);
    end = match.index + whole.length;
  }
  pieces.push([null, text.slice(end)]);
  return pieces;
}

export function Json({ value, label }) {
  const text = useMemo(() => pretty(value), [value]);
  const shown = text.length > COLOURED_MAX ? text : tokens(text).map(([kind, piece]) =>
    kind ? html`<span class=${`json-${kind}`}>${piece}</span>` : piece);
  return html`<div class="code"><pre tabindex="0" aria-label=${label}>${shown}</pre><${Copy} text=${text} /></div>`;
}
