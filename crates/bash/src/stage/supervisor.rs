//! The process that outlives the command, and the engine if need be.
//!
//! It stops the command when the engine's end of the socket closes: by a cancellation, or because the engine died. It
//! then kills what is left, whatever session or group it has moved to: with the first process of its namespace, or, as a
//! subreaper, every descendant one by one. Invariant: it reports the end only when no process of the command is left.

use super::folder::Scratch;
use super::processes::{self, Usage};
use super::{During, SetupError, above, namespaces, protect_this_process, read_orders, release_output, start, user};
use crate::command::{ResourceLimits, WATCH_INTERVAL};
use crate::finished::EndReason;
use crate::isolation::ProcessCount;
use crate::sys;
use crate::wire::{self, Orders, Placed, Setup, StageReport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between SIGTERM and SIGKILL, so that a command can remove its locks.
const TERM_GRACE: Duration = Duration::from_millis(500);
/// A killed process that the kernel cannot end now, because it waits for a disk, is left to the kernel.
const KILL_GRACE: Duration = Duration::from_secs(10);
/// Supervisors that share a processor with a thousand processes of a command must still get there.
const PRIORITY: i32 = -10;
/// This process and init, which count as the command's unless it has a user of its own.
const PROCESSES_OF_OURS: u32 = 2;

pub fn run() -> ExitCode {
    // A service manager that stops the engine signals this process, too. The end of the engine is the sign to stop.
    sys::ignore_termination(true);
    let _ = protect_this_process();
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    let Ok(above) = above() else { return ExitCode::FAILURE };
    let Ok(Some((mut orders, stdin))) = read_orders(&above) else { return ExitCode::FAILURE };
    let scratch = match Scratch::create(&orders.scratch) {
        Ok(scratch) => scratch,
        Err(error) => {
            let what = Setup::Folder(orders.scratch.clone());
            let _ = wire::send(&above, &StageReport::Refused { what, why: error.to_string() });
            return ExitCode::FAILURE;
        }
    };
    match attempt(&above, &mut orders, &stdin, &scratch) {
        Ok(report) => {
            let _ = wire::send(&above, &report);
            let problem = scratch.remove().err().map(|error| error.to_string());
            let _ = wire::send(&above, &StageReport::Cleaned { problem });
        }
        Err(refusal) => {
            let _ = scratch.remove();
            let _ = wire::send(&above, &refusal.report());
        }
    }
    ExitCode::SUCCESS
}

fn attempt(
    above: &UnixStream,
    orders: &mut Orders,
    stdin: &[u8],
    scratch: &Scratch,
) -> Result<StageReport, SetupError> {
    let user = orders.contain.own_user.then(user::pick).transpose().during("a user id")?;
    let cwd = match &orders.folder {
        None => scratch.folder("work", user).during("the work folder")?,
        Some(folder) => {
            let refuse = |why: String| SetupError { what: Setup::Folder(folder.clone()), why };
            let path = std::fs::canonicalize(folder).map_err(|error| refuse(error.to_string()))?;
            if !path.is_dir() {
                return Err(refuse("not a folder".into()));
            }
            path
        }
    };
    let tmp = scratch.folder("tmp", user).during("the temporary folder")?;
    scratch.give_to(user).during("the private folder")?;
    let ours = if user.is_some() { 0 } else { PROCESSES_OF_OURS };
    let allowed = u64::from(orders.limits.processes + ours);
    let processes_max = match orders.contain.process_count {
        ProcessCount::Unlimited => None,
        ProcessCount::Command => Some(allowed),
        ProcessCount::EngineUser => Some(allowed + processes::count_of_user()),
    };
    orders.placed = Some(Placed { cwd: cwd.clone(), tmp, user, processes_max });

    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).during("subreaper")?;
    let _ = rustix::process::setpriority_process(None, PRIORITY);
    namespaces::enter(&orders.contain)?;
    let started = Instant::now();
    let has_init = orders.contain.process_namespace;
    let (child, below) = start(if has_init { "init" } else { "confine" }, orders, stdin).during("start")?;
    // Waited for by number, as the orphans are.
    let main = Pid::from_child(&child);
    let handle = pidfd_open(main, PidfdFlags::empty()).during("process descriptor")?;
    release_output();
    let command = Supervised { main, handle, has_init };

    let deadline = started + Duration::from_millis(orders.timeout_ms);
    let reason = command.watch(above, deadline, &orders.limits);
    if matches!(reason, Some(EndReason::TimedOut | EndReason::Cancelled)) {
        command.ask_to_end();
    }
    let status = command.kill_all();
    let duration_ms = started.elapsed().as_millis() as u64;

    // Every process that could write to the socket is dead: what is in it is all there is.
    let _ = below.set_nonblocking(true);
    let said = wire::receive::<StageReport>(&below).ok().flatten();
    if let Some(StageReport::Refused { what, why }) = said {
        return Err(SetupError { what, why });
    }
    let (exit_code, signal) = match (said, status) {
        (Some(StageReport::Status { exit_code, signal }), _) => (exit_code, signal),
        (_, Some(StageReport::Status { exit_code, signal })) if !has_init => (exit_code, signal),
        _ => (None, Some(Signal::KILL.as_raw())),
    };
    let ended = reason.unwrap_or(if signal.is_some() { EndReason::Killed } else { EndReason::Exited });
    Ok(StageReport::Ended { ended, exit_code, signal, duration_ms, cwd })
}

/// The processes of a command, below this one.
struct Supervised {
    /// Init, or bash itself.
    main: Pid,
    handle: OwnedFd,
    has_init: bool,
}

impl Supervised {
    /// Returns when the command has ended (`None`) or must.
    fn watch(&self, above: &UnixStream, deadline: Instant, limits: &ResourceLimits) -> Option<EndReason> {
        let mut look_at = Instant::now() + WATCH_INTERVAL;
        loop {
            let until = look_at.min(deadline).saturating_duration_since(Instant::now());
            let (has_ended, is_stopped) = self.wait(Some(above), until);
            self.reap_orphans();
            let now = Instant::now();
            if has_ended {
                return None;
            } else if is_stopped {
                return Some(EndReason::Cancelled);
            } else if now >= deadline {
                return Some(EndReason::TimedOut);
            } else if now >= look_at {
                let Usage { tasks, memory_bytes } = processes::usage();
                if memory_bytes > limits.memory_bytes {
                    return Some(EndReason::MemoryLimit);
                }
                if tasks > limits.processes + PROCESSES_OF_OURS {
                    return Some(EndReason::ProcessLimit);
                }
                look_at = Instant::now() + WATCH_INTERVAL;
            }
        }
    }

    /// Whether the main process has ended, and whether the engine wants no more.
    fn wait(&self, above: Option<&UnixStream>, until: Duration) -> (bool, bool) {
        let timeout = Timespec::try_from(until).unwrap_or_default();
        let mut sources = vec![PollFd::new(&self.handle, PollFlags::IN)];
        sources.extend(above.map(|above| PollFd::new(above, PollFlags::IN | PollFlags::RDHUP)));
        match poll(&mut sources, Some(&timeout)) {
            Ok(_) => {
                let is_ready = |i: usize| sources.get(i).is_some_and(|source| !source.revents().is_empty());
                (is_ready(0), is_ready(1))
            }
            Err(_) => (false, false),
        }
    }

    /// Processes whose parent has ended are ours. Dead ones count in the limit of processes until they are reaped.
    fn reap_orphans(&self) {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Some(pid) = processes::first_dead_child().filter(|pid| *pid != self.main) {
            if !matches!(waitid(WaitId::Pid(pid), peek), Ok(Some(_))) {
                return;
            }
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }

    /// SIGTERM to every process, and time to react.
    fn ask_to_end(&self) {
        for process in processes::descendants() {
            // Init has nothing to clean up: it ends with bash.
            if !(self.has_init && process.pid == self.main) {
                process.signal(Signal::TERM);
                // A stopped process gets to it only when it goes on.
                process.signal(Signal::CONT);
            }
        }
        self.wait(None, TERM_GRACE);
    }

    /// Kills what is left, and waits until it is gone. The status is that of the main process.
    fn kill_all(&self) -> Option<StageReport> {
        let deadline = Instant::now() + KILL_GRACE;
        if self.has_init {
            // The kernel kills the namespace with it, and lets it end when the last process has.
            let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        } else {
            // At once, so that a fork bomb that stays in its group ends here. The number is still ours: bash is not
            // waited for yet.
            let _ = rustix::process::kill_process_group(self.main, Signal::KILL);
            let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        }
        self.wait(None, KILL_GRACE);
        let status = rustix::process::waitpid(Some(self.main), WaitOptions::NOHANG);
        processes::kill_descendants(deadline);
        status.ok().flatten().map(|(_, status)| super::status_report(status))
    }
}
