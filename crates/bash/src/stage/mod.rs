//! The processes between the engine and bash: this program, started again with a hidden argument.
//!
//! | stage | where | does | ends |
//! |---|---|---|---|
//! | `supervise` | beside the engine | makes the folder and the namespaces, watches time and limits, kills, deletes, reports | after all others |
//! | `init` | first process of its namespace | mounts, waits for bash; its end kills the rest | with bash, or with the supervisor |
//! | `confine` | below either | restricts itself step by step, then becomes bash | |
//! | `probe` | anywhere | tries one feature | at once |
//!
//! Without a process namespace there is no `init`, and `confine` is a child of the supervisor.

mod confine;
mod files;
mod folder;
mod init;
mod namespaces;
mod probes;
mod processes;
mod supervisor;
mod syscalls;
mod user;

pub use files::system_paths;
pub use folder::remove_leftovers;
pub use probes::ProbeAnswer;

use crate::wire::{self, Orders, Setup, StageReport};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode};

/// The first argument of a stage.
pub const ARGUMENT: &str = "__bash";

/// Runs this process as a supervisor, if its arguments (with the program's name in front) say so. A program that uses
/// this crate calls it first in `main`, before it reads settings or starts threads:
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     if let Some(code) = bash::run_stage(std::env::args_os()) {
///         return code;
///     }
///     // …
/// #   ExitCode::SUCCESS
/// }
/// ```
pub fn run_stage(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    Some(match arguments.next().unwrap_or_default().as_str() {
        "supervise" => supervisor::run(),
        "init" => init::run(),
        "confine" => confine::run(),
        "probe" => probes::run(arguments),
        _ => ExitCode::from(2),
    })
}

/// Keeps other processes of the same user from reading this one's memory and environment, and the kernel from writing
/// core files of it. The engine calls it at its start; the files of `/proc/self` then belong to root.
pub fn protect_this_process() -> std::io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(())
}

/// Why bash was not started.
#[derive(Debug)]
struct SetupError {
    what: Setup,
    why: String,
}

impl SetupError {
    fn sandbox(step: &'static str) -> impl Fn(&dyn Display) -> Self {
        move |error| Self { what: Setup::Sandbox, why: format!("{step}: {error}") }
    }

    fn report(self) -> StageReport {
        StageReport::Refused { what: self.what, why: self.why }
    }
}

/// Says which step of the setup failed.
trait During<T> {
    fn during(self, step: &'static str) -> Result<T, SetupError>;
}

impl<T, E: Display> During<T> for Result<T, E> {
    fn during(self, step: &'static str) -> Result<T, SetupError> {
        self.map_err(|error| SetupError::sandbox(step)(&error))
    }
}

/// The socket to the process above, which is this one's standard input.
fn above() -> std::io::Result<UnixStream> {
    Ok(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?))
}

/// `None`: the process above has ended.
fn read_orders(mut above: &UnixStream) -> std::io::Result<Option<(Orders, Vec<u8>)>> {
    let Some(orders) = wire::receive::<Orders>(above)? else { return Ok(None) };
    let mut stdin = vec![0; orders.stdin_bytes];
    above.read_exact(&mut stdin)?;
    Ok(Some((orders, stdin)))
}

/// Starts the next stage and gives it its orders. Its output is this process's.
fn start(stage: &str, orders: &Orders, stdin: &[u8]) -> std::io::Result<(Child, UnixStream)> {
    let (mine, its) = UnixStream::pair()?;
    let mut command = Command::new("/proc/self/exe");
    let child = command.arg(ARGUMENT).arg(stage).env_clear().stdin(OwnedFd::from(its)).spawn()?;
    // Drops the other end, so that this one sees the end of the child.
    drop(command);
    // A stage that refuses early does not read all. What it reports is read later, by its parent.
    let _ = wire::send(&mine, orders).and_then(|()| std::io::Write::write_all(&mut &mine, stdin));
    Ok((child, mine))
}

/// From now on, the process that started this one takes it along when it dies. Not for the supervisor: the kernel means
/// the parent's thread, and threads of the engine come and go.
fn die_with_parent(above: &UnixStream) -> std::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before that.
    let mut sockets = [PollFd::new(above, PollFlags::empty())];
    poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    match sockets[0].revents().intersects(PollFlags::HUP) {
        true => Err(std::io::Error::other("the process above has ended")),
        false => Ok(()),
    }
}

/// Lets go of the command's output: it ends when the command's processes have.
fn release_output() {
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Of a child that was waited for.
fn status_report(status: rustix::process::WaitStatus) -> StageReport {
    StageReport::Status { exit_code: status.exit_status(), signal: status.terminating_signal() }
}
