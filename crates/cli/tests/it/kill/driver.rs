//! The load of the kill loop, and the kills.

use super::journal::{Journal, Request, Told};
use crate::harness::{Act, Answer, Api, Effect, Server, Upstream, eventually, is_terminal, status};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::rng::Rng;

pub const NAP: Duration = Duration::from_millis(400);

/// The workflows under load. `checker` knows their dependencies from the runs themselves.
const WORKFLOWS: &[(&str, &str)] = &[
    (
        "join",
        "a: { url: $UP/a }\nb: { url: $UP/b }\njoin: { url: $UP/join, needs: [a, b] }\nend: { url: $UP/end, needs: [join] }",
    ),
    (
        "flaky",
        "try: { url: $UP/flaky, retry: { max_attempts: 3, backoff: { type: fixed, min: 20ms } } }\nend: { url: $UP/end, needs: [try] }",
    ),
    (
        "nap",
        "before: { url: $UP/before }\nnap: { sleep: 400ms, needs: [before] }\nafter: { url: $UP/after, needs: [nap] }",
    ),
    (
        "door",
        "ask: { url: $UP/ask, body: { url: \"{{wait.door.url}}\" } }\ndoor: { wait_for_webhook: {}, needs: [ask] }\nend: { url: $UP/end, needs: [door], body: { got: \"{{tasks.door.body}}\" } }",
    ),
    ("quick", "a: { noop: {} }\nb: { set: { x: \"{{trigger.body.key}}\" }, needs: [a] }\nc: { noop: {}, needs: [b] }"),
    // Evicted with so many records that it needs a snapshot; `$CHAIN` ends in `last`.
    ("long", "$CHAIN\nnap: { sleep: 400ms, needs: [last] }\nend: { url: $UP/end, needs: [nap] }"),
    (
        "each",
        "all: { loop: { items: [0, 1, 2, 3], concurrency: 2, tasks: { call: { url: $UP/each, body: { n: \"{{item}}\" } }, rest: { sleep: 20ms, needs: [call] } }, output: \"{{item}}\" } }\nend: { url: $UP/end, needs: [all], body: { got: \"{{tasks.all.body}}\" } }",
    ),
    (
        "parent",
        "call: { subworkflow: { workflow: child, input: { key: \"{{trigger.body.key}}\" } } }\nend: { url: $UP/end, needs: [call], body: { got: \"{{tasks.call.body}}\" } }",
    ),
    (
        "asks",
        "paid: { wait_for_signal: { name: paid } }\nreview: { needs: [paid], approval: { prompt: \"{{trigger.body.key}}?\" } }\nhold: { needs: [review], pause: {} }\nend: { url: $UP/end, needs: [hold], body: { got: \"{{tasks.paid.body}}\" } }",
    ),
    (
        "group",
        "box: { group: { tasks: { call: { url: $UP/call, body: { n: 1 } }, rest: { sleep: 20ms, needs: [call] }, again: { url: $UP/again, needs: [rest] } }, output: { of: \"{{trigger.body.key}}\" } } }\nend: { url: $UP/end, needs: [box], body: { got: \"{{tasks.box.body}}\" } }",
    ),
    (
        "while",
        "poll: { loop: { while: \"index < 4\", tasks: { call: { url: $UP/poll, body: { n: \"{{index}}\", last: \"{{last.n ?? 'none'}}\" } } }, output: { n: \"{{index}}\", last: \"{{last.n ?? 'none'}}\" } } }\nend: { url: $UP/end, needs: [poll], body: { got: \"{{tasks.poll.body}}\" } }",
    ),
    (
        "first",
        "near: { url: $UP/near }\nfar: { sleep: 400ms }\nwon: { needs: { any: [near, far] }, url: $UP/won }\nend: { url: $UP/end, needs: [won] }",
    ),
    (
        "spawn",
        "left: { subworkflow: { workflow: child, detached: true, input: { key: \"{{trigger.body.key}}\" } } }\nclosed: { subworkflow: { workflow: child, detached: true, on_parent_close: cancel, input: { key: \"{{trigger.body.key}}\" } } }\nend: { url: $UP/end, needs: [left, closed], body: { left: \"{{tasks.left.body.run_id}}\" } }",
    ),
    (
        "many",
        "all: { loop: { items: [0, 1, 2], concurrency: 2, tasks: { sub: { subworkflow: { workflow: child, input: { key: \"{{trigger.body.key}}\" } } } } } }\nend: { url: $UP/end, needs: [all], body: { got: \"{{tasks.all.body}}\" } }",
    ),
    // It always fails, and undoes what it did.
    (
        "undo",
        "book: { url: $UP/book, compensate: { url: $UP/unbook, body: { of: \"{{trigger.body.key}}\" } } }\nhold: { url: $UP/hold, needs: [book], compensate: { url: $UP/unhold } }\nship: { url: $UP/ship, needs: [hold], retries: 0 }",
    ),
    // The first attempt at `mend` fails, and the run with it. It is retried in place.
    (
        "mended",
        "pay: { url: $UP/pay }\nmend: { url: $UP/mend, needs: [pay], retries: 0 }\nend: { url: $UP/end, needs: [mend] }",
    ),
    // A denial that a step handles, and one that ends the run.
    (
        "told",
        "ask: { approval: { prompt: \"{{trigger.body.key}}?\" } }\nyes: { url: $UP/yes, needs: [ask] }\nno: { url: $UP/no, needs: [ask], if: tasks.ask.failed, body: { by: \"{{tasks.ask.body.actor}}\" } }",
    ),
    (
        "gate",
        "ask: { approval: { prompt: \"{{trigger.body.key}}?\" } }\nother: { url: $UP/other }\nend: { url: $UP/end, needs: [ask] }",
    ),
];

/// Only other workflows start it.
const CHILD: &str = "name: child
output: { of: \"{{trigger.body.key}}\" }
tasks: { work: { url: $UP/child }, nap: { sleep: 400ms, needs: [work] } }
";

fn chain() -> String {
    let middle = (1..20).map(|i| format!("s{i}: {{ noop: {{}}, needs: [s{}] }}\n", i - 1));
    format!("s0: {{ noop: {{}} }}\n{}last: {{ noop: {{}}, needs: [s19] }}", middle.collect::<String>())
}

const CLIENTS: u64 = 4;
/// The time between two calls of `help` while a process is expected to die.
const HELP: Duration = Duration::from_millis(100);
/// How many runs may be started for each kill; the final check takes time for each.
const RUNS_PER_KILL: u32 = 20;
/// The store is verified after each of the first kills. Later it is large, and verified only sometimes.
const VERIFIED: u64 = 50;
/// How long to wait until a crash point is reached.
const REACH: Duration = Duration::from_secs(30);

/// What the clients share.
struct Load {
    journal: Journal,
    /// None while the server is down.
    api: Mutex<Option<Api>>,
    next_key: AtomicU32,
    runs_max: AtomicU32,
    is_over: AtomicBool,
    /// Requests to `/ask`, which carry the callback URL of their run.
    asked: Box<dyn Fn() -> Vec<Effect> + Send + Sync>,
}

pub struct Driver {
    server: Server,
    load: Arc<Load>,
    clients: Vec<JoinHandle<()>>,
    rng: Rng,
    kills: u64,
}

impl Driver {
    /// Load on a server that was started with [`flags`].
    pub fn new(server: Server, upstream: &Upstream, seed: u64) -> Driver {
        upstream.on("/flaky", [Act::FailFirst]);
        upstream.on("/mend", [Act::FailFirst]);
        upstream.on("/ship", [status(400)]);
        // Slow requests, so that kills interrupt running steps.
        for (path, millis) in [
            ("/a", 60),
            ("/join", 30),
            ("/before", 100),
            ("/ask", 20),
            ("/call", 20),
            ("/poll", 30),
            ("/near", 60),
            ("/won", 40),
            ("/unhold", 50),
            ("/unbook", 30),
        ] {
            upstream.on(path, [Act::Slow(Duration::from_millis(millis))]);
        }
        for (name, steps) in WORKFLOWS {
            let steps = upstream.fill(steps).replace("$CHAIN", &chain());
            let steps: String = steps.lines().map(|line| format!("  {line}\n")).collect();
            server.define(&format!("name: {name}\ntasks:\n{steps}"));
        }
        server.define(&upstream.fill(CHILD));
        let load = Arc::new(Load {
            journal: Journal::default(),
            api: Mutex::new(Some(*server)),
            next_key: AtomicU32::new(0),
            runs_max: AtomicU32::new(RUNS_PER_KILL),
            is_over: AtomicBool::new(false),
            asked: upstream.watch("/ask"),
        });
        let client = |i: u64| {
            let load = load.clone();
            std::thread::spawn(move || load.work(Rng::new(seed.wrapping_add(1_000 + i))))
        };
        let clients = (0..CLIENTS).map(client).collect();
        Driver { server, load, clients, rng: Rng::new(seed), kills: 0 }
    }

    /// Lets the clients work for a random time, up to about this one.
    pub fn live(&mut self, at_most: Duration) {
        self.load.runs_max.fetch_add(RUNS_PER_KILL, Ordering::Relaxed);
        // A fixed sleep on purpose: the server lives for a random time before it is killed.
        std::thread::sleep(Duration::from_millis(20 + self.rng.below(at_most.as_millis() as u64)));
    }

    pub fn kill_again_and_again(&mut self, kills: u64) {
        for _ in 0..kills {
            self.live(Duration::from_millis(580));
            if self.rng.one_in(20) {
                self.server.pause(Duration::from_millis(self.rng.below(1_000)));
            }
            if self.rng.one_in(10) {
                self.server.ask_to_stop();
                std::thread::sleep(Duration::from_millis(self.rng.below(120)));
            }
            self.kill();
            if self.rng.one_in(10) {
                let lifetime = Duration::from_millis(self.rng.below(80));
                self.server.spawn_and_kill(lifetime);
            }
            self.start_again();
        }
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    pub fn kill(&mut self) {
        self.kill_and(|_| {});
    }

    /// Kills the process, does this to its data, and verifies the store.
    pub fn kill_and(&mut self, change: impl FnOnce(&Server)) {
        self.server.kill_at_once();
        self.load.is_down();
        change(&self.server);
        self.kills += 1;
        if self.kills <= VERIFIED || self.rng.one_in(10) {
            self.server.verify();
        }
    }

    pub fn start_again(&mut self) {
        self.server.start_again();
        self.load.is_up(*self.server);
    }

    /// Waits until this many requests have been acknowledged since the beginning.
    pub fn work_until(&self, acked: usize) {
        eventually(&format!("{acked} acknowledged writes"), || (self.load.journal.acked() >= acked).then_some(()));
    }

    /// Starts a process that will abort at a crash point and waits for that, calling `help` from time to time. Returns
    /// the signal, or `None` if the time is up or the process ended in another way.
    pub fn run_until_crash(&mut self, crash: &str, help: &mut dyn FnMut(&Server)) -> Option<i32> {
        let until = Instant::now() + REACH;
        if self.server.start_with(&[("ONWARD_CRASH".into(), crash.into())]) {
            self.load.is_up(*self.server);
        }
        let mut since = Instant::now();
        let status = loop {
            match self.server.has_ended() {
                Some(status) => break Some(status),
                None if Instant::now() > until => break None,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
            if since.elapsed() > HELP {
                since = Instant::now();
                help(&self.server);
            }
        };
        self.load.is_down();
        self.server.verify();
        status.and_then(|status| status.signal())
    }

    /// Lets clients start more runs.
    pub fn allow_more(&self) -> impl Fn() + use<> {
        let load = self.load.clone();
        move || {
            load.runs_max.fetch_add(RUNS_PER_KILL / 4, Ordering::Relaxed);
        }
    }

    /// Stops the load, answers every open wait, and waits for every run to end.
    pub fn finish(self) -> (Server, Journal) {
        let Driver { mut server, load, clients, .. } = self;
        load.is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client does not fail");
        }
        eventually("every run ends (I13)", || {
            load.answer_all(&server);
            load.tend_all(&server);
            server.list("/api/v1/runs?status=pending,running,waiting,compensating,cancelling").is_empty().then_some(())
        });
        assert!(server.list("/api/v1/runs").iter().all(is_terminal));
        // Restarted once more, so that the check reads only what is on disk.
        server.crash_and_restart();
        let load = Arc::into_inner(load).expect("the clients have ended");
        (server, load.journal)
    }
}

/// The flags of a server that will be killed. What steps send must not change with the port, and the port must not go
/// to another server while clients still call it.
pub fn flags(more: &[&str]) -> Vec<String> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (process, server) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let listen = format!("127.{}.{}.{}:0", 1 + process % 250, server / 250, 1 + server % 250);
    let flags = ["--public-url", "http://hooks.test", "--listen", &listen];
    flags.iter().chain(more).map(|flag| (*flag).to_owned()).collect()
}

impl Load {
    fn is_down(&self) {
        *self.api.lock().unwrap() = None;
    }

    fn is_up(&self, api: Api) {
        *self.api.lock().unwrap() = Some(api);
    }

    fn work(&self, mut rng: Rng) {
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5 + rng.below(40)));
            let Some(api) = *self.api.lock().unwrap() else { continue };
            match rng.below(12) {
                0..=5 => self.start_new(api, &mut rng),
                6 => self.start_again(api, &mut rng),
                7..=8 => self.call_back(api, &mut rng),
                9..=10 => self.tend(api, &mut rng),
                _ => self.cancel(api, &mut rng),
            }
        }
    }

    fn start_new(&self, api: Api, rng: &mut Rng) {
        if self.next_key.load(Ordering::Relaxed) < self.runs_max.load(Ordering::Relaxed) {
            let (name, _) = rng.pick(WORKFLOWS);
            let number = self.next_key.fetch_add(1, Ordering::Relaxed);
            self.start(api, format!("{name}-{number}"));
        }
    }

    /// Repeats an earlier start request: one that was answered, or one whose outcome is unknown.
    fn start_again(&self, api: Api, rng: &mut Rng) {
        let starts = self.journal.starts();
        let unknown: Vec<&(String, Told)> = starts.iter().filter(|(_, outcome)| *outcome == Told::Unknown).collect();
        let chosen = match (unknown.is_empty(), starts.is_empty()) {
            (false, _) => unknown[rng.below(unknown.len() as u64) as usize],
            (true, false) => &starts[rng.below(starts.len() as u64) as usize],
            (true, true) => return,
        };
        self.start(api, chosen.0.clone());
    }

    /// The key begins with the name of the workflow: `nap-17`.
    fn start(&self, api: Api, key: String) {
        let workflow = key.split('-').next().expect("a name");
        let line = self.journal.ask(Request::Start { key: key.clone() });
        let body = json!({ "key": key }).to_string();
        let answer =
            api.write(&format!("/api/v1/workflows/{workflow}/trigger"), &[("Idempotency-Key", &key)], body.as_bytes());
        self.journal.note(line, outcome(answer, |data| data["run_id"].as_str().expect("a run id").to_owned()));
    }

    /// Sends a callback to a run that has announced its URL, perhaps not the first one.
    fn call_back(&self, api: Api, rng: &mut Rng) {
        let asked = (self.asked)();
        if !asked.is_empty() {
            let effect = &asked[rng.below(asked.len() as u64) as usize];
            self.answer(api, effect, rng);
        }
    }

    fn answer(&self, api: Api, effect: &Effect, rng: &mut Rng) {
        let (run, _) = effect.origin();
        let url = effect.json()["url"].as_str().expect("a URL").to_owned();
        let payload = json!({ "n": rng.below(3) }).to_string();
        let line = self.journal.ask(Request::Callback { run: run.to_owned(), payload: payload.clone() });
        let answer = api.write(&url[url.find("/wh/").expect("a callback URL")..], &[], payload.as_bytes());
        self.journal.note(line, outcome(answer, |_| String::new()));
    }

    fn answer_all(&self, server: &Server) {
        let mut rng = Rng::new(0);
        let waiting = server.list("/api/v1/runs?workflow=door&status=waiting");
        let asked: HashMap<String, Effect> = (self.asked)().into_iter().map(|e| (e.origin().0.to_owned(), e)).collect();
        for run in waiting {
            if let Some(effect) = asked.get(run["id"].as_str().expect("an id")) {
                self.answer(**server, effect, &mut rng);
            }
        }
    }

    /// A recent run of a workflow whose name begins so: it may still be open.
    fn recent(&self, workflow: &str, rng: &mut Rng) -> Option<String> {
        let of_workflow = |(key, outcome): &(String, Told)| match outcome {
            Told::Ok(run) if key.starts_with(workflow) => Some(run.clone()),
            _ => None,
        };
        let runs: Vec<String> = self.journal.starts().iter().rev().filter_map(of_workflow).take(20).collect();
        (!runs.is_empty()).then(|| runs[rng.below(runs.len() as u64) as usize].clone())
    }

    /// Gives a signal to a run, or decides or resumes what it waits for, perhaps too early or again.
    fn tend(&self, api: Api, rng: &mut Rng) {
        if rng.one_in(4) {
            return self.recent("mended", rng).into_iter().for_each(|run| self.retry(api, run));
        }
        if rng.one_in(2) {
            let workflow = if rng.one_in(2) { "told" } else { "gate" };
            return self.recent(workflow, rng).into_iter().for_each(|run| self.decide(api, run, rng.one_in(2)));
        }
        let Some(run) = self.recent("asks", rng) else { return };
        match rng.below(3) {
            0 => self.signal(api, run, &format!("k{}", rng.below(3))),
            1 => self.ask_for(api, run, "approve"),
            _ => self.ask_for(api, run, "resume"),
        }
    }

    /// The body of a signal follows from its key.
    fn signal(&self, api: Api, run: String, key: &str) {
        let path = format!("/api/v1/runs/{run}/signals/paid");
        let line = self.journal.ask(Request::Signal { run, key: key.to_owned() });
        let answer = api.write(&path, &[("Idempotency-Key", key)], json!({ "key": key }).to_string().as_bytes());
        self.journal.note(line, outcome(answer, |_| String::new()));
    }

    /// `approve` or `resume`.
    fn ask_for(&self, api: Api, run: String, verb: &'static str) {
        let path = format!("/api/v1/runs/{run}/{verb}");
        let step = if verb == "approve" { "review" } else { "hold" };
        let line = self.journal.ask(Request::Continue { run, step });
        let answer = api.write(&path, &[], json!({ "actor": "ada", "step": step }).to_string().as_bytes());
        self.journal.note(line, outcome(answer, |_| String::new()));
    }

    fn decide(&self, api: Api, run: String, approves: bool) {
        let path = format!("/api/v1/runs/{run}/{}", if approves { "approve" } else { "reject" });
        let line = self.journal.ask(Request::Decide { run, approves });
        let answer = api.write(&path, &[], json!({ "actor": "ada", "step": "ask" }).to_string().as_bytes());
        self.journal.note(line, outcome(answer, |_| String::new()));
    }

    /// Goes on with a run, if it has failed.
    fn retry(&self, api: Api, run: String) {
        let path = format!("/api/v1/runs/{run}/retry");
        let line = self.journal.ask(Request::Retry { run });
        let answer = api.write(&path, &[], b"{}");
        self.journal.note(line, outcome(answer, |_| String::new()));
    }

    fn tend_all(&self, server: &Server) {
        for run in server.list("/api/v1/runs?workflow=mended&status=failed") {
            self.retry(**server, run["id"].as_str().expect("an id").to_owned());
        }
        for workflow in ["told", "gate"] {
            for (number, run) in
                server.list(&format!("/api/v1/runs?workflow={workflow}&status=waiting")).iter().enumerate()
            {
                self.decide(**server, run["id"].as_str().expect("an id").to_owned(), number.is_multiple_of(2));
            }
        }
        for run in server.list("/api/v1/runs?workflow=asks&status=waiting") {
            let id = run["id"].as_str().expect("an id").to_owned();
            match server.run(&id)["waiting_for"][0]["kind"].as_str() {
                Some("signal") => self.signal(**server, id, "last"),
                Some("approval") => self.ask_for(**server, id, "approve"),
                Some("pause") => self.ask_for(**server, id, "resume"),
                _ => {}
            }
        }
    }

    fn cancel(&self, api: Api, rng: &mut Rng) {
        let Some(run) = self.recent("", rng) else { return };
        let line = self.journal.ask(Request::Cancel { run: run.clone() });
        let answer = api.write(&format!("/api/v1/runs/{run}/cancel"), &[], b"{}");
        self.journal.note(line, self::outcome(answer, |_| String::new()));
    }
}

/// An answer as the log keeps it. Without a whole answer the outcome is unknown, and a 503 may say that it is unknown,
/// too.
fn outcome(answer: Result<Answer, bool>, ok: impl Fn(&Value) -> String) -> Told {
    match answer {
        Ok(answer) if matches!(answer.status, 200 | 201) => Told::Ok(ok(&answer.json()["data"])),
        Ok(answer) if answer.json()["error"]["outcome"] == "unknown" => Told::Unknown,
        Ok(answer) => Told::No(answer.status),
        Err(true) => Told::Unknown,
        Err(false) => Told::No(0),
    }
}
