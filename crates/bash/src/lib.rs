//! Runs one bash command in a contained way, and says honestly how well it is contained.
//!
//! ```text
//! engine ──orders, cancel──▶ supervisor ──▶ init (PID 1 of a namespace) ──▶ confined process ──exec──▶ bash
//!        ◀──────report──────                                                  ╎
//!        ◀══════════════════════ stdout, stderr ══════════════════════════════╯
//! ```
//!
//! Each box is the engine's own program started again with a hidden argument ([`run_stage`]). So everything between
//! `fork` and `exec` is ordinary code in a process with one thread, and the process that kills and cleans up is still
//! there when the engine is not. ADR 0043 has the reasons.
//!
//! This crate does not know workflows, steps or templates. It keeps one rule: what a [`Command`] does not allow is
//! prevented, or the command is refused with [`Error::SandboxUnavailable`]. It never runs with less than was asked for.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use bash::{Command, IsolationLevel, Program, Sandbox};
//!
//! bash::protect_this_process()?;
//! let program = Program::this();
//! let isolation = bash::probe(&program)?;
//! let sandbox = Sandbox::new(program, isolation, IsolationLevel::Restricted, "/var/tmp/onward")
//!     .protect("/var/lib/onward");
//! let finished = sandbox.run(Command::new("sort | uniq -c").stdin("b\na\nb\n"), std::future::pending()).await?;
//! assert_eq!(finished.stdout, "      1 a\n      2 b\n");
//! # Ok(())
//! # }
//! ```

mod command;
mod error;
mod finished;
mod isolation;
mod output;
mod sandbox;
mod wire;

#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod stage;
#[cfg(target_os = "linux")]
mod sys;

#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod stage;
#[cfg(not(target_os = "linux"))]
use stage as probe;

pub use command::{
    COMMAND_BYTES_MAX, Command, ENV_BYTES_MAX, FileAccess, NetworkAccess, ResourceLimits, STDIN_BYTES_MAX,
    TIMEOUT_DEFAULT, TIMEOUT_MAX, TIMEOUT_MIN,
};
pub use error::Error;
pub use finished::{EndReason, Finished};
pub use isolation::{Feature, FeatureName, IsolationLevel, IsolationReport};
pub use output::{OUTPUT_CHARS_MAX, TRUNCATION_MARKER};
pub use probe::probe;
pub use sandbox::{Program, Sandbox};
pub use stage::{protect_this_process, remove_leftovers, run_stage};
