//! The report, for people (a line for each case, what differed and why), scripts (JSON) and build servers (JUnit).
//!
//! Results go to standard output as they come. Problems of files go to standard error, in the format of
//! `onward validate`.

use super::CaseOutcome;
use super::coverage::Coverage;
use super::files::{FileFailure, LoadedSuite};
use super::judge::{Mismatch, shown};
use super::play::Story;
use crate::{problems, validate};
use engine::services::StoredEvent;
use kernel::Event;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

pub struct TestReport {
    is_json: bool,
    is_verbose: bool,
    pub passed: usize,
    pub failed: usize,
    /// Files that could not be used.
    pub broken: usize,
    files: usize,
    suites: Vec<JunitSuite>,
}

struct JunitSuite {
    file: String,
    /// Name, seconds, and what differed.
    cases: Vec<(String, f64, Option<String>)>,
}

impl TestReport {
    pub fn new(is_json: bool, is_verbose: bool) -> TestReport {
        TestReport { is_json, is_verbose, passed: 0, failed: 0, broken: 0, files: 0, suites: Vec::new() }
    }

    /// A file that cannot be used.
    pub fn broken(&mut self, failure: &FileFailure) {
        self.broken += 1;
        let (path, text, listed) = match failure {
            FileFailure::Words { path, message } => {
                if !self.is_json {
                    eprintln!("error: {}: {message}", path.display());
                }
                (path, message.clone(), vec![json!({ "message": message })])
            }
            FileFailure::Problems { path, source, problems: found } => {
                if !self.is_json {
                    let shown: Vec<problems::Shown> = found.iter().map(Into::into).collect();
                    problems::show(&path.display().to_string(), &String::from_utf8_lossy(source), &shown);
                }
                let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
                (path, lines.join("\n"), found.iter().map(validate::problem_json).collect())
            }
        };
        let file = path.display().to_string();
        if self.is_json {
            print(&format!("{}\n", json!({ "file": file, "problems": listed })));
        }
        self.suites.push(JunitSuite { file, cases: vec![("the file can be used".into(), 0.0, Some(text))] });
    }

    pub fn begin(&mut self, loaded: &LoadedSuite, cases: usize) {
        if cases == 0 {
            return;
        }
        self.files += 1;
        self.suites.push(JunitSuite { file: loaded.name(), cases: Vec::new() });
        if !self.is_json {
            print(&format!("{}\n", loaded.name()));
        }
    }

    pub fn add(&mut self, loaded: &LoadedSuite, outcome: CaseOutcome) {
        let has_passed = outcome.mismatches.is_empty();
        *if has_passed { &mut self.passed } else { &mut self.failed } += 1;
        match self.is_json {
            true => print(&format!("{}\n", self.as_json(loaded, &outcome))),
            false => print(&self.as_text(loaded, &outcome)),
        }
        if let Some(suite) = self.suites.last_mut() {
            let lines = outcome.mismatches.iter().map(|mismatch| line(loaded, mismatch));
            let text = (!has_passed).then(|| lines.collect::<Vec<_>>().join("\n"));
            suite.cases.push((outcome.case.name, outcome.took.as_secs_f64(), text));
        }
    }

    pub fn cover(&self, coverage: &Coverage) {
        for (path, covered) in &coverage.definitions {
            let file = path.display().to_string();
            let ran = covered.steps - covered.never_ran.len();
            if self.is_json {
                let fields = json!({
                    "definition": file, "steps": covered.steps, "ran": ran,
                    "never_ran": covered.never_ran, "never_skipped": covered.never_skipped,
                });
                print(&format!("{}\n", json!({ "coverage": fields })));
                continue;
            }
            let mut text = format!("coverage of {file}: {ran} of {} steps ran\n", covered.steps);
            for (what, steps) in [("never ran", &covered.never_ran), ("condition never false", &covered.never_skipped)]
            {
                if !steps.is_empty() {
                    let _ = writeln!(text, "  {what}: {}", steps.join(", "));
                }
            }
            print(&text);
        }
    }

    pub fn end(&self, took: Duration) {
        let total = self.passed + self.failed;
        if self.is_json || total == 0 {
            return;
        }
        let several = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let mut text = format!("{} in {}: {} passed", several(total, "case"), several(self.files, "file"), self.passed);
        if self.failed > 0 {
            let _ = write!(text, ", {} failed", self.failed);
        }
        if self.broken > 0 {
            let _ = write!(text, "; {} cannot be used", several(self.broken, "file"));
        }
        print(&format!("{text} ({} ms)\n", took.as_millis()));
    }

    fn as_text(&self, loaded: &LoadedSuite, outcome: &CaseOutcome) -> String {
        let word = if outcome.mismatches.is_empty() { "ok    " } else { "FAILED" };
        let mut out = format!("  {word}  {}", outcome.case.name);
        let _ = match &outcome.story {
            Some(story) => writeln!(out, " ({} in {} ms)", story.took().readable(), outcome.took.as_millis()),
            None => writeln!(out),
        };
        for mismatch in &outcome.mismatches {
            let _ = writeln!(out, "          {}", line(loaded, mismatch));
            if let Some(hint) = &mismatch.hint {
                let _ = writeln!(out, "            help: {hint}");
            }
        }
        if let (Some(story), false) = (&outcome.story, outcome.mismatches.is_empty()) {
            let _ = writeln!(out, "          why: {}", shown(&story.why));
        }
        if let (Some(story), true) = (&outcome.story, self.is_verbose) {
            let lines = events(story).into_iter().chain(requests(story));
            for line in lines {
                let _ = writeln!(out, "          {line}");
            }
        }
        out
    }

    fn as_json(&self, loaded: &LoadedSuite, outcome: &CaseOutcome) -> Value {
        let place = |at: usize| {
            let (line, column) = loaded.tree.place(at);
            json!({ "line": line, "column": column })
        };
        let mismatch = |m: &Mismatch| {
            json!({
                "what": m.what, "expected": m.expected, "got": m.got, "hint": m.hint, "at": m.at.map(place),
            })
        };
        let mut object = json!({
            "file": loaded.name(),
            "case": outcome.case.name,
            "at": place(outcome.case.at),
            "passed": outcome.mismatches.is_empty(),
            "failures": outcome.mismatches.iter().map(mismatch).collect::<Vec<_>>(),
            "run": outcome.story.as_ref().map(run),
            "why": outcome.story.as_ref().map(|story| &story.why),
            "duration_ms": outcome.took.as_millis() as u64,
        });
        if let (Some(story), true) = (&outcome.story, self.is_verbose) {
            object["events"] = events(story).into();
            object["requests"] = requests(story).into();
        }
        object
    }

    /// The report as JUnit XML.
    pub fn junit(&self) -> String {
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
        for JunitSuite { file, cases } in &self.suites {
            let failures = cases.iter().filter(|(_, _, text)| text.is_some()).count();
            let _ = writeln!(
                out,
                "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\">",
                escaped(file),
                cases.len()
            );
            for (name, seconds, text) in cases {
                let head = format!(
                    "<testcase classname=\"{}\" name=\"{}\" time=\"{seconds:.3}\"",
                    escaped(file),
                    escaped(name)
                );
                let _ = match text {
                    None => writeln!(out, "    {head}/>"),
                    Some(text) => {
                        let first = text.lines().next().unwrap_or_default();
                        let failure = format!("<failure message=\"{}\">{}</failure>", escaped(first), escaped(text));
                        writeln!(out, "    {head}>{failure}</testcase>")
                    }
                };
            }
            out.push_str("  </testsuite>\n");
        }
        out + "</testsuites>\n"
    }
}

/// `order.test.yaml:12:15 status: expected completed, got failed`
fn line(loaded: &LoadedSuite, mismatch: &Mismatch) -> String {
    let Mismatch { at, what, expected, got, .. } = mismatch;
    let place = at.map(|at| {
        let (line, column) = loaded.tree.place(at);
        format!("{}:{line}:{column} ", loaded.name())
    });
    format!("{}{what}: expected {expected}, got {got}", place.unwrap_or_default())
}

fn run(story: &Story) -> Value {
    let plan = &story.reading.version.plan;
    let steps: Map<String, Value> = story
        .reading
        .run
        .steps()
        .map(|(number, step)| {
            let key = story.reading.run.key(plan, number).into_owned();
            (key, json!({ "status": step.status().as_str(), "attempts": step.attempt }))
        })
        .collect();
    json!({
        "status": story.reading.run.status().as_str(),
        "took_ms": story.took().millis(),
        "path": story.path(),
        "steps": steps,
    })
}

/// One line for each event: time since the start, name, step, attempt and error.
fn events(story: &Story) -> Vec<String> {
    let plan = &story.reading.version.plan;
    let start = story.reading.run.state.created_at;
    let line = |stored: &StoredEvent| {
        let StoredEvent { at, event, .. } = stored;
        let mut line = format!("+{:<10} {}", at.since(start).to_string(), event.name().unwrap_or("unknown"));
        if let Some(step) = stored.step_key(plan) {
            let _ = write!(line, " {step}");
        }
        if let Some(attempt) = event.attempt().filter(|_| !matches!(event, Event::Succeeded { .. })) {
            let _ = write!(line, " #{attempt}");
        }
        let failure = match event {
            Event::Retrying { failure, .. }
            | Event::HeldBack { failure, .. }
            | Event::Failed { failure, .. }
            | Event::TimedOut { failure, .. }
            | Event::RunFailed { failure, .. } => Some(failure),
            _ => None,
        };
        if let Some(failure) = failure {
            let _ = write!(line, ": {}", shown(&failure.message));
        }
        line
    };
    story.events.iter().map(line).collect()
}

/// One line for each request, each task, and whatever waiting steps got.
fn requests(story: &Story) -> Vec<String> {
    let start = story.reading.run.state.created_at;
    let sent = story.calls.iter().map(|call| {
        let body = call.body.as_ref().map(|body| format!(" {}", String::from_utf8_lossy(body)));
        shown(&format!("{} #{} sent {} {}{}", call.step, call.attempt, call.method, call.url, body.unwrap_or_default()))
    });
    let given = story.tasks.iter().map(|task| {
        let input = String::from_utf8_lossy(&task.input);
        shown(&format!("{} #{} gave {} {input}", task.step_key, task.attempt, task.name))
    });
    let called =
        story.inputs.iter().map(|(at, what, answer)| shown(&format!("{what} at +{}: {answer}", at.since(start))));
    sent.chain(given).chain(called).collect()
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            // XML 1.0 cannot represent these.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn print(text: &str) {
    // A closed pipe is no error: the reader, such as `head`, has seen enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
