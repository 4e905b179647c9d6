//! The engine's side: starts a supervisor, reads what the command writes, and waits for the report.
//!
//! All of it is in one future, without spawned tasks. Dropping the future closes the socket to the supervisor, and that
//! is what makes it kill the command: the end of this process, by whatever signal, has the same effect.

use crate::command::{Command, FileAccess};
use crate::error::Error;
use crate::finished::Finished;
use crate::isolation::{Containment, IsolationLevel, IsolationReport};
use crate::output::OutputHead;
use crate::wire::{self, Orders, Setup, StageReport};
use std::ffi::OsString;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

/// A supervisor kills at the timeout. One that has not reported this much later is itself stuck.
const REPORT_GRACE: Duration = Duration::from_secs(20);
/// How long a result waits for its folder to be deleted. The supervisor goes on with it afterwards.
const CLEANUP_GRACE: Duration = Duration::from_secs(10);
/// All writers of the output are dead by then. If one is not, its output is not waited for.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);
const CHUNK_BYTES: usize = 64 * 1024;

/// How to start this program again as a supervisor: it must pass its arguments to [`run_stage`](crate::run_stage)
/// before it does anything else.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// The program that is running, also when its file was replaced by a newer one.
    pub fn this() -> Self {
        Self::at("/proc/self/exe")
    }

    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), arguments: Vec::new() }
    }

    /// Arguments in front of the hidden ones.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn command(&self, stage: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(&self.path);
        command.args(&self.arguments).arg(crate::stage::ARGUMENT).args(stage).env_clear();
        command
    }
}

/// Runs commands. One for a process; running is by `&self`, as often at a time as the caller likes.
#[derive(Clone, Debug)]
pub struct Sandbox {
    program: Program,
    isolation: IsolationReport,
    required: IsolationLevel,
    scratch: PathBuf,
    protected: Vec<PathBuf>,
    readable: Vec<PathBuf>,
}

impl Sandbox {
    /// Commands are refused below the `required` level. Private folders are made below `scratch`. As root it should be
    /// reachable for other users, because each command gets its own: not below a folder with mode 0700.
    pub fn new(
        program: Program,
        isolation: IsolationReport,
        required: IsolationLevel,
        scratch: impl Into<PathBuf>,
    ) -> Self {
        let (protected, readable) = (Vec::new(), Vec::new());
        Self { program, isolation, required, scratch: scratch.into(), protected, readable }
    }

    /// A file or folder that no command may read, such as the data folder. It may contain the scratch folder.
    pub fn protect(mut self, path: impl Into<PathBuf>) -> Self {
        self.protected.push(path.into());
        self
    }

    /// A folder with programs that commands may read and execute, besides those of the system.
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Self {
        self.readable.push(path.into());
        self
    }

    pub fn isolation(&self) -> &IsolationReport {
        &self.isolation
    }

    /// What [`Sandbox::run`] would refuse; a check for the time a workflow is created or the server starts.
    pub fn check(&self, command: &Command) -> Result<(), Error> {
        self.contain(command).map(drop)
    }

    fn contain(&self, command: &Command) -> Result<(Containment, IsolationLevel), Error> {
        command.check()?;
        let unavailable = |message| Error::SandboxUnavailable { message };
        let (contain, level) = self.isolation.contain(command, self.required).map_err(unavailable)?;
        if command.files == FileAccess::WorkFolder && !contain.mount_namespace {
            // Landlock allows whole folders. Without a mount on top, a part of one cannot be taken out again.
            let mut allowed: Vec<&Path> = crate::stage::system_paths().collect();
            allowed.extend(command.folder.iter().chain(&self.readable).map(PathBuf::as_path));
            let inside = |folder: &Path| self.protected.iter().find(|path| path.starts_with(folder));
            if let Some((path, folder)) = allowed.into_iter().find_map(|folder| Some((inside(folder)?, folder))) {
                let (path, folder) = (path.display(), folder.display());
                return Err(unavailable(format!(
                    "`{path}` cannot be protected inside of `{folder}`, which the command may read: `mount_namespace` \
                     is missing"
                )));
            }
        }
        Ok((contain, level))
    }

    /// Runs a command to its end. `cancelled` ends it early, with what it has written so far; so does dropping the
    /// future, without. In all cases, no process of the command is left.
    pub async fn run(&self, command: Command, cancelled: impl Future<Output = ()>) -> Result<Finished, Error> {
        let (contain, level) = self.contain(&command)?;
        let orders = Orders {
            command: command.text,
            env: command.env,
            stdin_bytes: command.stdin.len(),
            timeout_ms: command.timeout.as_millis() as u64,
            folder: command.folder,
            files: command.files,
            network: command.network,
            limits: command.limits,
            contain,
            scratch: self.scratch.clone(),
            protected: self.protected.clone(),
            readable: self.readable.clone(),
            placed: None,
        };
        let message = wire::encode(&orders).map_err(|error| Error::Invalid {
            field: "folder".into(),
            message: format!("paths of commands are UTF-8: {error}"),
        })?;
        let failed = |what: &str, error: std::io::Error| Error::Supervisor(format!("{what}: {error}"));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|e| failed("socket", e))?;
        let mut supervisor = tokio::process::Command::from(self.program.command(&["supervise"]));
        supervisor
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal is for the engine, which then decides about its commands.
            .process_group(0);
        let mut process = supervisor.spawn().map_err(|e| failed("not started", e))?;
        // It holds the supervisor's end of the socket.
        drop(supervisor);
        ours.set_nonblocking(true).map_err(|e| failed("socket", e))?;
        let ours = UnixStream::from_std(ours).map_err(|e| failed("socket", e))?;
        let (from, mut to) = ours.into_split();

        let (out, err) = (process.stdout.take(), process.stderr.take());
        let talking = async {
            let stop = async {
                let sent = async {
                    to.write_all(&message).await?;
                    to.write_all(&command.stdin).await
                };
                // A supervisor that refused does not read on; its report says why.
                let _ = sent.await;
                cancelled.await;
                let _ = to.shutdown().await;
                std::future::pending::<()>().await;
            };
            let limit = command.timeout + REPORT_GRACE;
            tokio::select! {
                biased;
                report = tokio::time::timeout(limit, report(from)) => match report {
                    Ok(report) => report,
                    Err(_) => Err(Error::Supervisor(format!("no report after {limit:?}"))),
                },
                () = stop => unreachable!("it waits for the report"),
            }
        };
        let (mut stdout, mut stderr) = (OutputHead::default(), OutputHead::default());
        let report = {
            let reading = async { tokio::join!(drain(out, &mut stdout), drain(err, &mut stderr)) };
            tokio::pin!(reading, talking);
            tokio::select! {
                report = &mut talking => {
                    let _ = tokio::time::timeout(OUTPUT_GRACE, &mut reading).await;
                    report?
                }
                _ = &mut reading => talking.await?,
            }
        };
        // Reaped here if it is done, else by the runtime later: the supervisor may still be deleting.
        let _ = process.try_wait();
        let (stdout, stdout_truncated) = stdout.finish();
        let (stderr, stderr_truncated) = stderr.finish();
        Ok(Finished {
            command: orders.command,
            level,
            timeout_ms: orders.timeout_ms,
            stdout,
            stdout_truncated,
            stderr,
            stderr_truncated,
            ..report
        })
    }
}

/// Reads to the end and keeps the head, so that the command never waits for us.
async fn drain(from: Option<impl AsyncRead + Unpin>, head: &mut OutputHead) {
    let Some(mut from) = from else { return };
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        head.push(&chunk[..length]);
    }
}

/// The supervisor's report, with empty texts.
async fn report(mut from: OwnedReadHalf) -> Result<Finished, Error> {
    let silent = || Error::Supervisor("it ended without a report, probably by a signal".into());
    let mut finished = match receive(&mut from).await.ok_or_else(silent)? {
        StageReport::Ended { ended, exit_code, signal, duration_ms, cwd } => Finished {
            command: String::new(),
            cwd,
            timeout_ms: 0,
            duration_ms,
            ended,
            level: IsolationLevel::None,
            exit_code,
            signal,
            stdout: String::new(),
            stdout_truncated: false,
            stderr: String::new(),
            stderr_truncated: false,
            left_behind: None,
        },
        StageReport::Refused { what: Setup::Sandbox, why } => return Err(Error::SandboxUnavailable { message: why }),
        StageReport::Refused { what: Setup::Folder(path), why } => {
            return Err(Error::WorkFolder { path, message: why });
        }
        StageReport::Status { .. } | StageReport::Cleaned { .. } => return Err(silent()),
    };
    finished.left_behind = match tokio::time::timeout(CLEANUP_GRACE, receive(&mut from)).await {
        Ok(Some(StageReport::Cleaned { problem })) => problem,
        Ok(_) => Some("the supervisor ended before the folder was deleted".into()),
        Err(_) => Some("still being deleted".into()),
    };
    Ok(finished)
}

async fn receive(from: &mut OwnedReadHalf) -> Option<StageReport> {
    let length = from.read_u32().await.ok()?;
    let mut bytes = Vec::new();
    from.take(length.into()).read_to_end(&mut bytes).await.ok()?;
    serde_json::from_slice(&bytes).ok()
}
