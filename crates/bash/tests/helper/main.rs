//! A program with the supervisor inside, as the engine has it. Options in front make it run with less than this machine
//! offers, so that one test run sees every level:
//!
//! - `--no-namespaces`: as in a container, whose filter refuses them, without `CAP_SYS_ADMIN`
//! - `--no-admin`: without `CAP_SYS_ADMIN` only, as in a container without a filter
//! - `--no-landlock`, `--no-seccomp`: as on a kernel without
//! - `--user`: as user 65534 (needs root)
//!
//! Then either the arguments of a stage, or `engine REQUEST`: runs one command as an engine would, and prints the result.

use bash::{Command, FileAccess, IsolationLevel, NetworkAccess, Program, Sandbox};
use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};
use std::collections::BTreeMap;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    while let Some(option) = arguments.get(1).and_then(|argument| argument.to_str()?.strip_prefix("--")) {
        match option {
            "no-namespaces" => {
                let user_or_mount =
                    (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET) as u64;
                let bits = (0..32).map(|bit| 1 << bit).filter(|bit| user_or_mount & bit != 0);
                let rules = bits.map(|bit| rule(0, SeccompCmpOp::MaskedEq(bit), bit)).collect::<Vec<_>>();
                refuse(BTreeMap::from([(libc::SYS_unshare, rules.clone()), (libc::SYS_clone, rules)]), libc::EPERM);
                drop_admin();
            }
            "no-admin" => drop_admin(),
            "no-landlock" => refuse(BTreeMap::from([(libc::SYS_landlock_create_ruleset, vec![])]), libc::ENOSYS),
            "no-seccomp" => {
                let by_prctl = rule(0, SeccompCmpOp::Eq, libc::PR_SET_SECCOMP as u64);
                refuse(BTreeMap::from([(libc::SYS_seccomp, vec![]), (libc::SYS_prctl, vec![by_prctl])]), libc::EINVAL);
            }
            "user" => {
                rustix::thread::set_thread_groups(&[]).unwrap();
                let (uid, gid) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                // As if started by this user: the change has made the files of `/proc/self` root's.
                rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).unwrap();
            }
            other => panic!("unknown option {other}"),
        }
        arguments.remove(1);
    }
    if arguments.get(1).is_some_and(|argument| argument == "engine") {
        let request = arguments[2].to_str().unwrap();
        engine(&serde_json::from_str(request).unwrap());
        return ExitCode::SUCCESS;
    }
    bash::run_stage(arguments).unwrap_or(ExitCode::FAILURE)
}

fn drop_admin() {
    let _ = rustix::thread::remove_capability_from_bounding_set(CapabilitySet::SYS_ADMIN);
    let mut sets = rustix::thread::capabilities(None).unwrap();
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(CapabilitySet::SYS_ADMIN);
    }
    rustix::thread::set_capabilities(None, sets).unwrap();
}

fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> SeccompRule {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).unwrap();
    SeccompRule::new(vec![condition]).unwrap()
}

fn refuse(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: libc::c_int) {
    let processor = std::env::consts::ARCH.try_into().unwrap();
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), processor).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// The command sees `ENGINE`, the process id of this one.
fn engine(request: &serde_json::Value) {
    bash::protect_this_process().unwrap();
    let text = |name: &str| request[name].as_str().unwrap_or_default();
    let program = Program::this();
    let isolation = bash::probe(&program).unwrap();
    let mut command = Command::new(text("command")).env("ENGINE", std::process::id().to_string());
    if isolation.level < IsolationLevel::Restricted || request["all_allowed"] == true {
        (command.files, command.network) = (FileAccess::Anywhere, NetworkAccess::On);
    }
    let sandbox = Sandbox::new(program, isolation, IsolationLevel::Supervised, text("scratch"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let finished = runtime.block_on(sandbox.run(command, std::future::pending())).unwrap();
    let level = sandbox.isolation().level;
    println!("{}", serde_json::json!({ "level": level, "finished": finished }));
}
