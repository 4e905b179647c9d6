//! What to run, and what it is allowed. Everything is checked before a process is started.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
pub const TIMEOUT_MIN: Duration = Duration::from_secs(1);
pub const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// Linux takes at most 128 KiB for one argument of a program.
pub const COMMAND_BYTES_MAX: usize = 96 * 1024;
/// All names and values together; one value may have as much as a command.
pub const ENV_BYTES_MAX: usize = 512 * 1024;
pub const STDIN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One bash command. [`Command::new`] has the strictest settings: a new private work folder, no network, no files
/// written elsewhere.
#[derive(Clone, Debug)]
pub struct Command {
    /// The text behind `bash -c`.
    pub text: String,
    /// Added to the few variables every command gets (`PATH`, `HOME`, `LANG`, `LC_ALL`, `TMPDIR`).
    pub env: Vec<(String, String)>,
    /// Empty: `/dev/null`.
    pub stdin: Vec<u8>,
    /// The wall clock time it may take, [`TIMEOUT_MIN`] to [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// An existing folder to work in. `None`: a new private one, deleted afterwards.
    pub folder: Option<PathBuf>,
    pub files: FileAccess,
    pub network: NetworkAccess,
    pub limits: ResourceLimits,
}

/// Which files a command may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAccess {
    /// Its work folder and its `TMPDIR`; of the rest it reads the system's programs and settings, nothing else.
    WorkFolder,
    /// All that the engine's user may write (`onward dev`). Protected paths are hidden where mount namespaces are
    /// available ([`FeatureName::MountNamespace`](crate::FeatureName)), and are ordinary files elsewhere.
    Anywhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkAccess {
    /// No sockets of any kind, except pairs between its own processes.
    Off,
    /// TCP and UDP. Unix sockets only together with [`FileAccess::Anywhere`]: services behind them start processes
    /// on request, outside of everything this crate contains.
    On,
}

/// What a command may use at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// For each process (data segment, enforced by the kernel) and for all processes together (resident memory,
    /// looked at by the supervisor every [`WATCH_INTERVAL`]).
    pub memory_bytes: u64,
    /// Processes and threads at a time.
    pub processes: u32,
    pub open_files: u32,
    /// Size of one file. There is no limit on all files together.
    pub file_bytes: u64,
}

/// How often the supervisor compares memory and processes with their limits.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(100);

impl Default for ResourceLimits {
    fn default() -> Self {
        Self { memory_bytes: 1 << 30, processes: 256, open_files: 1_024, file_bytes: 1 << 30 }
    }
}

impl Command {
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            env: Vec::new(),
            stdin: Vec::new(),
            timeout: TIMEOUT_DEFAULT,
            folder: None,
            files: FileAccess::WorkFolder,
            network: NetworkAccess::Off,
            limits: ResourceLimits::default(),
        }
    }

    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Refuses what could not run, or would run something else than the text says.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |field: &str, message: String| Err(Error::Invalid { field: field.to_owned(), message });
        if self.text.trim().is_empty() {
            return refuse("command", "the command is empty".into());
        }
        if self.text.len() > COMMAND_BYTES_MAX {
            return refuse("command", format!("{} bytes, allowed are {COMMAND_BYTES_MAX}", self.text.len()));
        }
        if self.text.contains('\0') {
            return refuse("command", "the command contains a NUL character".into());
        }
        if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&self.timeout) {
            return refuse("timeout", format!("{:?}, allowed is {TIMEOUT_MIN:?} to {TIMEOUT_MAX:?}", self.timeout));
        }
        if self.stdin.len() > STDIN_BYTES_MAX {
            return refuse("stdin", format!("{} bytes, allowed are {STDIN_BYTES_MAX}", self.stdin.len()));
        }
        if self.folder.as_ref().is_some_and(|folder| !folder.is_absolute()) {
            return refuse("folder", "the work folder must be an absolute path".into());
        }
        let limits = &self.limits;
        if limits.memory_bytes < MEMORY_MIN || limits.processes == 0 || limits.open_files < OPEN_FILES_MIN {
            return refuse(
                "limits",
                format!(
                    "bash itself needs {MEMORY_MIN} bytes of memory, a process and {OPEN_FILES_MIN} open files: {limits:?}"
                ),
            );
        }
        let total: usize = self.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        if total > ENV_BYTES_MAX {
            return refuse("env", format!("{total} bytes, allowed are {ENV_BYTES_MAX}"));
        }
        self.env.iter().try_for_each(|(name, value)| check_variable(name, value))
    }
}

/// Less does not start bash with its libraries.
const MEMORY_MIN: u64 = 16 << 20;
const OPEN_FILES_MIN: u32 = 16;

/// Variables that make bash, or the loader of programs, run or read something that is not in the command.
const RESERVED: &[&str] = &[
    "CDPATH",
    "ENV",
    "EXECIGNORE",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLOBIGNORE",
    "HISTFILE",
    "HOSTALIASES",
    "IFS",
    "INPUTRC",
    "LOCALDOMAIN",
    "LOCPATH",
    "NIS_PATH",
    "NLSPATH",
    "OPTIND",
    "PATH",
    "POSIXLY_CORRECT",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "SHELL",
    "SHELLOPTS",
    "TZDIR",
];

/// `BASH_` covers `BASH_ENV`, `BASH_FUNC_…` and `BASH_XTRACEFD`.
const RESERVED_PREFIXES: &[&str] = &["BASH", "DYLD_", "GLIBC_", "LD_", "MALLOC_"];

fn check_variable(name: &str, value: &str) -> Result<(), Error> {
    let refuse = |message: String| Err(Error::Invalid { field: format!("env.{}", name.escape_debug()), message });
    let mut letters = name.chars();
    let starts = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !starts || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return refuse(format!("`{}` is not a variable name ([A-Za-z_][A-Za-z0-9_]*)", name.escape_debug()));
    }
    if RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return refuse(format!("`{name}` is reserved: it changes what bash or the program loader runs"));
    }
    if value.contains('\0') {
        return refuse(format!("the value of `{name}` contains a NUL character"));
    }
    if value.len() > COMMAND_BYTES_MAX {
        return refuse(format!("the value of `{name}` has {} bytes, allowed are {COMMAND_BYTES_MAX}", value.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(command: Command) -> String {
        command.check().expect_err("accepted").to_string()
    }

    #[test]
    fn variables_that_change_what_runs_are_refused() {
        for name in [
            "LD_PRELOAD",
            "LD_AUDIT",
            "BASH_ENV",
            "ENV",
            "PATH",
            "IFS",
            "BASH_FUNC_ls",
            "SHELLOPTS",
            "BASHOPTS",
            "PS4",
            "PROMPT_COMMAND",
            "GLIBC_TUNABLES",
        ] {
            let said = refusal(Command::new("true").env(name, "x"));
            assert!(said.contains(&format!("`{name}` is reserved")), "{said}");
        }
        for name in ["", "1A", "A-B", "A=B", "A B", "BASH_FUNC_ls%%", "Ä", "A\n"] {
            let said = refusal(Command::new("true").env(name, "x"));
            assert!(said.contains("is not a variable name"), "{said}");
        }
        for name in ["A", "_", "LANG", "order_id", "ENVIRONMENT", "HOME", "TZ"] {
            Command::new("true").env(name, "x y\n$(z)").check().unwrap();
        }
        assert!(refusal(Command::new("true").env("A", "a\0b")).contains("NUL"));
    }

    #[test]
    fn sizes_and_times_have_bounds() {
        for (command, expected) in [
            (Command::new(" \n"), "empty"),
            (Command::new("a\0"), "NUL"),
            (Command::new("x".repeat(COMMAND_BYTES_MAX + 1)), "bytes"),
            (Command::new("true").timeout(Duration::from_millis(999)), "allowed is 1s to 600s"),
            (Command::new("true").timeout(Duration::from_secs(601)), "allowed is 1s to 600s"),
            (Command::new("true").stdin(vec![0; STDIN_BYTES_MAX + 1]), "bytes"),
            (Command { folder: Some("a/b".into()), ..Command::new("true") }, "absolute"),
        ] {
            let said = refusal(command);
            assert!(said.contains(expected), "{said}");
        }
    }
}
