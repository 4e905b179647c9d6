// Restate: one workload, one line of JSON.
//
//     node workload.mjs <workload> <seconds> <ingress url> <admin url> <service url>
//
// 256 calls in flight over HTTP; the handler runs in a separate Node process (service.mjs).

import { measure, post, stepsOf } from "../load.mjs";

const [workload, seconds, ingress, admin, service] = process.argv.slice(2);
const steps = stepsOf(workload);
const handler = workload === "fanout" ? "fanout" : "chain";

await post(`${admin}/deployments`, { uri: service });

async function call() {
  const done = await post(`${ingress}/bench/${handler}`, steps);
  if (done !== steps) throw new Error(`a run returned ${done} instead of ${steps}`);
}

async function verify(expected) {
  const query = "SELECT status, completion_result, count(*) AS n FROM sys_invocation GROUP BY status, completion_result";
  const { rows } = await post(`${admin}/query`, { query });
  return rows.length === 1 && rows[0].status === "completed" && rows[0].completion_result === "success" && rows[0].n === expected;
}

await measure({ workload, seconds: Number(seconds), store: "rocksdb", concurrency: 256, call, verify });
