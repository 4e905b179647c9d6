//! Watching a run: a live list of its steps on a terminal, one line an event elsewhere.
//!
//! [`StepList`] holds the state of the list and knows neither clock nor terminal; [`follow`] draws it.

use super::style::{self, clean, cut, paint};
use super::{CommandContext, Failure};
use api::{EventView, StepView, StreamEventView};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const FRAME: Duration = Duration::from_millis(100);
const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// Follows a run to its end. Returns whether it has completed.
pub async fn follow(asking: &CommandContext, run: &str) -> Result<bool, Failure> {
    let mut events = asking.client.follow(run, 0).await?;
    let is_live = !asking.json && std::io::stdout().is_terminal();
    if is_live {
        let mut step_list = StepList::new(&asking.client.steps(run).await?);
        let mut screen = Screen { lines: 0 };
        let mut ticks = tokio::time::interval(FRAME);
        for frame in 0.. {
            screen.draw(&step_list, frame)?;
            tokio::select! {
                event = events.next() => match event? {
                    Some(received) => step_list.apply(&received.event, Instant::now()),
                    None => break,
                },
                _ = ticks.tick() => {}
            }
        }
        screen.draw(&step_list, 0)?;
    } else {
        while let Some(received) = events.next().await? {
            print(asking, &received)?;
        }
    }
    let ended = asking.client.run(run).await?;
    if !asking.json {
        let took = style::between(Some(&ended.started_at), ended.finished_at.as_deref()).map(style::span);
        let error = ended.error.as_ref().map(|e| format!(": {}", clean(&e.message))).unwrap_or_default();
        eprintln!("{run} {} in {}{error}", ended.status, took.unwrap_or_default());
    }
    Ok(ended.status == "completed")
}

/// Prints one event on one line.
pub fn print(asking: &CommandContext, received: &StreamEventView) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    if asking.json {
        writeln!(out, "{}", serde_json::to_string(received).unwrap_or_default())?;
    } else {
        writeln!(out, "{}", line(&received.event))?;
    }
    Ok(out.flush()?)
}

/// `10:39:37.294  step.succeeded   charge  2ms, status 200`
pub fn line(event: &EventView) -> String {
    let mut text = format!("{}  {:<16}", style::clock(&event.at), clean(&event.kind));
    if let Some(step) = &event.step {
        let _ = write!(text, "  {}", clean(step));
        if let Some(attempt) = event.attempt.filter(|n| *n > 1) {
            let _ = write!(text, " #{attempt}");
        }
    }
    let took = event.data["duration_ms"].as_u64().map(style::span);
    let details: Vec<String> =
        took.into_iter().chain(Some(detail(&event.data)).filter(|text| !text.is_empty())).collect();
    if !details.is_empty() {
        let _ = write!(text, "  {}", details.join(", "));
    }
    text.trim_end().to_owned()
}

/// What an event says beyond its name and duration, in a few words.
fn detail(data: &Value) -> String {
    let text = |value: &Value| value.as_str().map(clean);
    let mut parts = Vec::new();
    // The message of an `http_status` error names the status already.
    let status = data["status_code"].as_u64().or(data["response"]["status_code"].as_u64());
    if let Some(status) = status.filter(|_| data["error"]["code"] != "http_status") {
        parts.push(format!("status {status}"));
    }
    parts.extend(text(&data["error"]["message"]));
    for (name, word) in [("wake_at", "until"), ("deadline", "until"), ("next_attempt_at", "again at")] {
        parts.extend(text(&data[name]).map(|at| format!("{word} {}", style::time(&at))));
    }
    parts.extend(text(&data["worker"]).map(|worker| format!("by {worker}")));
    let lines = data["lines"].as_array().into_iter().flatten();
    parts.extend(lines.filter_map(|line| text(&line["message"])));
    for name in ["reason", "note", "summary"] {
        parts.extend(text(&data[name]).filter(|text| !text.is_empty()).map(|text| text.replace('_', " ")));
    }
    parts.join(", ")
}

struct StepLine {
    name: String,
    status: &'static str,
    attempt: u32,
    /// When the step began: on this machine's clock, for the running time, and on the server's, for the final one.
    began: Option<(Instant, String)>,
    took: Option<u64>,
    note: String,
}

/// The steps of a run, as its events have described them so far.
pub struct StepList {
    lines: Vec<StepLine>,
}

impl StepList {
    pub fn new(steps: &[StepView]) -> StepList {
        let line = |step: &StepView| StepLine {
            name: step.step.clone().unwrap_or_default(),
            status: "pending",
            attempt: 0,
            began: None,
            took: None,
            note: String::new(),
        };
        StepList { lines: steps.iter().map(line).collect() }
    }

    pub fn apply(&mut self, event: &EventView, now: Instant) {
        let Some(name) = &event.step else { return };
        let Some(line) = self.lines.iter_mut().find(|line| line.name == *name) else { return };
        let status = match event.kind.as_str() {
            "step.started" | "step.leased" => "running",
            "step.retrying" => "retrying",
            "step.succeeded" => "success",
            "step.received" => "received",
            "step.failed" => "failed",
            "step.timeout" => "timeout",
            "step.skipped" => "skipped",
            "step.cancelled" => "cancelled",
            "timer.set" => "sleeping",
            "wait.opened" => "waiting",
            _ => return,
        };
        line.status = status;
        line.note = detail(&event.data);
        line.attempt = event.attempt.unwrap_or(line.attempt);
        match status {
            "running" | "sleeping" | "waiting" | "retrying" => {
                line.began.get_or_insert_with(|| (now, event.at.clone()));
            }
            _ => line.took = line.began.as_ref().and_then(|(_, began)| style::between(Some(began), Some(&event.at))),
        }
    }

    /// One line a step, no wider than `width`. If there are more than `height` steps, those that are running come first
    /// and the rest is left out.
    pub fn render(&self, frame: usize, now: Instant, width: usize, height: usize, is_coloured: bool) -> Vec<String> {
        let names = self.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).min(40);
        let mut shown: Vec<&StepLine> = self.lines.iter().collect();
        let hidden = shown.len().saturating_sub(height);
        if hidden > 0 {
            // The sort is stable: within a rank, steps keep the order of the definition.
            shown.sort_by_key(|line| match line.status {
                "running" | "retrying" | "sleeping" | "waiting" => 0,
                "failed" | "timeout" => 1,
                "pending" => 2,
                _ => 3,
            });
            shown.truncate(height.saturating_sub(1));
        }
        let mut out: Vec<String> = shown.iter().map(|line| one(line, frame, now, names, width, is_coloured)).collect();
        if hidden > 0 {
            out.push(cut(&format!("  … and {} more", self.lines.len() - shown.len()), width));
        }
        out
    }
}

fn one(line: &StepLine, frame: usize, now: Instant, names: usize, width: usize, is_coloured: bool) -> String {
    let mark = match line.status {
        "running" | "retrying" | "sleeping" | "waiting" => SPINNER[frame % SPINNER.len()],
        "success" | "received" => '✓',
        "failed" | "timeout" => '✗',
        "pending" => '·',
        _ => '-',
    };
    let running = line.began.as_ref().map(|(began, _)| now.saturating_duration_since(*began).as_millis() as u64);
    let took =
        line.took.or(running.filter(|_| line.took.is_none() && mark != '-')).map(style::span).unwrap_or_default();
    let attempt = if line.attempt > 1 { format!("#{} ", line.attempt) } else { String::new() };
    let before = format!("{mark} {:<names$}  ", cut(&clean(&line.name), names));
    let room = width.saturating_sub(before.chars().count());
    let rest = format!("{:<9}  {took:>9}  {attempt}{}", line.status, line.note);
    let rest = cut(rest.trim_end(), room);
    match rest.strip_prefix(line.status) {
        Some(after) => format!("{before}{}{after}", paint(line.status, style::colour(line.status), is_coloured)),
        None => cut(&format!("{before}{rest}"), width),
    }
}

/// Draws each frame over the one before.
struct Screen {
    lines: usize,
}

impl Screen {
    fn draw(&mut self, step_list: &StepList, frame: usize) -> Result<(), Failure> {
        let (width, height) = terminal_size::terminal_size().map_or((80, 24), |(w, h)| (w.0 as usize, h.0 as usize));
        let lines = step_list.render(
            frame,
            Instant::now(),
            width.saturating_sub(1),
            height.saturating_sub(2).max(3),
            style::has_colours(),
        );
        let mut text = String::new();
        if self.lines > 0 {
            let _ = write!(text, "\u{1b}[{}A", self.lines);
        }
        for line in &lines {
            let _ = write!(text, "\r\u{1b}[2K{line}\n");
        }
        // Clears what a longer list before this one left below.
        text.push_str("\u{1b}[0J");
        self.lines = lines.len();
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(seq: u64, kind: &str, step: &str, second: u32, data: Value) -> EventView {
        serde_json::from_value(json!({
            "seq": seq, "at": format!("2026-11-15T10:00:{second:02}Z"), "type": kind, "step": step, "attempt": 1, "data": data,
        }))
        .unwrap()
    }

    fn step_list(names: &[&str]) -> StepList {
        let step = |name: &&str| {
            serde_json::from_value(json!({
                "step": name, "type": "http", "status": "pending", "status_code": null, "attempt": 0,
                "duration_ms": null, "started_at": null, "finished_at": null,
            }))
            .unwrap()
        };
        StepList::new(&names.iter().map(step).collect::<Vec<_>>())
    }

    #[test]
    fn the_step_list_follows_the_events() {
        let now = Instant::now();
        let mut step_list = step_list(&["charge", "receipt", "pause"]);
        step_list.apply(&event(2, "step.started", "charge", 1, json!({})), now);
        step_list.apply(&event(3, "step.succeeded", "charge", 3, json!({ "status_code": 200 })), now);
        step_list.apply(&event(4, "step.skipped", "receipt", 3, json!({ "reason": "condition_false" })), now);
        step_list.apply(&event(5, "timer.set", "pause", 3, json!({ "wake_at": "2026-11-15T11:00:00.5Z" })), now);
        step_list.apply(&event(6, "step.started", "unknown", 3, json!({})), now);
        let later = now + Duration::from_secs(61);
        assert_eq!(
            step_list.render(1, later, 100, 10, false),
            [
                "✓ charge   success          2 s  status 200",
                "- receipt  skipped               condition false",
                "⠙ pause    sleeping     1 m 1 s  until 2026-11-15T11:00:00Z",
            ]
        );
        let narrow = step_list.render(0, later, 20, 2, false);
        assert_eq!(narrow, ["⠋ pause    sleeping…", "  … and 2 more"]);
    }

    #[test]
    fn an_event_line_has_time_type_step_and_details() {
        let failed = json!({ "error": { "code": "http_status", "message": "status 500\u{1b}" }, "next_attempt_at": "2026-11-15T10:00:09Z" });
        for (event, expected) in [
            (event(1, "step.started", "a", 1, json!({ "saw": {} })), "10:00:01.000  step.started      a"),
            (
                event(1, "step.retrying", "a", 1, failed),
                "10:00:01.000  step.retrying     a  status 500·, again at 2026-11-15T10:00:09Z",
            ),
            (event(1, "step.leased", "a", 1, json!({ "worker": "w1" })), "10:00:01.000  step.leased       a  by w1"),
            (
                event(1, "step.log", "a", 1, json!({ "lines": [{ "message": "one" }, { "message": "two" }] })),
                "10:00:01.000  step.log          a  one, two",
            ),
        ] {
            assert_eq!(line(&event), expected);
        }
    }
}
