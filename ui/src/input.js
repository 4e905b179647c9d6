// An example input for a workflow: every field of `trigger.body` that its definition reads, with a text as its value.
//
// Pure: a definition in, a JSON value out.

const EXAMPLE = "example";
/** A path with a larger index is left out: the example would be longer than the definition. */
const INDEX_MAX = 20;
const PATH = /(?<![\w.])trigger\.body((?:\.\w+|\[\d+\])+)/g;

export function exampleInput(definition) {
  const fields = new Map();
  for (const [, path] of JSON.stringify(definition).matchAll(PATH)) {
    const keys = path.match(/\w+|\[\d+/g).map((key) => (key.startsWith("[") ? Number(key.slice(1)) : key));
    if (keys.some((key) => key > INDEX_MAX)) continue;
    keys.reduce((at, key) => at.get(key) ?? at.set(key, new Map()).get(key), fields);
  }
  return fields.size ? value(fields) : {};
}

function value(fields) {
  const keys = [...fields.keys()];
  if (!keys.length) return EXAMPLE;
  const names = keys.filter((key) => typeof key === "string");
  if (names.length) return Object.fromEntries(names.map((name) => [name, value(fields.get(name))]));
  return Array.from({ length: Math.max(...keys) + 1 }, (_, i) => value(fields.get(i) ?? new Map()));
}
