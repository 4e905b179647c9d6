//! From the input of a task to a command, and from the end of a command to a report.
//!
//! | end of the command | report |
//! |---|---|
//! | exit code 0 | done, with `{command, cwd, timeout_ms, duration_ms, exit_code, stdout, stderr}` |
//! | exit code n, or signal n − 128 | `bash_exit_code:<n>` |
//! | ran out of time | `bash_timeout:<ms>` |
//! | used too much memory, too many processes | `bash_memory_limit`, `bash_process_limit` |
//! | not started | `sandbox_unavailable`, `invalid_command`, `bash_missing_command`: final; `work_folder_unusable` |
//! | its supervisor died | `outcome_unknown` |

use super::BashOptions;
use crate::services::tasks::ReportOutcome;
use bash::{Command, EndReason, Finished};
use kernel::event::Failure;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Of the output of a command that failed: how much of its end becomes part of the message.
const TAIL_MAX: usize = 4 * 1024;

/// The command of a task, or the report that refuses it.
pub fn command(input: &[u8], options: &BashOptions) -> Result<Command, ReportOutcome> {
    let input: Map<String, Value> = serde_json::from_slice(input).unwrap_or_default();
    let missing = || failed("bash_missing_command", "the step has no command".into(), true);
    let command = input.get("command").and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let mut command = Command::new(command.ok_or_else(missing)?);
    for (name, value) in input.get("env").and_then(Value::as_object).into_iter().flatten() {
        command = command.env(name, text(value));
    }
    command.stdin = input.get("stdin").map(text).unwrap_or_default().into_bytes();
    command.timeout =
        input.get("timeout_ms").and_then(Value::as_u64).map_or(bash::TIMEOUT_DEFAULT, Duration::from_millis);
    (command.network, command.files) = (options.network, options.files);
    command.folder = options.workspace.clone();
    Ok(command)
}

/// The plan makes all of them texts, except an input that is not given.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The report of a command that ran; `None` if it was stopped before its end.
pub fn ended(finished: &Finished) -> Option<ReportOutcome> {
    let exit_code = finished.exit_code.or(finished.signal.map(|signal| 128 + signal));
    Some(match finished.ended {
        EndReason::Cancelled => return None,
        EndReason::Exited if finished.is_success() => {
            let Finished { command, cwd, timeout_ms, duration_ms, stdout, stderr, .. } = finished;
            let body = json!({
                "command": command, "cwd": cwd.to_string_lossy(), "timeout_ms": timeout_ms, "duration_ms": duration_ms,
                "exit_code": exit_code, "stdout": stdout, "stderr": stderr,
            });
            ReportOutcome::Done(body.to_string().into())
        }
        EndReason::Exited | EndReason::Killed => {
            let code = exit_code.unwrap_or(-1);
            let how = match finished.signal {
                Some(signal) => format!("the command was ended by signal {signal}"),
                None => format!("the command ended with exit code {code}"),
            };
            failed(&format!("bash_exit_code:{code}"), with_output(how, finished), false)
        }
        EndReason::TimedOut => {
            let limit = finished.timeout_ms;
            let how = format!("the command was killed after {limit} ms");
            failed(&format!("bash_timeout:{limit}"), with_output(how, finished), false)
        }
        EndReason::MemoryLimit => {
            failed("bash_memory_limit", with_output("the command used too much memory".into(), finished), false)
        }
        EndReason::ProcessLimit => {
            failed("bash_process_limit", with_output("the command started too many processes".into(), finished), false)
        }
    })
}

/// The report of a command that was not run, or whose supervisor died.
pub fn refused(error: &bash::Error) -> ReportOutcome {
    let code = if error.may_have_run() { "outcome_unknown" } else { error.code() };
    // Another server, or this one after an operator's change, may have the folder.
    let is_final = !(error.may_have_run() || matches!(error, bash::Error::WorkFolder { .. }));
    failed(code, format!("{error}; {}", error.hint()), is_final)
}

/// The report of a command that was killed because its run needs no result any more.
pub fn called_off() -> ReportOutcome {
    failed("outcome_unknown", "the command was killed, because its step was called off".into(), true)
}

fn failed(code: &str, message: String, is_final: bool) -> ReportOutcome {
    ReportOutcome::Failed { failure: Failure::new(code, message), is_final, retry_after: None }
}

/// Adds the end of what the command wrote: to standard error, or if there is nothing, to standard output.
fn with_output(how: String, finished: &Finished) -> String {
    let written =
        [&finished.stderr, &finished.stdout].into_iter().map(|text| text.trim()).find(|text| !text.is_empty());
    let Some(written) = written else { return how };
    let start = (written.len().saturating_sub(TAIL_MAX)..).find(|at| written.is_char_boundary(*at)).unwrap_or(0);
    format!("{how}: {}", &written[start..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use bash::{FileAccess, IsolationLevel, NetworkAccess, Program};

    fn options() -> BashOptions {
        BashOptions {
            program: Program::this(),
            required: IsolationLevel::Restricted,
            network: NetworkAccess::Off,
            files: FileAccess::WorkFolder,
            slots: 1,
            workspace: None,
            scratch: "/tmp".into(),
            protected: Vec::new(),
        }
    }

    fn finished(ended: EndReason, exit_code: Option<i32>, signal: Option<i32>) -> Finished {
        Finished {
            command: "x".into(),
            cwd: "/w".into(),
            timeout_ms: 1_000,
            duration_ms: 7,
            ended,
            level: IsolationLevel::Restricted,
            exit_code,
            signal,
            stdout: "out\n".into(),
            stdout_truncated: false,
            stderr: "  ".into(),
            stderr_truncated: false,
            left_behind: None,
        }
    }

    fn failure(outcome: Option<ReportOutcome>) -> (String, String, bool) {
        match outcome {
            Some(ReportOutcome::Failed { failure, is_final, .. }) => (failure.code, failure.message, is_final),
            _ => panic!("no failure"),
        }
    }

    #[test]
    fn a25_an_input_becomes_a_command() {
        let input = br#"{"command": "cat", "env": {"A": "x", "B": "7"}, "stdin": "in", "timeout_ms": 5000}"#;
        let Ok(read) = command(input, &options()) else { panic!("refused") };
        assert_eq!((read.text.as_str(), read.stdin.as_slice()), ("cat", &b"in"[..]));
        assert_eq!(read.env, [("A".to_owned(), "x".to_owned()), ("B".to_owned(), "7".to_owned())]);
        assert_eq!(read.timeout, Duration::from_secs(5));
        let Ok(read) = command(br#"{"command": "cat", "env": {}, "stdin": null}"#, &options()) else {
            panic!("refused")
        };
        assert!(read.stdin.is_empty() && read.timeout == bash::TIMEOUT_DEFAULT);
        for input in [&b"{}"[..], br#"{"command": " "}"#, b"null"] {
            let (code, _, is_final) = failure(command(input, &options()).err());
            assert_eq!((code.as_str(), is_final), ("bash_missing_command", true));
        }
    }

    #[test]
    fn a25_the_end_of_a_command_becomes_a_report() {
        let Some(ReportOutcome::Done(body)) = ended(&finished(EndReason::Exited, Some(0), None)) else {
            panic!("failed")
        };
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(
            body,
            json!({ "command": "x", "cwd": "/w", "timeout_ms": 1000, "duration_ms": 7, "exit_code": 0, "stdout": "out\n",
                    "stderr": "  " })
        );
        for (end, exit_code, signal, code, message) in [
            (EndReason::Exited, Some(3), None, "bash_exit_code:3", "the command ended with exit code 3: out"),
            (EndReason::Killed, None, Some(9), "bash_exit_code:137", "the command was ended by signal 9: out"),
            (EndReason::TimedOut, None, Some(9), "bash_timeout:1000", "the command was killed after 1000 ms: out"),
            (EndReason::MemoryLimit, None, Some(9), "bash_memory_limit", "the command used too much memory: out"),
        ] {
            let found = failure(ended(&finished(end, exit_code, signal)));
            assert_eq!(found, (code.to_owned(), message.to_owned(), false));
        }
        assert!(ended(&finished(EndReason::Cancelled, None, Some(9))).is_none());
        let long = Finished { stderr: "ä".repeat(TAIL_MAX), ..finished(EndReason::Exited, Some(1), None) };
        assert!(failure(ended(&long)).1.len() < TAIL_MAX + 50);
    }

    #[test]
    fn a_command_that_is_refused_is_not_tried_again() {
        let unavailable = bash::Error::SandboxUnavailable { message: "no".into() };
        let (code, message, is_final) = failure(Some(refused(&unavailable)));
        assert_eq!((code.as_str(), is_final), ("sandbox_unavailable", true));
        assert!(message.starts_with("no; "), "{message}");
        let (code, _, is_final) = failure(Some(refused(&bash::Error::Supervisor("killed".into()))));
        assert_eq!((code.as_str(), is_final), ("outcome_unknown", false));
    }
}
