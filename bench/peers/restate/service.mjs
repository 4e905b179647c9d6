// The Restate service: its handlers are the workflows, `ctx.run` is the durable step.
//
//     PORT=… node service.mjs

import http2 from "node:http2";

// The SDK calls this; Node has it from version 22.
Promise.withResolvers ??= function () {
  const made = {};
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
};

const restate = await import("@restatedev/restate-sdk");

const bench = restate.service({
  name: "bench",
  handlers: {
    chain: async (ctx, steps) => {
      for (let i = 0; i < steps; i++) await ctx.run(`s${i}`, () => i);
      return steps;
    },
    fanout: async (ctx, steps) => {
      const parts = Array.from({ length: steps }, (_, i) => ctx.run(`s${i}`, () => i));
      return (await restate.RestatePromise.all(parts)).length;
    },
  },
});

// `restate.serve` would listen on every interface.
http2.createServer(restate.createEndpointHandler({ services: [bench] })).listen(Number(process.env.PORT), "127.0.0.1");
