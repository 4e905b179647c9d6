//! Runs one process for one attempt at a task.
//!
//! ```text
//!   input ─▶ stdin   stdout ─▶ result    stderr ─▶ lines of the task's history, and the message of a failure
//!   exit 0 succeeded · 100 failed, no retry · 101 snooze · any other code failed, may be retried
//! ```
//!
//! The process leads a process group of its own. When the attempt ends, the whole group is killed, so no process that
//! the command started is left behind.

use client::worker::{Context, Error, LogLevel, Result};
use kernel::Span;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::time::{sleep, timeout};

/// The time between SIGTERM and SIGKILL.
pub const KILL_AFTER: Duration = Duration::from_secs(5);
/// After the process has ended, its children may still hold its output open. They get this long.
const OUTPUT_AFTER: Duration = Duration::from_secs(1);
const RESULT_MAX: usize = 1024 * 1024;
/// Of standard error: how much of the end becomes a failure's message, and how much goes into the task's history.
const MESSAGE_MAX: usize = 4 * 1024;
const LINE_MAX: usize = 4 * 1024;
const LINES_MAX: usize = 1_000;

/// Exit codes with a meaning of their own. 75 (`EX_TEMPFAIL`) has none: it fails the attempt like any other code.
const EXIT_FINAL: i32 = 100;
const EXIT_SNOOZE: i32 = 101;

pub struct Command {
    pub line: String,
    pub timeout: Option<Duration>,
    /// The server's address, for commands that call the API themselves.
    pub url: String,
}

/// The processes of one attempt. Dropping it kills them.
struct ProcessGroup {
    leader: Option<Pid>,
}

impl ProcessGroup {
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// What the process wrote.
#[derive(Default)]
struct Written {
    out: Vec<u8>,
    is_too_large: bool,
    /// The last bytes of standard error.
    tail: Vec<u8>,
}

/// The future that writes the process's input and reads its output; none once it has finished.
struct ProcessIo<'a>(Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>);

impl ProcessIo<'_> {
    fn has_ended(&self) -> bool {
        self.0.is_none()
    }

    /// May be cancelled and called again.
    async fn ends(&mut self) {
        if let Some(io) = &mut self.0 {
            io.await;
            self.0 = None;
        }
    }
}

/// Why the process ended.
enum End {
    Exited(ExitStatus),
    TimedOut,
    Cancelled,
}

impl Command {
    pub async fn attempt(&self, input: &RawValue, context: &Context) -> Result<Box<RawValue>> {
        let mut child = tokio::process::Command::new("sh")
            .args(["-c", &self.line])
            .env("ONWARD_URL", &self.url)
            .env("ONWARD_TASK_ID", context.task_id())
            .env("ONWARD_TYPE", context.task_type())
            .env("ONWARD_RUN_ID", context.run_id())
            .env("ONWARD_ATTEMPT", context.attempt().to_string())
            .env("ONWARD_MAX_ATTEMPTS", context.max_attempts().to_string())
            .env("ONWARD_IDEMPOTENCY_KEY", context.idempotency_key())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| Error::retry(format!("cannot start the command: {e}")).code("exec_failed"))?;
        let group = ProcessGroup { leader: child.id().and_then(|id| Pid::from_raw(id as i32)) };
        let written = Mutex::new(Written::default());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let io = async {
            let write_input = async {
                if let Some(mut stdin) = stdin {
                    // The command may end without reading its input.
                    let _ = stdin.write_all(input.get().as_bytes()).await;
                }
            };
            tokio::join!(write_input, read_result(stdout, &written), read_log(stderr, &written, context));
        };
        let mut io = ProcessIo(Some(Box::pin(io)));
        let end = self.wait_for_end(&mut child, &mut io, &group, context).await?;
        // Only processes of the group can hold the output open; killing the group closes it.
        if timeout(OUTPUT_AFTER, io.ends()).await.is_err() {
            group.signal(Signal::KILL);
            let _ = timeout(OUTPUT_AFTER, io.ends()).await;
        }
        drop(io);
        drop(group);
        let written = written.into_inner().unwrap_or_default();
        match end {
            End::Cancelled => Err(Error::retry("the command was stopped: its task was cancelled or its lease lost")),
            End::TimedOut => {
                let limit = self.timeout.unwrap_or_default();
                Err(Error::retry(format!("the command was stopped after {limit:?}")).code("timeout"))
            }
            End::Exited(status) => outcome_of(status, &written),
        }
    }

    /// Waits until the process ends, the attempt is cancelled, or the time is up. In the last two cases sends SIGTERM,
    /// and SIGKILL after [`KILL_AFTER`].
    async fn wait_for_end(
        &self,
        child: &mut Child,
        io: &mut ProcessIo<'_>,
        group: &ProcessGroup,
        context: &Context,
    ) -> Result<End> {
        let limit = async {
            match self.timeout {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let mut limit = pin!(limit);
        let end = loop {
            tokio::select! {
                status = child.wait() => return Ok(End::Exited(status?)),
                () = io.ends(), if !io.has_ended() => {}
                () = context.cancelled() => break End::Cancelled,
                () = &mut limit => break End::TimedOut,
            }
        };
        group.signal(Signal::TERM);
        let mut kill_timer = pin!(sleep(KILL_AFTER));
        loop {
            tokio::select! {
                status = child.wait() => { status?; }
                () = io.ends(), if !io.has_ended() => continue,
                () = &mut kill_timer => { group.signal(Signal::KILL); child.wait().await?; }
            }
            return Ok(end);
        }
    }
}

/// The outcome of the attempt, from the exit code and the output.
fn outcome_of(status: ExitStatus, written: &Written) -> Result<Box<RawValue>> {
    let tail = String::from_utf8_lossy(&written.tail);
    let message = |default: String| match tail.trim() {
        "" => default,
        text => text.to_owned(),
    };
    match (status.code(), status.signal()) {
        (Some(0), _) if written.is_too_large => {
            Err(Error::fail(format!("the result is longer than {RESULT_MAX} bytes")).code("result_too_large"))
        }
        (Some(0), _) => result(&written.out),
        (Some(EXIT_SNOOZE), _) => Err(match snooze(&written.out) {
            Some(snooze) => Error::snooze(snooze),
            None => {
                let message = "exit code 101 needs a time on stdout: seconds, or a duration such as 5m, up to 30d";
                Error::retry(message).code("exit_101")
            }
        }),
        (Some(EXIT_FINAL), _) => {
            Err(Error::fail(message("the command failed (exit code 100)".into())).code("exit_100"))
        }
        (Some(code), _) => {
            Err(Error::retry(message(format!("the command ended with exit code {code}"))).code(format!("exit_{code}")))
        }
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            let text = message(format!("the command was ended by signal {signal}"));
            Err(Error::retry(text).code(format!("signal_{signal}")))
        }
    }
}

/// JSON stays as it is; other text becomes a string, no output becomes null.
fn result(out: &[u8]) -> Result<Box<RawValue>> {
    let text = String::from_utf8_lossy(out);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    if text.trim().is_empty() {
        return Ok(RawValue::NULL.to_owned());
    }
    let json = serde_json::from_str::<Box<RawValue>>(text);
    Ok(json.or_else(|_| to_raw_value(&Value::String(text.to_owned())))?)
}

/// Seconds, or a duration such as `5m`.
fn snooze(out: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(out).ok()?.trim();
    let snooze = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
        Err(_) => Duration::from_micros(Span::parse(text)?.0),
    };
    (snooze <= Duration::from_secs(30 * 86_400)).then_some(snooze)
}

/// Reads standard output to its end and keeps it, unless it is longer than a result may be.
async fn read_result(from: Option<impl AsyncRead + Unpin>, written: &Mutex<Written>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let Ok(mut written) = written.lock() else { return };
        if written.out.len() + count <= RESULT_MAX {
            written.out.extend_from_slice(&buffer[..count]);
        } else {
            written.is_too_large = true;
        }
    }
}

/// Reads standard error: each line goes into the task's history, and the last bytes are kept.
async fn read_log(from: Option<impl AsyncRead + Unpin>, written: &Mutex<Written>, context: &Context) {
    let Some(mut from) = from else { return };
    let mut lines = OutputLines::default();
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        lines.push(&buffer[..count], &mut |level, line| context.log_at(level, line));
        let Ok(mut written) = written.lock() else { return };
        written.tail.extend_from_slice(&buffer[..count]);
        let excess = written.tail.len().saturating_sub(MESSAGE_MAX);
        written.tail.drain(..excess);
    }
    lines.end(&mut |level, line| context.log_at(level, line));
}

/// Splits bytes into lines. Cuts long lines, and drops lines beyond a number.
#[derive(Default)]
struct OutputLines {
    partial: Vec<u8>,
    count: usize,
}

impl OutputLines {
    fn push(&mut self, bytes: &[u8], log: &mut impl FnMut(LogLevel, String)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in part.chunks(LINE_MAX) {
                if self.partial.len() + piece.len() > LINE_MAX {
                    self.log(log);
                }
                self.partial.extend_from_slice(piece);
            }
            if part.ends_with(b"\n") {
                self.log(log);
            }
        }
    }

    fn end(&mut self, log: &mut impl FnMut(LogLevel, String)) {
        self.log(log);
    }

    fn log(&mut self, log: &mut impl FnMut(LogLevel, String)) {
        let line = std::mem::take(&mut self.partial);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        self.count += 1;
        match self.count {
            0..=LINES_MAX => log(LogLevel::Info, text.to_owned()),
            n if n == LINES_MAX + 1 => log(LogLevel::Warning, format!("only the first {LINES_MAX} lines are kept")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_json_text_or_null() {
        for (out, expected) in [
            ("{\"a\": 1}\n", "{\"a\": 1}"),
            ("", "null"),
            (" \n", "null"),
            ("hello\n", "\"hello\""),
            ("two\nlines\n\n", "\"two\\nlines\\n\""),
            ("7", "7"),
            ("{broken", "\"{broken\""),
        ] {
            assert_eq!(result(out.as_bytes()).unwrap().get(), expected, "{out:?}");
        }
    }

    #[test]
    fn a_snooze_is_seconds_or_a_duration() {
        for (out, expected) in [
            ("90\n", Some(90_000)),
            ("1.5", Some(1_500)),
            ("5m", Some(300_000)),
            ("0", Some(0)),
            ("", None),
            ("-1", None),
            ("31d", None),
            ("soon", None),
            ("inf", None),
        ] {
            assert_eq!(snooze(out.as_bytes()).map(|p| p.as_millis()), expected, "{out:?}");
        }
    }

    #[test]
    fn the_exit_code_decides_the_outcome() {
        let written = Written { tail: b"no paper\n".to_vec(), ..Written::default() };
        for (raw, code) in [(1 << 8, "exit_1"), (75 << 8, "exit_75"), (100 << 8, "exit_100"), (9, "signal_9")] {
            let error = outcome_of(ExitStatus::from_raw(raw), &written).unwrap_err();
            assert!(format!("{error:?}").contains(&format!("{code:?}")), "{error:?}");
            assert_eq!(error.to_string(), "no paper");
            let is_final = format!("{error:?}").contains("Final");
            assert_eq!(is_final, code == "exit_100");
        }
        let long = Written { is_too_large: true, ..Written::default() };
        assert!(outcome_of(ExitStatus::from_raw(0), &long).is_err());
        let quiet = outcome_of(ExitStatus::from_raw(3 << 8), &Written::default()).unwrap_err();
        assert_eq!(quiet.to_string(), "the command ended with exit code 3");
    }

    #[test]
    fn lines_are_cut_and_counted() {
        let mut logged = Vec::new();
        let mut lines = OutputLines::default();
        for chunk in [&b"one\ntw"[..], b"o\n\n", &[b'x'; 9_000], b"\nlast"] {
            lines.push(chunk, &mut |_, line| logged.push(line));
        }
        lines.end(&mut |_, line| logged.push(line));
        let lengths: Vec<usize> = logged.iter().map(String::len).collect();
        assert_eq!(lengths, [3, 3, 4_096, 4_096, 808, 4], "{lengths:?}");
        let mut many = Vec::new();
        lines.push("y\n".repeat(2_000).as_bytes(), &mut |level, line| many.push((level, line)));
        assert_eq!(many.last().unwrap().0, LogLevel::Warning);
        assert_eq!(many.len(), LINES_MAX - 6 + 1);
    }
}
