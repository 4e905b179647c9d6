// The load generator for contestants that are called over HTTP: the same client, the same concurrency and the
// same report, so that only the server differs.

import http from "node:http";

const agent = new http.Agent({ keepAlive: true, maxSockets: 256 });

/** Sends JSON and returns the parsed JSON; throws unless the status is 2xx. */
export function post(url, body) {
  const text = JSON.stringify(body);
  const headers = { "content-type": "application/json", accept: "application/json", "content-length": Buffer.byteLength(text) };
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method: "POST", agent, headers, timeout: 60_000 }, (response) => {
      const chunks = [];
      response.on("data", (chunk) => chunks.push(chunk));
      response.on("error", reject);
      response.on("end", () => {
        const answer = Buffer.concat(chunks).toString();
        if (response.statusCode >= 300) reject(new Error(`${url} answered ${response.statusCode}: ${answer.slice(0, 300)}`));
        else resolve(JSON.parse(answer));
      });
    });
    request.on("timeout", () => request.destroy(new Error(`${url} took longer than a minute`)));
    request.on("error", reject);
    request.end(text);
  });
}

/** The number of steps in a run of this workload. */
export const stepsOf = (workload) => (workload === "fanout" ? 1_000 : Number(workload.replace(/^\D+/, "")));

/**
 * Runs one workload and prints its line of JSON. `call` starts a run and waits for its end; `verify` gets the
 * number of runs and returns whether exactly that many have completed.
 */
export async function measure({ workload, seconds, store, concurrency, call, verify }) {
  const throughput = workload.startsWith("flow");
  await call();
  const samples = [];
  const began = performance.now();
  const client = async () => {
    while (performance.now() - began < seconds * 1_000) {
      const started = performance.now();
      await call();
      samples.push(performance.now() - started);
    }
  };
  await Promise.all(Array.from({ length: throughput ? concurrency : 1 }, client));
  const elapsed = (performance.now() - began) / 1_000;
  const ok = await verify(samples.length + 1);
  samples.sort((a, b) => a - b);
  const share = (part) => samples[Math.min(Math.floor(samples.length * part), samples.length - 1)];
  const steps = stepsOf(workload);
  console.log(JSON.stringify({
    workload, store,
    rate_per_s: throughput ? (samples.length * steps) / elapsed : null,
    unit: throughput ? (steps === 1 ? "runs/s" : "steps/s") : null,
    p50_ms: share(0.5), p95_ms: share(0.95), p99_ms: share(0.99), ok,
  }));
  agent.destroy();
}
