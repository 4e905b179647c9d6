//! Tries one feature, in a process that is given up afterwards, by the same code that commands get. What is reported as
//! available was seen to work: the forbidden thing was tried, too.

use super::files::{AllowedPaths, FileRules, LANDLOCK_VERSIONS};
use super::{ARGUMENT, confine, namespaces, protect_this_process, syscalls, user};
use crate::command::{FileAccess, NetworkAccess};
use crate::isolation::{Containment, FeatureName, LANDLOCK_SIGNALS, LANDLOCK_TCP, ProcessCount};
use crate::sys;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getpid, getppid};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, ExitCode, Stdio};

/// What one try found: `Ok` and `Err` say it in words.
#[derive(Serialize, Deserialize)]
pub struct ProbeAnswer {
    pub contain: Containment,
    pub result: Result<String, String>,
}

type Tried = Result<String, String>;

/// The first argument is the feature, the second what was found before.
pub fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let name = arguments.next().unwrap_or_default();
    let contain = arguments.next().and_then(|text| serde_json::from_str(&text).ok());
    let mut contain: Containment = contain.unwrap_or_default();
    let feature = FeatureName::TRIED.into_iter().find(|feature| feature.word() == name);
    let result = match feature {
        Some(feature) => attempt(feature, &mut contain),
        None => within(&name, &contain),
    };
    match serde_json::to_string(&ProbeAnswer { contain, result }) {
        Ok(text) => println!("{text}"),
        Err(_) => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn attempt(feature: FeatureName, contain: &mut Containment) -> Tried {
    match feature {
        FeatureName::Supervision => supervision(),
        FeatureName::NoNewPrivileges => {
            rustix::thread::set_no_new_privs(true).map_err(words)?;
            contain.no_new_privileges = true;
            Ok("set".into())
        }
        FeatureName::HiddenMemory => {
            protect_this_process().map_err(words)?;
            inner("peek", contain)
        }
        FeatureName::SystemCallFilter => {
            system_call_filter()?;
            contain.system_call_filter = true;
            Ok("seccomp".into())
        }
        FeatureName::FileRules => {
            contain.landlock = landlock()?;
            Ok(format!("Landlock, version {}", contain.landlock))
        }
        FeatureName::TcpRules => tcp_rules(contain.landlock),
        FeatureName::SignalScope => {
            let said = signal_scope(contain.landlock)?;
            contain.signal_scope = true;
            Ok(said)
        }
        FeatureName::UserNamespace => {
            namespaces::enter_user_namespace(UnshareFlags::empty()).map_err(words)?;
            Ok("without privileges".into())
        }
        FeatureName::ProcessNamespace => process_namespace(contain),
        FeatureName::NetworkNamespace => {
            let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (address, _listener) = listener.map_err(words)?;
            with_namespaces(contain, UnshareFlags::NEWNET)?;
            refused(TcpStream::connect(address), "a connection out of it was made")?;
            contain.network_namespace = true;
            Ok("entered".into())
        }
        FeatureName::MountNamespace => {
            if !contain.process_namespace {
                return Err("needs a process namespace".into());
            }
            with_namespaces(contain, UnshareFlags::empty())?;
            namespaces::enter_mount_namespace().map_err(words)?;
            namespaces::cover(&["/etc".into()], &[]).map_err(words)?;
            refused(std::fs::metadata("/etc/passwd"), "a covered file was found")?;
            contain.mount_namespace = true;
            Ok("entered".into())
        }
        FeatureName::PrivateProc => {
            if !contain.process_namespace {
                return Err("needs a process namespace".into());
            }
            with_namespaces(contain, UnshareFlags::NEWPID)?;
            let said = inner("proc", contain)?;
            contain.private_proc = true;
            Ok(said)
        }
        FeatureName::OwnUser => {
            if contain.user_namespace {
                return Err("only the engine's own user exists in a user namespace".into());
            }
            user::can_serve_others()?;
            let user = user::pick().map_err(words)?;
            user::become_user(user).map_err(words)?;
            contain.own_user = true;
            Ok("as root".into())
        }
        FeatureName::ProcessLimit => {
            namespaces::enter(contain).map_err(|refusal| refusal.why)?;
            contain.process_count = match inner("processes", contain)?.as_str() {
                "command" => ProcessCount::Command,
                _ => ProcessCount::EngineUser,
            };
            Ok(match contain.process_count {
                ProcessCount::Command => "counted for each command",
                _ => "counted with all processes of this user",
            }
            .into())
        }
        FeatureName::SignalConfinement => unreachable!("it follows from others"),
    }
}

/// Parts of a try, in a child of the process that tries.
fn within(name: &str, contain: &Containment) -> Tried {
    match name {
        "first" => match getpid().as_raw_nonzero().get() {
            1 => Ok("entered".into()),
            pid => Err(format!("the first process has number {pid}")),
        },
        "proc" => {
            namespaces::enter_mount_namespace().map_err(words)?;
            namespaces::mount_proc().map_err(words)?;
            let own = std::fs::read_link("/proc/self").map_err(words)?;
            let is_first = own.as_os_str() == "1";
            if is_first { Ok("mounted".into()) } else { Err(format!("it shows this process as {}", own.display())) }
        }
        "peek" => {
            user::drop_capabilities().map_err(words)?;
            let parent = getppid().ok_or("no parent")?.as_raw_nonzero();
            for file in ["mem", "environ", "auxv"] {
                refused(std::fs::File::open(format!("/proc/{parent}/{file}")), "the memory can be opened")?;
            }
            Ok("not dumpable".into())
        }
        "processes" => processes(contain),
        _ => Err(format!("unknown: {name}")),
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn refused<T, E>(result: Result<T, E>, otherwise: &str) -> Result<(), String> {
    match result {
        Err(_) => Ok(()),
        Ok(_) => Err(otherwise.into()),
    }
}

fn inner(name: &str, contain: &Containment) -> Tried {
    let contain = serde_json::to_string(contain).map_err(words)?;
    let mut command = Command::new("/proc/self/exe");
    command.args([ARGUMENT, "probe", name, &contain]).env_clear().stdin(Stdio::null());
    let output = command.output().map_err(words)?;
    serde_json::from_slice::<ProbeAnswer>(&output.stdout).map_err(words)?.result
}

fn supervision() -> Tried {
    rustix::process::set_child_subreaper(Some(getpid())).map_err(words)?;
    rustix::process::pidfd_open(getpid(), PidfdFlags::empty()).map_err(|error| format!("pidfd: {error}"))?;
    if !super::processes::descendants().is_empty() || super::processes::usage().tasks > 0 {
        return Err("/proc shows children that are not there".into());
    }
    confine::shell().ok_or("bash is not installed")?;
    Ok("subreaper".into())
}

fn system_call_filter() -> Result<(), String> {
    rustix::thread::set_no_new_privs(true).map_err(words)?;
    syscalls::refuse(FileAccess::WorkFolder, NetworkAccess::Off, false)?;
    match UdpSocket::bind("127.0.0.1:0") {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
        _ => return Err("a socket was made".into()),
    }
    match sys::unshare(UnshareFlags::NEWUTS) {
        Err(rustix::io::Errno::PERM) => Ok(()),
        _ => Err("a refused call was made".into()),
    }
}

fn landlock() -> Result<u8, String> {
    // Not in the list, and there on every system.
    let elsewhere = std::env::current_exe().map_err(words)?;
    for version in LANDLOCK_VERSIONS {
        let files = Some(AllowedPaths { read: vec!["/proc/self/fd".into()], write: Vec::new() });
        if (FileRules { landlock: version, files, deny_tcp: true }).apply().is_ok() {
            refused(std::fs::File::open(elsewhere), "a file was opened that is not allowed")?;
            refused(std::fs::read_dir("/"), "a folder was read that is not allowed")?;
            return Ok(version);
        }
    }
    Err("the kernel has no Landlock (Linux 5.13), or it is not enabled".into())
}

fn tcp_rules(landlock: u8) -> Tried {
    if landlock < LANDLOCK_TCP {
        return Err(format!("needs version {LANDLOCK_TCP} of Landlock's interface (Linux 6.7)"));
    }
    let listener = TcpListener::bind("127.0.0.1:0").map_err(words)?;
    let address = listener.local_addr().map_err(words)?;
    FileRules { landlock, files: None, deny_tcp: true }.apply()?;
    refused(TcpStream::connect(address), "a connection was made")?;
    Ok("Landlock".into())
}

fn signal_scope(landlock: u8) -> Tried {
    if landlock < LANDLOCK_SIGNALS {
        return Err(format!("needs version {LANDLOCK_SIGNALS} of Landlock's interface (Linux 6.12)"));
    }
    // Started before, so outside; it ends with its standard input.
    let shell = confine::shell().ok_or("bash is not installed")?;
    let mut outside = Command::new(shell).args(["-c", "read"]).stdin(Stdio::piped()).spawn().map_err(words)?;
    let pid = Pid::from_child(&outside);
    let before = rustix::process::test_kill_process(pid).map_err(words);
    let applied = FileRules { landlock, ..FileRules::default() }.apply();
    let after = refused(rustix::process::test_kill_process(pid), "a process outside was signalled");
    drop(outside.stdin.take());
    let _ = outside.wait();
    before.and(applied).and(after)?;
    Ok("Landlock".into())
}

/// Namespaces of these kinds, by way of a user namespace if need be.
fn with_namespaces(contain: &Containment, flags: UnshareFlags) -> Result<(), String> {
    match contain.user_namespace {
        true => namespaces::enter_user_namespace(flags).map_err(words),
        false => sys::unshare(flags).map_err(words),
    }
}

fn process_namespace(contain: &mut Containment) -> Tried {
    let flags = UnshareFlags::NEWPID | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    if sys::unshare(flags).is_err() {
        contain.user_namespace = true;
        if let Err(error) = with_namespaces(contain, flags) {
            contain.user_namespace = false;
            return Err(error);
        }
    }
    let said = inner("first", contain)?;
    contain.process_namespace = true;
    Ok(said)
}

/// Whether the kernel refuses a process too many, and whose processes it counts.
fn processes(contain: &Containment) -> Tried {
    // Has the program loaded while it is allowed to.
    let shell = confine::shell().ok_or("bash is not installed")?;
    user::forget_capabilities();
    if contain.own_user {
        let user = user::pick().map_err(words)?;
        user::become_user(user).map_err(words)?;
    }
    user::drop_capabilities().map_err(words)?;
    let one_more = |allowed: u64| -> Result<bool, String> {
        let limit = Rlimit { current: Some(allowed), maximum: rustix::process::getrlimit(Resource::Nproc).maximum };
        rustix::process::setrlimit(Resource::Nproc, limit).map_err(words)?;
        let mut command = Command::new(shell);
        let done = command.args(["-c", ":"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(done.and_then(|mut child| child.wait()).is_ok())
    };
    if one_more(1)? {
        return Err("the kernel does not limit the processes of root".into());
    }
    // In a namespace or for a user of their own these are the process that tries, its parent and the new one. Without,
    // the one that asked counts, too.
    let is_own = contain.own_user || contain.user_namespace;
    Ok(if is_own && one_more(3)? { "command" } else { "user" }.into())
}
