// A worker in its own process that does the `task` steps of the workloads over `POST /work`.
//
//     node worker.mjs <server url>

import { post } from "../load.mjs";
import { TYPE } from "./steps.mjs";

const [server] = process.argv.slice(2);
const LOOPS = 4;
const CREDITS = 64;

/** Reports what is done and takes what is next, in one request after the other. */
async function work(id) {
  for (let done = []; ; ) {
    const request = { worker_id: `bench-${id}`, types: [TYPE], credits: CREDITS, lease: "30s", wait: "20s", done };
    const { data } = await post(`${server}/api/v1/work`, request);
    done = data.tasks.map(({ task_id, claim_token }) => ({ task_id, claim_token, result: 1 }));
  }
}

await Promise.all(Array.from({ length: LOOPS }, (_, id) => work(id)));
