//! The process that becomes bash. It takes its rights away one by one; the order matters, because most steps need a right
//! that a later one takes.

use super::files::FileRules;
use super::{During, SetupError, above, die_with_parent, read_orders, syscalls, user};
use crate::sys;
use crate::wire::{self, Orders, Placed, Setup};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Resource, Rlimit};
use std::io::{Seek, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SHELLS: [&str; 4] = ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/run/current-system/sw/bin/bash"];
const PRIORITY: i32 = 10;
/// When memory runs out, the kernel prefers commands to the engine.
const OOM_SCORE: &str = "500";

pub fn run() -> ExitCode {
    let Ok(above) = above() else { return ExitCode::FAILURE };
    let Ok(Some((orders, stdin))) = read_orders(&above) else { return ExitCode::FAILURE };
    // It comes back only if bash was not started.
    let refusal = become_bash(&above, &orders, &stdin).unwrap_err();
    let _ = wire::send(&above, &refusal.report());
    ExitCode::FAILURE
}

fn become_bash(above: &UnixStream, orders: &Orders, stdin: &[u8]) -> Result<std::convert::Infallible, SetupError> {
    let placed = orders.placed.as_ref().ok_or("not placed").during("orders")?;
    let contain = &orders.contain;
    rustix::process::setsid().during("session")?;
    sys::ignore_termination(false);
    set_stdin(stdin).during("standard input")?;
    rustix::process::setpriority_process(None, PRIORITY).during("priority")?;
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE).during("oom_score_adj")?;

    user::forget_capabilities();
    if let Some(user) = placed.user {
        user::become_user(user).during("own user")?;
    }
    user::drop_capabilities().during("capabilities")?;
    // The change of the user has taken the one that may have been there.
    die_with_parent(above).during("parent death signal")?;
    limit(orders, placed).during("limits")?;
    enter_folder(&placed.cwd)?;
    if contain.no_new_privileges {
        rustix::thread::set_no_new_privs(true).during("no_new_privs")?;
    }
    let shell = shell().ok_or("bash is not installed").during("bash")?;
    sys::close_descriptors_on_exec().during("descriptors")?;
    if contain.landlock > 0 {
        FileRules::of(orders, placed).apply().during("Landlock")?;
    }
    if contain.system_call_filter {
        syscalls::refuse(orders.files, orders.network, contain.process_namespace).during("seccomp")?;
    }
    let mut bash = Command::new(shell);
    bash.arg0("bash").args(["--noprofile", "--norc", "-c", &orders.command]).env_clear();
    let fixed = [("PATH", PATH), ("LANG", "C.UTF-8"), ("LC_ALL", "C.UTF-8")];
    bash.envs(fixed).env("HOME", &placed.cwd).env("TMPDIR", &placed.tmp);
    bash.envs(orders.env.iter().map(|(name, value)| (name, value)));
    Err(SetupError::sandbox("bash")(&bash.exec()))
}

pub fn shell() -> Option<&'static str> {
    SHELLS.into_iter().find(|path| Path::new(path).exists())
}

/// A file in memory that cannot be changed: the command reads it at its own pace, or not at all, and nothing of ours has
/// to write meanwhile.
fn set_stdin(bytes: &[u8]) -> std::io::Result<()> {
    if bytes.is_empty() {
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        return Ok(());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels since 6.3 can be set to require the first form, older ones do not know it.
    let file = rustix::fs::memfd_create("stdin", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create("stdin", flags))?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes)?;
    file.rewind()?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    rustix::stdio::dup2_stdin(&file)?;
    Ok(())
}

fn limit(orders: &Orders, placed: &Placed) -> rustix::io::Result<()> {
    let limits = &orders.limits;
    // A backstop for processes that outlive a killed supervisor: no process works longer than all processors could.
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let cpu_seconds = (orders.timeout_ms.div_ceil(1_000) + 5) * processors;
    let all = [
        (Resource::Core, Some(0)),
        (Resource::Cpu, Some(cpu_seconds)),
        // Not the address space: programs reserve much more of it than they use.
        (Resource::Data, Some(limits.memory_bytes)),
        (Resource::Fsize, Some(limits.file_bytes)),
        (Resource::Memlock, Some(0)),
        (Resource::Msgqueue, Some(0)),
        (Resource::Nofile, Some(limits.open_files.into())),
        (Resource::Nproc, placed.processes_max),
    ];
    for (resource, limit) in all.into_iter().filter_map(|(resource, limit)| Some((resource, limit?))) {
        // Without privileges, a limit can only go down.
        let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(limit);
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// As the user of the command, by its path: a folder that it cannot reach is not one to work in.
fn enter_folder(folder: &Path) -> Result<(), SetupError> {
    std::env::set_current_dir(folder).map_err(|error| SetupError {
        what: Setup::Folder(folder.to_owned()),
        why: format!("the user of the command cannot enter it ({error}); every folder above must allow others to pass"),
    })
}
