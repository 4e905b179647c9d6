// Tests without a browser: graph layout, timeline bars, JSON tokens, example input, contrast of the palette.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { exampleInput } from "../src/input.js";
import { tokens } from "../src/json.js";
import { layout } from "../src/layout.js";
import { segments, ticks } from "../src/segments.js";
import { CONTRAST_MIN, contrast } from "./contrast.js";

const SIZE = { along: 100, across: 40, gapAlong: 30, gapAcross: 10 };

/** `a>b b>c` as nodes and edges. */
function graph(text) {
  const edges = text.split(" ").filter((word) => word.includes(">")).map((word) => {
    const [from, to] = word.split(">");
    return { from, to };
  });
  return { names: [...new Set(text.split(/[ >]/))], edges };
}

/** Boxes do not overlap, nothing lies outside, and every line begins and ends at its boxes. */
function check({ names, edges }) {
  const drawn = layout(names, edges, SIZE);
  assert.deepEqual(layout(names, edges, SIZE), drawn, "the same every time");
  const boxes = names.map((name) => drawn.at.get(name));
  boxes.forEach((a, i) => {
    assert.ok(a.along >= 0 && a.along + SIZE.along <= drawn.along + 1e-6, names[i]);
    assert.ok(a.across >= -1e-6 && a.across + SIZE.across <= drawn.across + 1e-6, names[i]);
    boxes.slice(i + 1).forEach((b, j) => {
      const apart = a.along !== b.along || Math.abs(a.across - b.across) >= SIZE.across + SIZE.gapAcross - 1e-6;
      assert.ok(apart, `${names[i]} and ${names[i + 1 + j]} overlap`);
    });
  });
  for (const { from, to, points } of drawn.lines) {
    assert.equal(points[0].across, drawn.at.get(from).across + SIZE.across / 2);
    assert.equal(points.at(-1).across, drawn.at.get(to).across + SIZE.across / 2);
  }
  return drawn;
}

test("a chain is a straight line", () => {
  const drawn = check(graph("a>b b>c c>d"));
  assert.equal(new Set([...drawn.at.values()].map((p) => p.across)).size, 1);
});

test("a step stands after everything it needs, and long edges bend around boxes", () => {
  const drawn = check(graph("a>b b>c c>d a>d a>c x"));
  const rank = (name) => drawn.at.get(name).along / (SIZE.along + SIZE.gapAlong);
  assert.deepEqual(["a", "b", "c", "d", "x"].map(rank), [0, 1, 2, 3, 0]);
  assert.equal(drawn.lines.find((line) => line.to === "d" && line.from === "a").points.length, 6);
});

test("two pairs that could cross do not", () => {
  const drawn = check(graph("a>y b>x a b x y"));
  const across = (name) => drawn.at.get(name).across;
  assert.equal(across("a") < across("b"), across("y") < across("x"));
});

test("cycles, unknown names, self-loops and empty graphs are drawn without errors", () => {
  check(graph("a>b b>c c>a"));
  check({ names: ["a"], edges: [{ from: "a", to: "a" }, { from: "a", to: "ghost" }] });
  check({ names: ["__proto__", "constructor"], edges: [{ from: "__proto__", to: "constructor" }] });
  assert.deepEqual(layout([], [], SIZE), { along: 0, across: 0, at: new Map(), lines: [] });
});

test("random graphs keep the rules, and large ones are fast", () => {
  let seed = 7;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  for (let round = 0; round < 60; round++) {
    const names = Array.from({ length: 2 + random(25) }, (_, i) => `s${i}`);
    const edges = names.flatMap((to, i) => Array.from({ length: random(3) }, () => ({ from: names[random(i + 1)], to })));
    check({ names, edges });
  }
  const names = Array.from({ length: 1000 }, (_, i) => `s${i}`);
  const began = performance.now();
  layout(names, names.slice(1).map((to, i) => ({ from: names[Math.floor(i / 3)], to })), SIZE);
  layout(names, names.slice(1).map((to) => ({ from: "s0", to })), SIZE);
  layout(names, names.flatMap((to, i) => names.slice(Math.max(0, i - 30), i).map((from) => ({ from, to }))), SIZE);
  // A machine at rest needs a second or two; an algorithm that is quadratic in the edges needs minutes.
  assert.ok(performance.now() - began < 30_000, `${performance.now() - began} ms`);
});

const event = (at, type, step, attempt, data = {}) => ({ at: new Date(at).toISOString(), type, step, attempt, data });
const labels = (bars) => bars.map((bar) => `${bar.kind} ${bar.outcome} ${bar.from}-${bar.to}${bar.is_open ? "…" : ""}`);

test("events become bars: attempts, backoff, sleeps, waits and instant steps", () => {
  const error = { code: "network", message: "refused" };
  const bars = segments([
    event(0, "run.created"),
    event(0, "timer.set", "nap"),
    event(1, "step.scheduled", "call"), event(5, "step.started", "call", 1),
    event(9, "step.retrying", "call", 1, { error }), event(10, "step.retrying", "call", 1),
    event(20, "step.started", "call", 2), event(25, "step.succeeded", "call", 2),
    event(30, "step.succeeded", "nap"),
    event(30, "step.succeeded", "set", 1),
    event(31, "step.skipped", "unused"),
    event(32, "wait.opened", "door"), event(33, "step.started", "last", 1),
    event(40, "step.timeout", "door", undefined, { error }),
  ], 50);
  assert.deepEqual(labels(bars.get("call")), ["queued open 1-5", "running bad 5-9", "backoff open 9-20", "running good 20-25"]);
  assert.deepEqual(bars.get("call")[1].error, error);
  assert.deepEqual(labels(bars.get("nap")), ["sleeping good 0-30"]);
  assert.deepEqual(labels(bars.get("set")), ["running good 30-30"]);
  assert.deepEqual(labels(bars.get("unused")), []);
  assert.deepEqual(labels(bars.get("door")), ["waiting bad 32-40"]);
  assert.deepEqual(labels(bars.get("last")), ["running open 33-50…"]);
});

test("an axis has a few round tick marks at any scale", () => {
  for (const length of [1, 7, 90, 1500, 61_000, 7.2e6, 13 * 864e5, 4e12]) {
    const marks = ticks(length);
    assert.ok(marks.length >= 2 && marks.length <= 7, `${length}: ${marks}`);
    assert.ok(marks.at(-1) <= length);
  }
});

test("the pieces of a JSON text are that text", () => {
  for (const value of [null, { "a\"<b>": [1, -2.5e9, true, "x: \\ \" }"] }, "</script>", [], {}]) {
    const text = JSON.stringify(value, null, 2);
    assert.equal(tokens(text).map(([, piece]) => piece).join(""), text);
  }
  assert.deepEqual(tokens('{"k": "v", "n": -1}').filter(([kind]) => kind), [["key", '"k"'], ["string", '"v"'], ["key", '"n"'], ["literal", "-1"]]);
});

test("the example input has every field of `trigger.body` that a definition reads", () => {
  const read = (...texts) => exampleInput({ tasks: { a: { log: { message: texts } } } });
  assert.deepEqual(read("hello {{trigger.body.name}}"), { name: "example" });
  assert.deepEqual(read("{{ trigger.body.user.id }}", "{{trigger.body.user}} {{trigger.body.user.mail}}"), { user: { id: "example", mail: "example" } });
  assert.deepEqual(read("{{trigger.body.items[0].sku}}", "{{trigger.body.items[1]}}"), { items: [{ sku: "example" }, "example"] });
  assert.deepEqual(read("{{trigger.body}}", "{{tasks.trigger.body.x}}", "trigger.bodyguard.x"), {});
  assert.deepEqual(read("{{trigger.body.list[99999999]}}"), {});
  assert.equal(JSON.stringify(read("{{trigger.body.__proto__.x}} {{trigger.body.constructor}}")), '{"__proto__":{"x":"example"},"constructor":"example"}');
  assert.equal({}.x, undefined);
});

/** The colours of the style sheet by name, for the light and the dark theme. */
function palettes() {
  const css = readFileSync(new URL("../app.css", import.meta.url), "utf8");
  const [light, dark] = [...css.matchAll(/:root \{([^}]*)\}/g)].map(([, block]) =>
    Object.fromEntries([...block.matchAll(/--([\w-]+): (#[\da-f]+);/gi)].map(([, name, colour]) => [name, colour])));
  return { light, dark: { ...light, ...dark } };
}

test("every text colour has enough contrast on every background it is used on", () => {
  const tones = ["good", "bad", "active", "wait", "retry", "off", "idle"];
  const soft = [...tones, "accent"].map((tone) => `${tone}-soft`);
  const pairs = [
    ...["text", "muted", "accent", ...tones].flatMap((text) => ["ground", "face", "sunk"].map((ground) => [text, ground])),
    ...["text", "muted"].flatMap((text) => soft.map((ground) => [text, ground])),
    ...tones.map((tone) => [tone, `${tone}-soft`]),
    ["on-primary", "primary"], ["on-primary", "primary-hover"],
  ];
  for (const [theme, colours] of Object.entries(palettes())) {
    const faint = pairs.map(([text, ground]) => [text, ground, contrast(colours[text], colours[ground])]).filter(([, , found]) => found < CONTRAST_MIN);
    assert.deepEqual(faint.map(([text, ground, found]) => `${text} on ${ground}: ${found.toFixed(2)}`), [], theme);
  }
});
