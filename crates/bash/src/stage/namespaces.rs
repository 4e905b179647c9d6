//! Namespaces: which there are, who the user is inside of them, and what is mounted.

use super::{During, SetupError, user};
use crate::isolation::Containment;
use crate::sys;
use crate::wire::Orders;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::DumpableBehavior;
use rustix::thread::UnshareFlags;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Makes the namespaces of a command, except for mounts: the supervisor keeps seeing the file system as it is. The
/// process namespace begins with the next child.
pub fn enter(contain: &Containment) -> Result<(), SetupError> {
    let mut flags = UnshareFlags::empty();
    flags.set(UnshareFlags::NEWPID | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS, contain.process_namespace);
    flags.set(UnshareFlags::NEWNET, contain.network_namespace);
    if flags.is_empty() {
        return Ok(());
    }
    match contain.user_namespace {
        true => enter_user_namespace(flags).during("user namespace"),
        false => sys::unshare(flags).during("namespaces"),
    }
}

/// The user stays who it is, and may do in the new namespaces what root may.
pub fn enter_user_namespace(others: UnshareFlags) -> std::io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::unshare(others | UnshareFlags::NEWUSER)?;
    let write = |file: &str, text: String| std::fs::write(format!("/proc/self/{file}"), text);
    // The files belong to root while the process is not dumpable.
    let dumpable = rustix::process::dumpable_behavior()?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let mapped = write("setgroups", "deny".into())
        .and_then(|()| write("gid_map", format!("{gid} {gid} 1")))
        .and_then(|()| write("uid_map", format!("{uid} {uid} 1")));
    rustix::process::set_dumpable_behavior(dumpable)?;
    mapped?;
    user::keep_capabilities()
}

/// In init: `/proc` of its own, and empty folders over the protected ones.
pub fn mount(orders: &Orders) -> Result<(), SetupError> {
    if !orders.contain.mount_namespace && !orders.contain.private_proc {
        return Ok(());
    }
    enter_mount_namespace().during("mount namespace")?;
    if orders.contain.mount_namespace {
        let placed = orders.placed.iter().flat_map(|placed| [placed.cwd.as_path(), &placed.tmp]);
        cover(&orders.protected, &placed.collect::<Vec<_>>()).during("protected paths")?;
    }
    if orders.contain.private_proc {
        mount_proc().during("private /proc")?;
    }
    Ok(())
}

pub fn enter_mount_namespace() -> rustix::io::Result<()> {
    sys::unshare(UnshareFlags::NEWNS)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

pub fn mount_proc() -> rustix::io::Result<()> {
    rustix::mount::mount("proc", "/proc", "proc", FLAGS, None)
}

const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Mounts something empty over each path. Folders in `kept` that are inside of one stay where they are.
pub fn cover(protected: &[PathBuf], kept: &[&Path]) -> std::io::Result<()> {
    // A path that does not exist has nothing to protect.
    let mut protected: Vec<_> = protected.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect();
    protected.sort(); // an outer folder before those inside of it
    protected.dedup();
    for path in protected {
        if !path.is_dir() {
            rustix::mount::mount_bind("/dev/null", &path)?;
            continue;
        }
        let mut inside = Vec::new();
        for folder in kept.iter().filter(|folder| folder.starts_with(&path)) {
            inside.push((rustix::fs::open(*folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?, folder));
        }
        rustix::mount::mount("tmpfs", &path, "tmpfs", FLAGS, Some(c"mode=711,size=64k"))?;
        for (descriptor, folder) in inside {
            std::fs::create_dir_all(folder)?;
            rustix::mount::mount_bind_recursive(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), *folder)?;
        }
        rustix::mount::mount_remount(&path, FLAGS | MountFlags::RDONLY, "")?;
    }
    Ok(())
}
