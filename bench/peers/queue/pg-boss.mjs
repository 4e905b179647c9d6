// pg-boss: two workers that fetch and complete batches of 1,000, and fetch again at once while batches come back full.
// In one short run each, 1 or 4 workers, batches of 300 or 5,000 and a table for the queue alone were no faster. Maintenance is off.

import { PgBoss } from "pg-boss";

const QUEUE = "bench";
const WORKERS = 2;

export async function open(connectionString, clients) {
  const boss = new PgBoss({ connectionString, max: Math.max(clients, WORKERS), supervise: false, schedule: false });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  await boss.createQueue(QUEUE);
  return {
    add: (data) => boss.send(QUEUE, data),
    addMany: (all) => boss.insert(QUEUE, all.map((data) => ({ data }))),
    work: async (onTask) => {
      const options = { batchSize: 1_000, localConcurrency: WORKERS, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
      await boss.work(QUEUE, options, async (jobs) => jobs.forEach((job) => onTask(job.data)));
      return () => boss.offWork(QUEUE, { wait: true });
    },
    count: async (database) => {
      const { rows } = await database.query("SELECT state, count(*)::int AS n FROM pgboss.job WHERE name = $1 GROUP BY state", [QUEUE]);
      const of = (...states) => rows.filter((row) => states.includes(row.state)).reduce((sum, row) => sum + row.n, 0);
      return { waiting: of("created", "retry", "active"), finished: of("completed"), failed: of("failed", "cancelled") };
    },
    close: () => boss.stop({ graceful: false }),
  };
}
