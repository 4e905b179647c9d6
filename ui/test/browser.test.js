// The dashboard in a real browser, served by the real binary: what users see, live and without a reload.
//
//   ONWARD_BINARY    the program to test            UI_MODULES    the folder with node_modules/playwright-core
//   UI_SCREENSHOTS   the folder for screenshots     CHROMIUM      the browser (default /usr/bin/chromium)
//
// Steps that must be seen running call an upstream that responds when the test releases it, so no test sleeps.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import test, { after, before } from "node:test";
import { assertLegible } from "./contrast.js";

const { chromium } = createRequire(`${process.env.UI_MODULES}/`)("playwright-core");
const PICTURES = process.env.UI_SCREENSHOTS;
const HOSTILE = `<img src=x onerror="window.owned=1">`;
const LIMIT = 15_000;

let server, data, origin, browser, page, upstream;
/** Requests the upstream holds, by path. */
const held = new Map();
const complaints = [];

before(async () => {
  data = mkdtempSync(join(tmpdir(), "onward-ui-"));
  origin = await serve("127.0.0.1:0");
  upstream = http.createServer(answer).listen(0, "127.0.0.1");
  await once(upstream, "listening");
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"],
  });
  page = await open({ width: 1360, height: 900 }, "light");
  mkdirSync(PICTURES, { recursive: true });
});

after(async () => {
  await browser?.close();
  upstream?.closeAllConnections();
  upstream?.close();
  if (server?.exitCode === null) {
    server.kill("SIGKILL");
    await once(server, "exit");
  }
  rmSync(data, { recursive: true, force: true });
});

async function serve(address) {
  server = spawn(process.env.ONWARD_BINARY, ["dev", "--listen", address, "--data", data], { stdio: ["ignore", "pipe", "ignore"] });
  return ready(server);
}

/** The address on which a started server listens. */
async function ready(server) {
  for await (const line of createInterface(server.stdout)) {
    const ready = line.match(/^onward ready (\S+)/);
    if (ready) return ready[1];
  }
  assert.fail("the server exited before it was ready");
}

async function open(viewport, colorScheme) {
  const page = await browser.newPage({ viewport, colorScheme, reducedMotion: "reduce" });
  page.setDefaultTimeout(LIMIT);
  page.on("pageerror", (error) => complaints.push(String(error.stack)));
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(`${message.text()} ${message.location().url}`);
  });
  await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => (window.violations ??= []).push(event.violatedDirective)));
  return page;
}

/** /hold/x responds once released; /fail/n responds with 503 n times; other paths respond at once, with hostile text. */
function answer(request, response) {
  const reply = (status) => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify({ amount: 4200, id: 0, note: `</pre><script>window.owned=1</script>${HOSTILE}` }).replace(":0,", ":12345678901234567890,"));
  };
  const [, kind, count] = request.url.split("/");
  if (kind === "hold") return void held.set(request.url, () => reply(200));
  reply(kind === "fail" && Number(request.headers["x-onward-attempt"] ?? 1) <= Number(count) ? 503 : 200);
}

async function release(path) {
  await until(() => held.has(path), `${path} is called`);
  held.get(path)();
}

async function until(isTrue, what) {
  for (const end = Date.now() + LIMIT; Date.now() < end; await new Promise((wake) => setTimeout(wake, 10))) {
    if (await isTrue()) return;
  }
  assert.fail(`timed out: ${what}`);
}

async function api(method, path, body, type = "application/json") {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  const response = await fetch(`${origin}/api/v1${path}`, { method, body: text, headers: body === undefined ? {} : { "content-type": type } });
  const value = await response.json();
  assert.ok(response.ok, `${method} ${path}: ${JSON.stringify(value)}`);
  return value.data;
}

const define = (name, tasks) => api("POST", "/workflows", { name, tasks });
const start = async (workflow, body = {}) => (await api("POST", `/workflows/${workflow}/trigger`, body)).run_id;
const call = (path, more = {}) => ({ url: `http://127.0.0.1:${upstream.address().port}${path}`, ...more });
const go = (hash) => page.goto(`${origin}/#${hash}`);
const see = (selector) => page.locator(selector).first().waitFor();

test("an empty server shows commands that work", async () => {
  await go("/");
  await see("text=Create your first workflow");
  await page.screenshot({ path: join(PICTURES, "first-workflow.png") });
  const curl = await page.locator(".empty pre").innerText();
  const [, yaml] = curl.match(/--data-binary '\n([\s\S]*)'$/);
  await page.evaluate(() => (window.mark = "not reloaded"));
  await api("POST", "/workflows", yaml, "application/yaml");
  await see("text=Start your first run");
  await assertLegible(page, "first run");
  await page.screenshot({ path: join(PICTURES, "first-run.png") });
  const trigger = await page.locator(".empty pre").innerText();
  const [, path, body] = trigger.match(/api\/v1(\S+) [\s\S]*-d '(.*)'$/);
  await page.getByRole("button", { name: "Trigger" }).click();
  await page.getByRole("button", { name: "Start run" }).click();
  await see('.bar-top .status[data-status="completed"]');
  const { run_id } = await api("POST", path, body);
  await go("/runs");
  await see(`tr[data-run="${run_id}"][data-status="completed"]`);
  assert.equal(await page.evaluate(() => window.mark), "not reloaded");
});

test("the dialog for a new run proposes the fields that the workflow reads", async () => {
  for (const hash of ["/workflows", "/workflows/hello"]) {
    await go(hash);
    await page.getByRole("button", { name: "Trigger" }).click();
    assert.deepEqual(JSON.parse(await page.locator("textarea").inputValue()), { name: "example" }, hash);
    await page.getByRole("button", { name: "Close" }).click();
  }
});

test("the plan of a workflow and of a run shows the kind of each step", async () => {
  const { id } = await define("kinds", {
    fetch: call("/kinds"), work: { task: "mail.send" }, nap: { sleep: "1h" }, door: { wait_for_webhook: {} },
    keep: { set: { a: 1 } }, note: { log: { message: "hi" } }, idle: { noop: {}, needs: ["keep"], if: "tasks.keep.ok" },
  });
  const expected = { fetch: "HTTP", work: "task", nap: "sleep", door: "wait for webhook", keep: "set", note: "log", idle: "no-op · if" };
  const run = await start("kinds");
  for (const [hash, is_run] of [[`/workflows/${id}`, false], [`/runs/${run}`, true]]) {
    await go(hash);
    await see('.box[data-step="work"]');
    for (const [step, label] of Object.entries(expected)) {
      const shown = await page.locator(`.box[data-step="${step}"] small`).innerText();
      assert.ok(is_run ? shown.startsWith(label) : shown === label, `${hash} ${step}: ${shown}`);
      assert.equal(await page.locator(`.box[data-step="${step}"] small svg`).count(), 1);
    }
    assert.equal(await page.locator(".edge").count(), 1);
  }
  await go(`/runs/${run}?step=work`);
  await see('.panel .tag:text-is("task")');
});

test("a run started from the dashboard goes from running to completed without a reload", async () => {
  await define("order", {
    charge: call("/hold/charge", { method: "POST" }),
    receipt: call("/receipt", { needs: ["charge"] }),
    refund: call("/refund", { needs: ["charge"], if: "tasks.charge.status_code != 200" }),
  });
  await go("/workflows");
  await page.locator("tr", { hasText: "order" }).getByRole("button", { name: "Trigger" }).click();
  await page.locator("textarea").fill("{ not json");
  await page.getByRole("button", { name: "Start run" }).click();
  await see("dialog [role=alert]");
  await page.locator("textarea").fill('{"order_id": 12345678901234567890}');
  await page.getByRole("button", { name: "Start run" }).click();
  await see('.box[data-step="charge"][data-status="running"]');
  await see('.bar-top .status[data-status="running"]');
  await see("text=12345678901234567890");
  await see('.box[data-step="receipt"][data-status="pending"]');
  const place = () => page.locator('.box[data-step="refund"] .face').evaluate((box) => ["x", "y", "width"].map((name) => box.getAttribute(name)));
  const before = await place();
  await page.evaluate(() => (window.mark = "not reloaded"));

  await release("/hold/charge");
  await see('.bar-top .status[data-status="completed"]');
  await see('.box[data-step="receipt"][data-status="success"]');
  await see('.box[data-step="refund"][data-status="skipped"]');
  await see('.events li[data-type="run.completed"]');
  assert.deepEqual(await place(), before, "boxes stay where they are");
  assert.equal(await page.evaluate(() => window.mark), "not reloaded");
  assert.equal(await page.locator(".timeline .bar.running.good").count(), 2);
});

test("a step opens beside the graph, by mouse and by keyboard, and says what happened", async () => {
  await page.locator('.box[data-step="charge"]').click();
  await see('.panel.of-step >> text="charge"');
  const body = await page.locator('.panel pre[aria-label="Body"]').innerText();
  assert.match(body, /"id": 12345678901234567890/);
  assert.match(body, /<script>window\.owned=1<\/script>/, "shown as the text it is");
  await page.locator('.box[data-step="refund"]').focus();
  await page.keyboard.press("Enter");
  await see('.panel .skipped[data-reason="condition_false"]');
  assert.match(await page.locator(".panel .skipped").innerText(), /tasks\.charge\.status_code != 200[\s\S]*200/);
  const address = page.url();
  await page.reload();
  await see('.panel .skipped[data-reason="condition_false"]');
  assert.equal(page.url(), address);
  await page.locator(".panel .close").click();
  await see('.panel pre[aria-label="Input"]');
});

test("attempts and errors are shown", async () => {
  await define("flaky", { try: call("/fail/1", { retry: { max_attempts: 2, backoff: { type: "fixed", min: "10ms" } } }), lost: call("/fail/9", { retry: { max_attempts: 1 } }) });
  const run = await start("flaky");
  await go(`/runs/${run}?step=try`);
  await see('.bar-top .status[data-status="failed"]');
  await see('.panel .status[data-status="success"]');
  assert.equal(await page.locator(".attempts li").count(), 2);
  await see(".attempts li.bad >> text=http_status");
  await page.locator('.timeline a.row:has-text("lost")').click();
  await see(".panel .problem >> text=http_status");
  await define("doomed", { lost: call("/fail/9", { retry: { max_attempts: 1 } }) });
  await go(`/runs/${await start("doomed")}`);
  await see('.bar-top .status[data-status="failed"]');
  await see("main >> text=step_failed");
});

test("a run is cancelled from the dashboard, after confirmation", async () => {
  await define("patient", { door: { wait_for_webhook: {} } });
  const run = await start("patient");
  await go(`/runs/${run}`);
  await see('.bar-top .status[data-status="waiting"]');
  await page.getByRole("button", { name: /^Cancel/ }).click();
  await page.locator("dialog").getByRole("button", { name: "Keep it" }).click();
  assert.equal((await api("GET", `/runs/${run}`)).status, "waiting");
  await page.getByRole("button", { name: /^Cancel/ }).click();
  await page.locator("dialog").getByRole("button", { name: /^Cancel/ }).click();
  await see('.bar-top .status[data-status="cancelled"]');
  assert.equal((await api("GET", `/runs/${run}`)).status, "cancelled");
});

test("the actions of an explanation work: a callback sent from the dashboard", async () => {
  const run = await start("patient");
  await go(`/runs/${run}?step=door`);
  await see('.explain[data-reason="waiting_for_webhook"]');
  await page.getByRole("button", { name: "Call webhook" }).click();
  await page.locator("textarea").fill('{"paid": true}');
  await page.getByRole("button", { name: "Send" }).click();
  await see('.bar-top .status[data-status="completed"]');
  assert.match(await page.locator('.panel pre[aria-label="Body"]').innerText(), /"paid": true/);
});

test("every cause is listed, the most urgent first", async () => {
  await define("several", { nap: { sleep: "1h" }, gate: { pause: {} }, door: { wait_for_signal: { name: "go", timeout: "1m" } } });
  const run = await start("several");
  await go(`/runs/${run}`);
  await see('.explain[data-reason="paused_for_manual_action"]');
  await see('.explain .causes li:nth-child(1)[data-reason="waiting_for_signal"]');
  await see('.explain .causes li:nth-child(2)[data-reason="sleeping_until"]');
  await page.locator('.explain .causes li:nth-child(2) a').click();
  await see('.panel h2:has-text("nap")');
});

test("a loop is one box in the plan, and its iterations are listed beside it", async () => {
  const bad = { needs: ["note"], if: "index == 1", ...call("/fail/9", { retry: "never" }) };
  await define("looping", { each: { loop: { items: [4, 5, 6], on_error: "continue", tasks: { note: { set: { n: "{{item}}" } }, bad } } } });
  const run = await start("looping");
  await go(`/runs/${run}?step=each`);
  await see('.bar-top .status[data-status="completed"]');
  assert.equal(await page.locator(".box").count(), 1, "inner steps have no box");
  assert.match(await page.locator(".box small").innerText(), /1 failed, 2 success/);
  await see('.inside-tree[data-under="each"] > li:nth-child(3)');
  await page.locator('details[data-step="each[1]"] > summary').click();
  await page.locator('details[data-step="each[1]/bad"][data-status="failed"] > summary').click();
  await see('details[data-step="each[1]/bad"] .problem >> text=http_status');
  await page.locator('.facts a.bad-text:has-text("each[1]/bad")').click();
  await see('.panel h2:has-text("each")');
});

test("an approval is decided with a name, and parents and children link to each other", async () => {
  await define("gate", { ask: { approval: { prompt: "Ship {{trigger.body.n}}?", items: { n: "{{trigger.body.n}}" }, approvers: ["ada"] } } });
  await define("asking", { call: { subworkflow: { workflow: "gate", input: { n: 7 } } } });
  const run = await start("asking");
  await go(`/runs/${run}?step=call`);
  await page.locator(".panel .fact a:has-text('gate')").click();
  await see('.explain[data-reason="paused_for_approval"] >> text=Ship 7?');
  await see(".fact >> text=call of asking");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByLabel("Your name").fill("eve");
  await page.locator("dialog").getByRole("button", { name: "Approve" }).click();
  await see("dialog .problem >> text=not_an_approver");
  forgive(/status of 403/);
  await page.getByLabel("Your name").fill("ada");
  await page.getByLabel("Comment").fill("as agreed");
  await page.locator("dialog").getByRole("button", { name: "Approve" }).click();
  await see('.bar-top .status[data-status="completed"]');
  await page.locator(".fact a:has-text('call')").click();
  await see('.bar-top .status[data-status="completed"] + h1:has-text("asking")');
  assert.equal((await api("GET", `/runs/${run}`)).tasks.call.child.status, "completed");
});

test("an operator decides about steps, and what was undone is shown", async () => {
  await define("stuck", {
    book: { ...call("/undoable"), compensate: call("/undo") },
    nap: { needs: ["book"], sleep: "10d" },
    gate: { needs: ["nap"], wait_for_signal: { name: "go" } },
    last: { needs: ["gate"], ...call("/fail/9", { retries: 0 }) },
  });
  const run = await start("stuck");
  await go(`/runs/${run}?step=nap`);
  await page.locator(".panel").getByRole("button", { name: "Run now" }).click();
  await page.locator('.panel .status[data-status="success"]').waitFor();
  await go(`/runs/${run}?step=gate`);
  await page.locator(".panel").getByRole("button", { name: "Set result" }).click();
  await page.getByLabel("Result, as JSON").fill("{}");
  await page.locator("dialog").getByRole("button", { name: "Set" }).click();
  await see('.bar-top .status[data-status="failed"]');
  await see('[data-recovery="completed"] >> text=book');
  await go(`/runs/${run}?step=gate`);
  await page.locator(".panel").getByRole("button", { name: "Fork from here" }).click();
  await page.locator("dialog").getByRole("button", { name: "Fork" }).click();
  await see(`.fact a[href*="${run}"]`);
  await define("skipped", { nap: { sleep: "10d" } });
  const kept = await start("skipped");
  await go(`/runs/${kept}?step=nap`);
  await page.locator(".panel").getByRole("button", { name: "Skip" }).click();
  await page.locator("dialog").getByRole("button", { name: "Skip" }).click();
  await see('.panel .skipped[data-reason="operator"]');
  await see('.bar-top .status[data-status="completed"]');
});

test("the list of runs is live, filtered and paged", async () => {
  await define("quick", { only: { noop: {} } });
  await define("held", { only: call("/hold/list") });
  await go("/runs");
  await see("tr[data-run]");
  const run = await start("held");
  await see(`tr[data-run="${run}"][data-status="running"]`);
  await release("/hold/list");
  await see(`tr[data-run="${run}"][data-status="completed"]`);
  await page.getByRole("link", { name: "Cancelled", exact: true }).click();
  await until(async () => (await page.locator("tr[data-run]").count()) === 1, "one cancelled run");
  await page.getByRole("link", { name: "All", exact: true }).click();
  for (let i = 0; i < 55; i++) await start("quick");
  await page.locator("select").selectOption({ label: "quick" });
  await until(async () => (await page.locator("tr[data-run]").count()) === 50, "a full page of one workflow");
  await page.getByRole("link", { name: "Older" }).click();
  await until(async () => (await page.locator("tr[data-run]").count()) === 5, "the rest");
  await page.getByRole("link", { name: "Newest" }).click();
  await until(async () => (await page.locator("tr[data-run]").count()) === 50, "the first page again");
});

test("triggers are listed, run manually and disabled", async (t) => {
  if ((await fetch(`${origin}/api/v1/triggers`)).status === 404) return t.skip("this server has no triggers");
  await api("POST", "/triggers", { name: HOSTILE, type: "schedule", workflow: "quick", config: { cron: "30 2 * * *", timezone: "Europe/Berlin" } });
  await go("/triggers");
  const row = page.locator("tr[data-trigger]", { hasText: "30 2 * * *" });
  await row.locator("text=quick").waitFor();
  assert.match(await row.innerText(), /Europe\/Berlin[\s\S]*in \d+ [hm][\s\S]*never/);
  await row.getByRole("button", { name: "Disable" }).click();
  await row.getByRole("button", { name: "Enable" }).click();
  await row.getByRole("button", { name: "Disable" }).waitFor();
  await row.getByRole("button", { name: "Run" }).click();
  await see('.bar-top .status[data-status="completed"]');
});

test("hostile names, bodies and addresses stay text", async () => {
  const { id } = await api("POST", "/workflows", { name: HOSTILE, description: HOSTILE, tasks: { a: { log: { message: `${HOSTILE}{{trigger.body.x}}` } } } });
  const run = (await api("POST", `/workflows/${id}/trigger?label=k:${encodeURIComponent(HOSTILE)}`, { x: `<script>window.owned=1</script>`, __proto__x: { type: "img", props: {} } })).run_id;
  await api("GET", `/runs/${run}`);
  for (const [hash, sight] of [
    ["/runs", `tr[data-run="${run}"] >> text=${HOSTILE}`],
    ["/workflows", `tr[data-workflow="${id}"]`],
    [`/workflows/${id}`, `h1 >> text=${HOSTILE}`],
    [`/runs/${run}?step=a`, '.panel pre[aria-label="Body"]'],
    [`/runs/${encodeURIComponent(HOSTILE)}`, ".problem"],
    [`/${encodeURIComponent(HOSTILE)}`, "text=Nothing here"],
    ["/runs/%E0%A4%A", ".problem"],
  ]) {
    await go(hash);
    await see(sight);
    const made = await page.evaluate(() => document.querySelectorAll("#app img, #app script, #app iframe, #app [onerror]").length);
    assert.equal(made, 0, hash);
  }
  assert.equal(await page.evaluate(() => window.owned), undefined);
  // Two of these URLs name no run; the browser logs the server's errors.
  forgive(/status of 400/);
});

test("a run or workflow that does not exist is reported once, with a way back", async () => {
  for (const [place, id] of [["runs", "run_01jz8k3w9mz6xq4v7n5t2c0b1d"], ["workflows", "nothing"]]) {
    await go(`/${place}/${id}`);
    await see(".problem >> text=not_found");
    await see(`.crumbs a[href="#/${place}"]`);
    await see(".connection.idle");
  }
  forgive(/status of 404/);
});

test("the content security policy blocks injected content, and the dashboard never violates it", async () => {
  await go("/runs");
  await see("tr[data-run]");
  assert.equal(await page.evaluate(() => window.violations), undefined);
  await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "window.owned = 1";
    document.body.append(script);
    const image = document.createElement("img");
    image.src = "http://127.0.0.1:9/x.png";
    document.body.append(image);
  });
  await until(() => page.evaluate(() => window.violations?.length >= 2), "both are refused");
  assert.equal(await page.evaluate(() => window.owned), undefined);
  forgive(/Content Security Policy/);
});

test("the dashboard asks for the key of a server, and gets live updates with it", async () => {
  const key = "a-key-of-this-test-1234";
  const folder = mkdtempSync(join(tmpdir(), "onward-ui-"));
  const options = { stdio: ["ignore", "pipe", "ignore"], env: { ...process.env, ONWARD_ADMIN_KEY: key } };
  const guarded = spawn(process.env.ONWARD_BINARY, ["serve", "--listen", "127.0.0.1:0", "--data", folder], options);
  const tab = await open({ width: 1360, height: 900 }, "light");
  const requests = [];
  tab.on("response", (response) => response.url().includes("/api/") && requests.push(`${response.status()} ${new URL(response.url()).pathname}`));
  try {
    const origin = await ready(guarded);
    await tab.goto(`${origin}/#/runs`);
    await tab.locator(".card input[type=password]").fill("not the key");
    await tab.waitForLoadState("networkidle");
    assert.deepEqual(requests, ["401 /api/v1/version"], "one request finds out that a key is required");
    for (const colorScheme of ["light", "dark"]) {
      await tab.emulateMedia({ colorScheme });
      await assertLegible(tab, `sign-in, ${colorScheme}`);
      await tab.screenshot({ path: join(PICTURES, `sign-in-${colorScheme}.png`) });
    }
    await tab.getByRole("button", { name: "Sign in" }).click();
    await tab.locator(".card >> text=This is not the key of this server").waitFor();
    await assertLegible(tab, "wrong key");
    await tab.reload();
    await tab.locator(".card input[type=password]").fill(` ${key} `);
    assert.equal(await tab.locator(".card [role=alert]").count(), 0, "a wrong key is not kept");
    requests.splice(0);
    await tab.getByRole("button", { name: "Sign in" }).click();
    await tab.locator(".connection.live").waitFor();
    assert.deepEqual(requests.filter((request) => request.startsWith("401")), []);
    assert.match(await tab.locator(".empty pre").innerText(), /-H "authorization: Bearer \$ONWARD_API_KEY" \\\n/);
    const post = async (path, body) => {
      const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };
      return (await (await fetch(`${origin}/api/v1${path}`, { method: "POST", headers, body: JSON.stringify(body) })).json()).data;
    };
    await post("/workflows", { name: "quiet", tasks: { a: { wait_for_webhook: {} } } });
    const { run_id: run } = await post("/workflows/quiet/trigger", {});
    await tab.locator(`tr[data-run="${run}"]`).waitFor();
    await post(`/runs/${run}/cancel`, {});
    await tab.locator(`tr[data-run="${run}"] .status[data-status="cancelled"]`).waitFor();
    assert.ok(!tab.url().includes(key), "the key is not in the URL");
  } finally {
    await tab.close();
    guarded.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  }
  forgive(/401/);
});

test("every view is legible, fits and keeps to the content security policy: light and dark, wide and narrow", async () => {
  await define("showcase", {
    validate: { set: { ok: true } },
    charge: call("/charge", { needs: ["validate"] }),
    stock: call("/fail/1", { needs: ["validate"], retry: { max_attempts: 2, backoff: { type: "fixed", min: "200ms" } } }),
    refund: call("/refund", { needs: ["charge"], if: "tasks.charge.status_code != 200" }),
    pack: call("/pack", { needs: ["charge", "stock"] }),
    pickup: { wait_for_webhook: { timeout: "2h" }, needs: ["pack"] },
    notify: { log: { message: "shipped" }, needs: ["pickup", "charge"] },
  });
  const run = await start("showcase", { order_id: 7 });
  await until(async () => (await api("GET", `/runs/${run}`)).status === "waiting", "it waits");
  const failed = await start("flaky");
  await until(async () => (await api("GET", `/runs/${failed}`)).status === "failed", "it failed");
  const looping = await start("looping");
  await until(async () => (await api("GET", `/runs/${looping}`)).status === "completed", "it looped");
  const asked = await start("gate", { n: 8 });
  await until(async () => (await api("GET", `/runs/${asked}`)).status === "waiting", "it asks");
  for (const [name, width, height] of [["wide", 1280, 900], ["narrow", 390, 844]]) {
    for (const scheme of ["light", "dark"]) {
      const page = await open({ width, height }, scheme);
      for (const [view, hash, sight, button] of [
        ["runs", "/runs", "tr[data-run]"],
        ["no-runs", "/runs?status=pending", ".empty"],
        ["run", `/runs/${run}`, '.box[data-status="waiting"]'],
        ["step", `/runs/${run}?step=stock`, ".attempts"],
        ["skipped", `/runs/${run}?step=refund`, ".skipped"],
        ["failed", `/runs/${failed}?step=lost`, ".panel .problem"],
        ["loop", `/runs/${looping}?step=each`, ".inside-tree li"],
        ["approval", `/runs/${asked}?step=ask`, ".explain", "Approve"],
        ["workflows", "/workflows", "tr[data-workflow]"],
        ["workflow", "/workflows/showcase", ".box"],
        ["dialog", "/workflows/showcase", ".box", "Trigger"],
        ["triggers", "/triggers", "tr[data-trigger]"],
        ["missing", "/runs/run_0", ".problem"],
      ]) {
        await page.goto(`${origin}/#${hash}`);
        await page.locator(sight).first().waitFor();
        if (button) await page.getByRole("button", { name: button }).click();
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `${view} is ${overflow} pixels too wide for ${width}`);
        await page.screenshot({ path: join(PICTURES, `${view}-${name}-${scheme}.png`) });
        await page.setViewportSize({ width, height: 3000 });
        await assertLegible(page, `${view}, ${name}, ${scheme}`);
        await page.setViewportSize({ width, height });
        assert.equal(await page.evaluate(() => window.violations), undefined, view);
      }
      await page.close();
    }
  }
  // One view names no run; the browser logs the server's error.
  forgive(/status of 40[04]/);
});

test("an unreachable server is shown as offline, and followed again when it is back", async () => {
  const streams = await fetch(`${origin}/api/v1/events/stream`);
  await streams.body.cancel();
  // A server without streams is polled, and the browser logs the failed requests.
  if (streams.status === 404) forgive(/404.*\/(stream|graph)(\?.*)?$/);
  assert.deepEqual(complaints, [], "no test above logged, threw or was refused anything");
  await go("/runs");
  await see(streams.ok ? ".connection.live" : ".connection.polling");
  await page.evaluate(() => (window.mark = "not reloaded"));
  const known = await page.locator("tr[data-run]").count();
  server.kill("SIGKILL");
  await once(server, "exit");
  await see(".connection.offline, .problem");
  assert.equal(await page.locator("tr[data-run]").count(), known, "known runs stay visible");
  assert.equal(await serve(origin.replace("http://", "")), origin);
  const run = await start("quick");
  await see(`tr[data-run="${run}"]`);
  await page.locator(".problem").waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => window.mark), "not reloaded");
});

/** Drops complaints that a test caused on purpose. */
function forgive(pattern) {
  const rest = complaints.filter((text) => !pattern.test(text));
  complaints.splice(0, complaints.length, ...rest);
}
