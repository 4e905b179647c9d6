//! The checks after the kill loop: compares the stored runs with the clients' log and the upstream's requests.

use super::driver::NAP;
use super::journal::{Journal, Request, Told};
use crate::harness::{Effect, Server, Upstream, micros};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

type Runs = BTreeMap<String, Value>;
/// The upstream's requests by run and step.
type Effects = BTreeMap<(String, String), Vec<Effect>>;

/// How much must have happened for the check to prove anything.
pub struct Load {
    /// At least this many writes were acknowledged.
    pub acked: usize,
    /// At least this many steps were interrupted.
    pub interrupted: usize,
    /// Whether the engine uses the same clock as the upstream.
    pub is_time_real: bool,
}

/// Totals of what was checked.
#[derive(Default)]
pub struct Summary {
    pub runs: usize,
    pub acked: usize,
    pub unknown: usize,
    pub effects: usize,
    pub interrupted: usize,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.runs += other.runs;
        self.acked += other.acked;
        self.unknown += other.unknown;
        self.effects += other.effects;
        self.interrupted += other.interrupted;
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Summary { runs, acked, unknown, effects, interrupted } = self;
        write!(f, "{runs} runs, {acked} acked, {unknown} unknown, {effects} effects ({interrupted} interrupted), ")?;
        // `check` panics otherwise.
        write!(f, "lost 0, doubled 0, stuck 0, early 0")
    }
}

/// Panics at the first broken promise.
pub fn check(server: &Server, upstream: &Upstream, journal: &Journal, expected: &Load) -> Summary {
    let ids = server.list("/api/v1/runs");
    let runs: Runs = ids
        .iter()
        .map(|run| run["id"].as_str().expect("an id").to_owned())
        .map(|id| (id.clone(), server.run(&id)))
        .collect();
    assert_eq!(runs.len(), ids.len(), "a list names each run once");
    let mut effects = Effects::new();
    let mut count = 0;
    for effect in upstream.effects() {
        let (run, step) = effect.origin();
        assert_eq!(effect.header("x-onward-run"), run);
        assert!(runs.contains_key(run), "I35: an effect of a run that does not exist: {effect:?}");
        effects.entry((run.to_owned(), step.to_owned())).or_default().push(effect);
        count += 1;
    }
    let (acked, unknown) = starts_agree(&runs, journal);
    callbacks_agree(&runs, journal);
    cancels_agree(&runs, journal);
    children_agree(&runs);
    let mut interrupted = 0;
    for (id, run) in &runs {
        let events = server.events(id);
        interrupted += events.iter().filter(|e| e["type"] == "step.retrying" && e["data"]["charged"] == false).count();
        history_is_valid(run, &events);
        signals_agree(id, run, &events, journal);
        decisions_agree(id, run, &events, journal);
        results_agree(id, run, &events);
        undos_agree(id, run, &events, &effects);
        retries_agree(id, run, &events, &effects, journal);
        steps_agree(id, run, &events, &effects, expected.is_time_real);
    }
    assert!(acked >= expected.acked, "too little load: only {acked} writes were acknowledged");
    assert!(interrupted >= expected.interrupted, "too little load: only {interrupted} running steps were interrupted");
    Summary { runs: runs.len(), acked, unknown, effects: count, interrupted }
}

/// I1–I3, I24: acked ⊆ final ⊆ acked ∪ unknown, and one run per key.
fn starts_agree(runs: &Runs, journal: &Journal) -> (usize, usize) {
    let mut by_key: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, run) in runs.iter().filter(|(_, run)| run["parent"].is_null()) {
        let key = run["input"]["key"].as_str().expect("its key");
        let other = by_key.insert(key, id);
        assert_eq!(other, None, "two runs of one key `{key}`");
    }
    let starts = journal.starts();
    for (key, outcome) in &starts {
        match outcome {
            Told::Ok(run) => assert_eq!(by_key.get(key.as_str()), Some(&run.as_str()), "lost or changed: `{key}`"),
            Told::No(status) => assert!(matches!(status, 0 | 503), "`{key}` was refused with {status}"),
            Told::Unknown => {}
        }
    }
    for key in by_key.keys() {
        let allowed = starts.iter().any(|(k, outcome)| k == key && !matches!(outcome, Told::No(_)));
        assert!(allowed, "a run of a start that was refused: `{key}`");
    }
    (journal.acked(), journal.lines().iter().filter(|line| line.outcome == Told::Unknown).count())
}

/// I26: the stored payload is the accepted one.
fn callbacks_agree(runs: &Runs, journal: &Journal) {
    let mut accepted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut possible: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in journal.lines() {
        let Request::Callback { run, payload } = line.request else { continue };
        match line.outcome {
            Told::Ok(_) => {
                accepted.entry(run.clone()).or_default().insert(payload.clone());
                possible.entry(run).or_default().insert(payload);
            }
            Told::Unknown => drop(possible.entry(run).or_default().insert(payload)),
            Told::No(status) => assert!(matches!(status, 0 | 409 | 410 | 503), "a callback was refused with {status}"),
        }
    }
    for (run, payloads) in &accepted {
        assert_eq!(payloads.len(), 1, "{run}: two payloads were accepted: {payloads:?}");
        let door = &runs[run]["tasks"]["door"];
        // A run that was cancelled before its wait opened does not show the callback.
        if runs[run]["status"] != "cancelled" {
            assert_eq!(door["status"], "received", "{run}: an accepted callback is lost");
        }
    }
    for (id, run) in runs.iter().filter(|(_, run)| run["tasks"]["door"]["status"] == "received") {
        let stored = &run["tasks"]["door"]["body"];
        let same = |payload: &String| payload.parse::<Value>().is_ok_and(|p| p == *stored);
        let allowed = accepted.get(id).or(possible.get(id)).is_some_and(|payloads| payloads.iter().any(same));
        assert!(allowed, "{id}: {stored} is not what was accepted: {:?}", accepted.get(id));
    }
}

/// P10: a cancelled run stays cancelled; a run whose cancel was refused had ended.
fn cancels_agree(runs: &Runs, journal: &Journal) {
    for line in journal.lines() {
        let Request::Cancel { run } = line.request else { continue };
        match line.outcome {
            Told::Ok(_) => assert_eq!(runs[&run]["status"], "cancelled", "{run}: a cancel was lost"),
            // A run that had failed may have been retried since, and cancelled then.
            Told::No(409) if runs[&run]["workflow"] == "mended" => {}
            Told::No(409) => assert_ne!(runs[&run]["status"], "cancelled", "{run}: cancelled after it had ended"),
            Told::No(status) => assert!(matches!(status, 0 | 503), "a cancel was refused with {status}"),
            Told::Unknown => {}
        }
    }
    let cancel_requests: BTreeSet<String> = journal
        .lines()
        .into_iter()
        .filter_map(|line| match line.request {
            Request::Cancel { run } => Some(run),
            _ => None,
        })
        .collect();
    for (id, run) in runs.iter().filter(|(_, run)| run["parent"].is_null()) {
        // M22: nothing in this workflow handles a denial.
        let is_denied = run["workflow"] == "gate" && run["tasks"]["ask"]["status"] == "failed";
        let expected = match (is_denied, cancel_requests.contains(id)) {
            // Its last step fails, unless it is cancelled before.
            (_, false) if run["workflow"] == "undo" => &["failed"][..],
            (_, true) if run["workflow"] == "undo" => &["failed", "cancelled"],
            (true, _) => &["cancelled"],
            (false, true) => &["completed", "cancelled"],
            (false, false) => &["completed"],
        };
        assert!(expected.contains(&run["status"].as_str().expect("a status")), "{id} is {}: {run:#}", run["status"]);
    }
}

/// M17–M19: each attempt at the step of a parent has one child, which has ended as its parent says, and goes on without
/// it only if the step says so.
fn children_agree(runs: &Runs) {
    let mut by_parent: BTreeMap<(&str, &str, u64), &Value> = BTreeMap::new();
    for (id, run) in runs.iter().filter(|(_, run)| !run["parent"].is_null()) {
        let link = &run["parent"];
        let parent = link["run_id"].as_str().expect("a run");
        let step = link["step"].as_str().expect("a key");
        let other = by_parent.insert((parent, step, link["attempt"].as_u64().expect("a number")), run);
        assert!(other.is_none(), "two children of one attempt: {link}");
        let of = runs.get(parent).unwrap_or_else(|| panic!("{id} has a parent that does not exist: {link}"));
        assert_eq!(of["input"]["key"], run["input"]["key"], "{id} has the input of another run's child");
        let has_completed = of["status"] == "completed";
        let expected = match step {
            // It is left alone, however the parent ends.
            "left" => &["completed"][..],
            "closed" => &["completed", "cancelled"],
            _ if has_completed => &["completed"],
            // It may have ended before its parent was cancelled.
            _ => &["completed", "cancelled"],
        };
        let status = run["status"].as_str().expect("a status");
        assert!(expected.contains(&status), "{id} is {status}, its parent {}: {link}", of["status"]);
        assert_eq!(link["detached"], json!(matches!(step, "left" | "closed")), "{link}");
    }
    let child_of = |id: &str, step: &str| -> &Value {
        by_parent.get(&(id, step, 1)).unwrap_or_else(|| panic!("{id} completed without the child of `{step}`"))
    };
    for (id, run) in runs.iter().filter(|(_, run)| run["status"] == "completed") {
        let body = |step: &str| &run["tasks"][step]["body"];
        match run["workflow"].as_str().expect("a name") {
            "parent" => {
                let child = child_of(id, "call");
                assert_eq!(*body("call"), child["output"], "{id} has another output than its child");
                assert_eq!(child["output"]["of"], run["input"]["key"]);
            }
            "many" => {
                let outputs: Vec<&Value> = (0..3).map(|i| &child_of(id, &format!("all[{i}]/sub"))["output"]).collect();
                assert_eq!(*body("all"), json!(outputs), "{id} has other results than its children");
                assert!(outputs.iter().all(|output| output["of"] == run["input"]["key"]), "{id}: {outputs:?}");
            }
            "spawn" => {
                assert_eq!(body("left")["run_id"], child_of(id, "left")["id"], "{id}: {run:#}");
                child_of(id, "closed");
            }
            _ => {}
        }
    }
}

/// M20, M22: an accepted signal was received once, one of them was read, and each wait ended once.
fn signals_agree(id: &str, run: &Value, events: &[Value], journal: &Journal) {
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    let received = count("signal.received");
    let (mut accepted, mut possible) = (BTreeSet::new(), BTreeSet::new());
    for line in journal.lines() {
        match (line.request, line.outcome) {
            (Request::Signal { run, key }, outcome) if run == id => {
                match outcome {
                    Told::Ok(_) => drop(accepted.insert(key.clone())),
                    Told::Unknown => {}
                    Told::No(status) => {
                        assert!(matches!(status, 0 | 409 | 503), "{id}: a signal was refused with {status}");
                        continue;
                    }
                }
                possible.insert(key);
            }
            (Request::Continue { run: of, step }, Told::Ok(_)) if of == id => {
                let status = &run["tasks"][step]["status"];
                assert!(status == "success", "{id}: `{step}` was continued and is {status}");
            }
            _ => {}
        }
    }
    let bounds = accepted.len()..=possible.len();
    assert!(bounds.contains(&received), "{id}: {received} signals were received, expected {bounds:?}");
    if run["workflow"] == "asks" && run["status"] == "completed" {
        assert_eq!(count("signal.consumed"), 1, "{id}: {events:#?}");
        assert_eq!((count("approval.approved"), count("approval.denied")), (1, 0), "{id}: {events:#?}");
        let read = run["tasks"]["paid"]["body"]["key"].as_str().expect("its key");
        assert!(possible.contains(read), "{id}: the signal `{read}` was never sent");
        assert_eq!(run["unread_signals"]["paid"].as_u64().unwrap_or(0), received as u64 - 1, "{id}");
    }
}

/// M22: a gate is decided once, as everyone who decided was told, and what follows is what the decision asks for.
fn decisions_agree(id: &str, run: &Value, events: &[Value], journal: &Journal) {
    if !matches!(run["workflow"].as_str(), Some("told" | "gate")) {
        return;
    }
    let told: BTreeSet<bool> = journal
        .lines()
        .into_iter()
        .filter_map(|line| match (line.request, line.outcome) {
            (Request::Decide { run, approves }, Told::Ok(_)) if run == id => Some(approves),
            (Request::Decide { run, .. }, Told::No(status)) if run == id => {
                assert!(matches!(status, 0 | 409 | 503), "{id}: a decision was refused with {status}");
                None
            }
            _ => None,
        })
        .collect();
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    let (approved, denied) = (count("approval.approved"), count("approval.denied"));
    assert!(approved + denied <= 1, "{id}: decided twice: {events:#?}");
    for approves in &told {
        assert_eq!((approved, denied), if *approves { (1, 0) } else { (0, 1) }, "{id}: {told:?} was accepted");
    }
    let status = |step: &str| run["tasks"][step]["status"].as_str().expect("a status");
    if approved + denied == 1 {
        assert_eq!(status("ask"), if approved == 1 { "success" } else { "failed" }, "{id}");
    }
    if run["workflow"] == "told" && run["status"] == "completed" {
        let expected = if approved == 1 { ("success", "skipped") } else { ("skipped", "success") };
        assert_eq!((status("yes"), status("no")), expected, "{id}: {run:#}");
    }
    if run["workflow"] == "gate" && denied == 1 {
        let last = events.iter().rfind(|event| event["type"] == "run.cancelled").expect("its end");
        let is_cancelled = last["data"]["reason"] == "approval_denied" || status("other") == "cancelled";
        assert!(is_cancelled && status("end") != "success", "{id}: {events:#?}");
    }
}

/// M25, I29: what succeeded is undone once each, the latest first, if the run failed; a plain cancellation undoes nothing.
fn undos_agree(id: &str, run: &Value, events: &[Value], effects: &Effects) {
    if run["workflow"] != "undo" {
        return;
    }
    let nothing = Vec::new();
    let undos = |step: &str| effects.get(&(id.to_owned(), format!("{step}/compensate"))).unwrap_or(&nothing);
    let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    if run["status"] == "cancelled" {
        assert_eq!((count("compensation.started"), undos("hold").len() + undos("book").len()), (0, 0), "{id}: {run:#}");
        return;
    }
    let steps: Vec<&Value> = run["recovery"]["steps"].as_array().expect("steps").iter().map(|s| &s["step"]).collect();
    assert_eq!(steps, ["hold", "book"], "{id}: {run:#}");
    assert_eq!(run["recovery"]["status"], "completed", "{id}: {run:#}");
    assert_eq!((count("compensation.started"), count("compensation.succeeded")), (2, 2), "{id}: {events:#?}");
    for step in ["hold", "book"] {
        let numbers: BTreeSet<u32> = undos(step).iter().map(Effect::attempt).collect();
        assert_eq!(numbers.len(), undos(step).len(), "{id}: doubled: one attempt to undo `{step}` was sent twice");
        assert!(!numbers.is_empty(), "{id}: `{step}` was never undone");
    }
    let last = undos("hold").iter().map(|effect| effect.at).max();
    let first = undos("book").iter().map(|effect| effect.at).min();
    assert!(last <= first, "{id}: `book` was undone before `hold`");
}

/// M28, M29: a run goes on only if that was asked for, and nothing that had succeeded runs again; what failed keeps its key.
fn retries_agree(id: &str, run: &Value, events: &[Value], effects: &Effects, journal: &Journal) {
    let retried = events.iter().filter(|event| event["type"] == "run.retried").count();
    let asked = journal.lines().into_iter().filter(|line| {
        line.request == Request::Retry { run: id.to_owned() } && matches!(line.outcome, Told::Ok(_) | Told::Unknown)
    });
    assert!(retried <= asked.count(), "{id}: retried {retried} times: {events:#?}");
    if run["workflow"] != "mended" {
        return;
    }
    let count = |kind: &str, step: &str| events.iter().filter(|e| e["type"] == kind && e["step"] == step).count();
    assert!(count("step.succeeded", "pay") <= 1, "{id}: `pay` ran again: {events:#?}");
    for effect in
        ["pay", "mend", "end"].iter().flat_map(|step| effects.get(&(id.to_owned(), (*step).to_owned()))).flatten()
    {
        let (_, step) = effect.origin();
        assert_eq!(effect.header("idempotency-key"), format!("{id}:{step}"), "{id}: another key");
    }
}

/// M11–M14, M16: the results of groups and loops, and what a first-join waited for.
fn results_agree(id: &str, run: &Value, events: &[Value]) {
    if run["status"] != "completed" {
        return;
    }
    let body = |step: &str| &run["tasks"][step]["body"];
    match run["workflow"].as_str().expect("a name") {
        "each" => assert_eq!(*body("all"), json!([0, 1, 2, 3]), "{id}: {run:#}"),
        "group" => assert_eq!(*body("box"), json!({ "of": run["input"]["key"] }), "{id}: {run:#}"),
        "while" => {
            let last = |n: u64| if n == 0 { json!("none") } else { json!(n - 1) };
            let expected: Vec<Value> = (0..4).map(|n| json!({ "n": n, "last": last(n) })).collect();
            assert_eq!(*body("poll"), json!(expected), "{id}: {run:#}");
        }
        "first" => {
            let place = |kind: &str, step: &str| events.iter().position(|e| e["type"] == kind && e["step"] == step);
            let ended = ["near", "far"].map(|step| place("step.succeeded", step).expect("both have ended"));
            let started = place("step.started", "won").expect("it ran");
            assert!(started > ended[0].min(ended[1]), "{id}: it started before a link was taken: {events:#?}");
        }
        _ => {}
    }
}

/// I6, I7, I8, I28, I39. (That numbers have no gaps was checked when they were read.)
fn history_is_valid(run: &Value, events: &[Value]) {
    // I6: only a note about a late result may follow the end.
    let last = events.iter().rfind(|e| e["type"] != "late_result").expect("events")["type"].as_str().expect("a type");
    assert_eq!(
        last,
        format!("run.{}", run["status"].as_str().expect("a status")),
        "nothing follows the end: {events:#?}"
    );
    assert!(events.windows(2).all(|w| micros(&w[0]["at"]) <= micros(&w[1]["at"])), "time runs forward: {events:#?}");
    let steps: BTreeSet<&str> = events.iter().filter_map(|event| event["step"].as_str()).collect();
    // A retry opens again what had ended.
    let since = events.iter().rposition(|event| event["type"] == "run.retried").unwrap_or(0);
    for step in steps {
        let view = &run["tasks"][step];
        let ends = ["step.succeeded", "step.received", "step.failed", "step.timeout", "step.skipped", "step.cancelled"];
        let is_end = |e: &&Value| e["step"] == step && ends.iter().any(|kind| e["type"] == *kind);
        let ended = events[since..].iter().filter(is_end).count();
        assert!(ended <= 1, "`{step}` ended {ended} times: {events:#?}");
        let attempts: Vec<u64> = events
            .iter()
            .filter(|e| e["type"] == "step.started" && e["step"] == step)
            // The start of a loop is not an attempt.
            .filter_map(|e| e["attempt"].as_u64())
            .collect();
        assert_eq!(attempts, (1..=attempts.len() as u64).collect::<Vec<_>>(), "`{step}`: attempts count up");
        if matches!(view["type"].as_str(), Some("http" | "noop")) {
            assert_eq!(view["attempt"], attempts.len(), "`{step}`");
        }
        if let Some(set) = events.iter().find(|e| e["type"] == "timer.set" && e["step"] == step)
            && view["status"] == "success"
        {
            assert_eq!(micros(&set["data"]["wake_at"]) - micros(&set["at"]), NAP.as_micros() as i64);
            assert!(micros(&view["finished_at"]) >= micros(&set["data"]["wake_at"]), "I19: early: {events:#?}");
        }
    }
}

/// P2: every successful step sent its request, under one key, and sent nothing after it had ended.
fn steps_agree(id: &str, run: &Value, events: &[Value], effects: &Effects, is_time_real: bool) {
    let nothing = Vec::new();
    let effects_of = |step: &str| effects.get(&(id.to_owned(), step.to_owned())).unwrap_or(&nothing);
    let needs: BTreeMap<&str, &[&str]> = match run["workflow"].as_str().expect("a name") {
        "join" => BTreeMap::from([("join", &["a", "b"][..]), ("end", &["join"])]),
        "flaky" => BTreeMap::from([("end", &["try"][..])]),
        "nap" => BTreeMap::from([("after", &["before"][..])]),
        "door" => BTreeMap::from([("end", &["ask"][..])]),
        "group" => BTreeMap::from([("box/again", &["box/call"][..]), ("end", &["box/again"])]),
        "first" => BTreeMap::from([("end", &["won"][..])]),
        "while" => BTreeMap::from([
            ("poll[1]/call", &["poll[0]/call"][..]),
            ("poll[2]/call", &["poll[1]/call"]),
            ("poll[3]/call", &["poll[2]/call"]),
            ("end", &["poll[3]/call"]),
        ]),
        _ => BTreeMap::new(),
    };
    for (step, view) in http_steps(run, events) {
        let found = effects_of(&step);
        let recorded = view["attempt"].as_u64().expect("a number");
        let numbers: BTreeSet<u32> = found.iter().map(Effect::attempt).collect();
        assert_eq!(numbers.len(), found.len(), "{id} `{step}`: doubled: one attempt was sent twice");
        // I35, I28: every request was recorded before it was sent, so nothing starts after a cancel.
        assert!(
            numbers.iter().all(|n| (1..=recorded).contains(&u64::from(*n))),
            "{id} `{step}`: {numbers:?} of {recorded}"
        );
        assert_eq!(
            found.iter().map(|e| &e.body).collect::<BTreeSet<_>>().len().max(1),
            1,
            "{id} `{step}`: bodies differ"
        );
        if view["status"] == "success" {
            let success = events.iter().find(|e| e["type"] == "step.succeeded" && e["step"] == step.as_str());
            let last = success.expect("its event")["attempt"].as_u64().expect("a number");
            assert!(numbers.contains(&(last as u32)), "{id} `{step}`: a success without its request");
            assert_eq!(last, recorded, "{id} `{step}`: executed again after its success");
        }
        for need in *needs.get(step.as_str()).unwrap_or(&&[][..]) {
            let first = found.iter().map(|e| e.at).min();
            let last_of_need = effects_of(need).iter().max_by_key(|e| e.attempt()).map(|e| e.at);
            if let (Some(first), Some(last)) = (first, last_of_need) {
                assert!(last <= first, "{id}: `{need}` was executed after `{step}`, which needs it, had begun");
            }
            if run["workflow"] == "nap"
                && is_time_real
                && let (Some(first), Some(last)) = (first, last_of_need)
            {
                // The sleep between them, by the upstream's own clock, with a tolerance for reading it.
                assert!(
                    first - last + std::time::Duration::from_millis(5) >= NAP,
                    "{id}: woke after {:?}",
                    first - last
                );
            }
        }
    }
}

/// The steps that send requests, those of the root as the run shows them and inner ones as its events do.
fn http_steps(run: &Value, events: &[Value]) -> Vec<(String, Value)> {
    let of_root = run["tasks"].as_object().expect("steps").iter().filter(|(_, view)| view["type"] == "http");
    let mut steps: Vec<(String, Value)> = of_root.map(|(step, view)| (step.clone(), view.clone())).collect();
    let of_step = |kind: &str, step: &str| events.iter().filter(|e| e["type"] == kind && e["step"] == step).count();
    for opened in events.iter().filter(|event| event["type"] == "step.opened") {
        let step = opened["step"].as_str().expect("a key");
        if step.ends_with("/call") || step.ends_with("/again") {
            let status = if of_step("step.succeeded", step) == 1 { "success" } else { "cancelled" };
            steps.push((step.to_owned(), json!({ "attempt": of_step("step.started", step), "status": status })));
        }
    }
    steps
}
