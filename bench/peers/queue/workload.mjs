// A queue on Postgres: one figure, one line of JSON.
//
//     node workload.mjs <graphile-worker | pg-boss> <figure> <seconds> <postgres url>
//
//     queue_enqueue_1, queue_enqueue_64   1 or 64 clients, each submits one task, waits for the answer, submits the next
//     queue_bulk                          4 clients, each BULK tasks a call
//     queue_drain                         drain a backlog of BACKLOG tasks for each second of the window
//
// The queues are in graphile-worker.mjs and pg-boss.mjs, each with the best settings of a few short runs on a noisy
// machine: in bulk 1, 2 and 4 clients were tried (more was faster) and, with one client, 1,000 and 5,000 tasks a call (no
// difference), so better ones may exist. After each figure all remaining tasks are drained: `ok` says that the queue had
// exactly the tasks that were submitted, that each of them ran exactly once, and that all are finished in the database.

import pg from "pg";

const BULK = 1_000;
const BACKLOG = 20_000;
const CLIENTS = { queue_enqueue_1: 1, queue_enqueue_64: 64, queue_bulk: 4, queue_drain: 1 };

process.on("uncaughtException", (error) => {
  console.error(error.message); // without the fields of the error object
  process.exit(1);
});

const [peer, figure, window, url] = process.argv.slice(2);
const [seconds, clients] = [Number(window), CLIENTS[figure]];
const { open } = await import(`./${peer}.mjs`);

/** The payload of a task; its number shows whether every task ran. */
const payload = (number) => ({ order_id: number });

/** Calls `submit` from every client until the window closes; returns the milliseconds of each call. A first call opens connections. */
async function during(submit) {
  await Promise.all(Array.from({ length: clients }, submit));
  const samples = [];
  const began = performance.now();
  const client = async () => {
    while (performance.now() - began < seconds * 1_000) {
      const started = performance.now();
      await submit();
      samples.push(performance.now() - started);
    }
  };
  await Promise.all(Array.from({ length: clients }, client));
  return { samples, elapsed: (performance.now() - began) / 1_000 };
}

/** Drains the queue; returns how long it took, and whether each of `count` tasks ran exactly once. */
async function drain(queue, count) {
  const runs = new Uint8Array(count);
  let [left, strangers] = [count, 0];
  let [done, late] = [];
  const all = new Promise((resolve, reject) => ([done, late] = [resolve, reject]));
  const onTask = ({ order_id: number }) => {
    if (!(number < count)) strangers++;
    else if (++runs[number] === 1 && --left === 0) done();
  };
  const patience = setTimeout(() => late(new Error(`${left} of ${count} tasks have not run`)), (8 * seconds + 120) * 1_000);
  const began = performance.now();
  const stop = await queue.work(onTask);
  await all;
  await stop(); // returns once the last results are stored
  const elapsed = (performance.now() - began) / 1_000;
  clearTimeout(patience);
  return { elapsed, once: strangers === 0 && runs.every((times) => times === 1) };
}

const database = new pg.Client({ connectionString: url });
await database.connect();
const queue = await open(url, clients);
let [submitted, counted, samples, elapsed] = [0, 0, [], 0];
// The number is assigned when a call starts, so that tasks of concurrent clients differ.
const one = () => queue.add(payload(submitted++));
const many = () => queue.addMany(Array.from({ length: BULK }, () => payload(submitted++)));

if (figure === "queue_drain") {
  for (let i = 0; i < (seconds * BACKLOG) / BULK; i++) await many();
} else {
  ({ samples, elapsed } = await during(figure === "queue_bulk" ? many : one));
  counted = samples.length * (figure === "queue_bulk" ? BULK : 1);
}
await database.query("ANALYZE"); // as autovacuum would, had the tasks been there for a minute
const before = await queue.count(database);
const drained = await drain(queue, submitted);
const after = await queue.count(database);
await queue.close();
await database.end();

if (figure === "queue_drain") [counted, elapsed] = [submitted, drained.elapsed];
samples.sort((a, b) => a - b);
const share = (part) => samples[Math.min(Math.floor(samples.length * part), samples.length - 1)] ?? null;
console.log(JSON.stringify({
  workload: figure, store: "postgres", rate_per_s: counted / elapsed, unit: "tasks/s", tasks: submitted,
  p50_ms: share(0.5), p95_ms: share(0.95), p99_ms: share(0.99),
  ok: before.waiting === submitted && drained.once && after.waiting === 0 && after.failed === 0
    && (after.finished ?? submitted) === submitted,
}));
