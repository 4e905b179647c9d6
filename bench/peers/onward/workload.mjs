// Onward through its HTTP API: one workload, one line of JSON.
//
//     node workload.mjs <workload> <seconds> <server url> noop|task
//
// Every run is triggered over HTTP with `?wait=`, so the response comes when it has ended. The steps are `noop`s,
// executed by the engine itself, or tasks for `worker.mjs`.

import { measure, post, stepsOf } from "../load.mjs";
import { STEPS } from "./steps.mjs";

const [workload, seconds, server, kind] = process.argv.slice(2);
const steps = stepsOf(workload);

function definition() {
  const names = Array.from({ length: steps }, (_, i) => `s${i}`);
  const parallel = workload === "fanout";
  const tasks = names.map((name, i) => [name, { ...STEPS[kind], needs: parallel || i === 0 ? [] : [names[i - 1]] }]);
  if (parallel) tasks.push(["join", { noop: {}, needs: names }]);
  return { name: workload, tasks: Object.fromEntries(tasks) };
}

await post(`${server}/api/v1/workflows`, definition());

async function call() {
  const { data } = await post(`${server}/api/v1/workflows/${workload}/trigger?wait=60s`, { order_id: 123 });
  if (data.status !== "completed") throw new Error(`a run is ${data.status}`);
}

/** Reads every run back, a page at a time. */
async function verify(expected) {
  let [all, cursor] = [0, ""];
  for (let page = 0; page <= expected / 500 && cursor !== null; page++) {
    const response = await fetch(`${server}/api/v1/runs?limit=500${cursor && `&cursor=${cursor}`}`);
    const { data, next } = await response.json();
    if (data.some((run) => run.status !== "completed")) return false;
    all += data.length;
    cursor = next;
  }
  return all === expected;
}

await measure({ workload, seconds: Number(seconds), store: "sqlite", concurrency: 256, call, verify });
