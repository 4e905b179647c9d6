//! How a command ended.

use crate::isolation::IsolationLevel;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A command that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finished {
    pub command: String,
    pub cwd: PathBuf,
    pub timeout_ms: u64,
    pub duration_ms: u64,
    pub ended: EndReason,
    /// How well what it was not allowed was prevented: less than the machine offers if that depends on a user of its
    /// own, which a command in a given folder does not get.
    pub level: IsolationLevel,
    /// Of bash. `None` if a signal ended it.
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// At most [`OUTPUT_CHARS_MAX`](crate::OUTPUT_CHARS_MAX) characters, then the marker.
    pub stdout: String,
    pub stdout_truncated: bool,
    pub stderr: String,
    pub stderr_truncated: bool,
    /// Why the private folder could not be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_behind: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// By itself, with an exit code.
    Exited,
    /// By a signal that the supervisor did not send: from the command itself, or from the kernel.
    Killed,
    TimedOut,
    Cancelled,
    /// All processes together used more memory than allowed.
    MemoryLimit,
    /// There were more processes than allowed, and the kernel did not prevent it.
    ProcessLimit,
}

impl Finished {
    pub fn is_success(&self) -> bool {
        self.ended == EndReason::Exited && self.exit_code == Some(0)
    }
}
