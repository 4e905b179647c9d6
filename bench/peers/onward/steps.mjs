// The two kinds of steps that the workloads measure.

/** The type of the tasks that `worker.mjs` does. */
export const TYPE = "bench.step.v1";

/** `noop`: the engine executes the step itself. `task`: a worker does it. */
export const STEPS = { noop: { noop: {} }, task: { task: TYPE } };
