//! Finding, counting and killing the descendants of this process. As a subreaper it is the parent of every orphan below
//! it, so no session, group or second fork leads out of the tree.

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Descendant {
    pub pid: Pid,
    parent: i32,
    is_dead: bool,
    is_stopped: bool,
}

impl Descendant {
    /// A number can have passed to another process since it was read, but not while its descriptor is open and its
    /// parent is the same.
    pub fn signal(&self, signal: Signal) {
        let Ok(handle) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        let is_the_same = stat(self.pid.as_raw_nonzero().get())
            .is_some_and(|now| now.parent == self.parent || now.parent == getpid().as_raw_nonzero().get());
        if is_the_same {
            let _ = pidfd_send_signal(handle, signal);
        }
    }
}

fn stat(pid: i32) -> Option<Descendant> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, parentheses included.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Descendant {
        pid: Pid::from_raw(pid)?,
        parent,
        is_dead: matches!(state, "Z" | "X" | "x"),
        is_stopped: matches!(state, "T" | "t"),
    })
}

fn all() -> impl Iterator<Item = Descendant> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?))
}

/// Every living process below this one.
pub fn descendants() -> Vec<Descendant> {
    let mut by_parent: BTreeMap<i32, Vec<Descendant>> = BTreeMap::new();
    all().for_each(|process| by_parent.entry(process.parent).or_default().push(process));
    let mut found = Vec::new();
    let mut parents = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        for process in by_parent.remove(&parent).unwrap_or_default() {
            parents.push(process.pid.as_raw_nonzero().get());
            found.push(process);
        }
    }
    found.retain(|process| !process.is_dead);
    found
}

/// A child of this process that has ended and is not waited for.
pub fn first_dead_child() -> Option<Pid> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, peek).ok()??;
    let mine = getpid().as_raw_nonzero().get();
    children(mine).into_iter().filter_map(stat).find(|child| child.is_dead).map(|child| child.pid)
}

/// Kills every descendant: first stops them, so that none of them forks while others are killed.
pub fn kill_descendants(deadline: Instant) {
    let mut stopped = HashSet::new();
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let left = descendants();
        if left.is_empty() || Instant::now() >= deadline {
            return;
        }
        let new: Vec<_> = left.iter().filter(|process| !process.is_stopped && stopped.insert(process.pid)).collect();
        if new.is_empty() {
            left.iter().for_each(|process| process.signal(Signal::KILL));
            // The next round finds what came in between; those that are dying need a moment.
            stopped.clear();
            std::thread::sleep(Duration::from_millis(1));
        } else {
            new.iter().for_each(|process| process.signal(Signal::STOP));
        }
    }
}

/// What the descendants use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processes and threads.
    pub tasks: u32,
    /// Resident, without pages of files.
    pub memory_bytes: u64,
}

pub fn usage() -> Usage {
    let mine = getpid().as_raw_nonzero().get();
    let mut usage = Usage::default();
    let mut parents = children(mine);
    while let Some(pid) = parents.pop() {
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default()
        };
        usage.tasks += value("Threads:") as u32;
        usage.memory_bytes += 1024 * (value("RssAnon:") + value("RssShmem:") + value("VmSwap:"));
        parents.extend(children(pid));
    }
    usage
}

/// From the kernel's own list, which costs nothing when the machine runs thousands of other processes. It is missing in
/// kernels built without it.
fn children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
    let mut found = Vec::new();
    for list in lists {
        match list {
            Ok(list) => found.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && stat(pid).is_some() => {
                let mine = all().filter(|process| process.parent == pid);
                return mine.map(|process| process.pid.as_raw_nonzero().get()).collect();
            }
            Err(_) => {}
        }
    }
    found
}

/// Processes and threads of this process's user, as the kernel counts them.
pub fn count_of_user() -> u64 {
    let user = rustix::process::getuid().as_raw().to_string();
    let count = |process: Descendant| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid.as_raw_nonzero())).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        (field("Uid:")? == user).then(|| field("Threads:")?.parse::<u64>().ok()).flatten()
    };
    all().filter_map(count).sum()
}
