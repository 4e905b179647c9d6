// Contrast of text with its background, as WCAG 2 defines it. 4.5 is its minimum for text of normal size.

import assert from "node:assert/strict";

export const CONTRAST_MIN = 4.5;

/** `#rgb`, `#rrggbb`, `rgb(…)` or `rgba(…)` as red, green, blue (0 to 255) and alpha (0 to 1). */
export function channels(colour) {
  const hex = colour.match(/^#([\da-f]{3}|[\da-f]{6})$/i)?.[1];
  if (hex) return [...hex.match(hex.length === 3 ? /./g : /../g).map((part) => parseInt(part.padStart(2, part), 16)), 1];
  const numbers = colour.match(/^rgba?\(([^)]+)\)$/)?.[1].split(/[\s,/]+/).map(Number);
  assert.ok(numbers?.length >= 3 && !numbers.some(Number.isNaN), `unexpected colour ${colour}`);
  return [...numbers.slice(0, 3), numbers[3] ?? 1];
}

/** `top` drawn over `bottom`. */
function over(top, bottom) {
  const [alpha] = top.slice(3);
  return [...top.slice(0, 3).map((value, i) => value * alpha + bottom[i] * (1 - alpha)), 1];
}

export function contrast(text, ground) {
  const [lighter, darker] = [over(channels(text), channels(ground)), channels(ground)].map(luminance).sort((a, b) => b - a);
  return (lighter + 0.05) / (darker + 0.05);
}

function luminance(colour) {
  const [red, green, blue] = colour.slice(0, 3).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Every text that a user can see in the viewport has enough contrast. Disabled controls are exempt, as in WCAG. */
export async function assertLegible(page, name) {
  const texts = await page.evaluate(visibleTexts);
  assert.ok(texts.length > 3, `${name}: only ${texts.length} texts found`);
  const faint = new Set();
  for (const { text, place, colour, opacity, layers } of texts) {
    const ground = layers.map(channels).reduceRight((below, layer) => over(layer, below), [255, 255, 255, 1]);
    const found = contrast(colour, `rgb(${ground.slice(0, 3).join(" ")})`);
    if (opacity < 1) faint.add(`${place} "${text}" has an opacity of ${opacity}`);
    else if (found < CONTRAST_MIN) faint.add(`${place} "${text}": ${colour} on ${layers.join(" on ")} is ${found.toFixed(2)}`);
  }
  assert.deepEqual([...faint], [], name);
}

/** Runs in the browser: each text with its colour and the backgrounds below it, topmost first. */
function visibleTexts() {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest(":disabled, .unseen")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const { x, y, width, height } = range.getBoundingClientRect();
    const stack = document.elementsFromPoint(x + Math.min(width, element.clientWidth || width) / 2, y + height / 2);
    const own = stack.indexOf(element);
    if (own < 0) continue; // scrolled out of sight, or behind a dialog
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    if (opacity === 0) continue;
    const paint = (layer) => (layer instanceof SVGGeometryElement ? getComputedStyle(layer).fill : getComputedStyle(layer).backgroundColor);
    const layers = stack.slice(own).map(paint).filter((colour) => colour !== "none" && colour !== "rgba(0, 0, 0, 0)");
    const place = `${element.localName}.${element.getAttribute("class") ?? ""} in .${element.parentElement.getAttribute("class") ?? ""}`;
    found.push({ text: node.data.trim().slice(0, 40), place, colour: getComputedStyle(element).color, opacity, layers });
  }
  return found;
}
