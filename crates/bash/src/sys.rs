//! The system calls without a safe wrapper in our dependencies. The only file of the workspace with `unsafe`.

#![allow(unsafe_code)]

use rustix::thread::UnshareFlags;
use std::io;

/// Every descriptor but standard input, output and error closes at the next `exec`.
pub fn close_descriptors_on_exec() -> io::Result<()> {
    // SAFETY: the call takes numbers only. It closes nothing now, so no descriptor that Rust owns becomes invalid.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return Ok(());
    }
    // Before Linux 5.11. The listing itself has a descriptor, which is gone when it is marked: that is no error.
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(descriptor) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if descriptor > 2 {
            // SAFETY: as above.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Whether the process ignores the signals that ask it to end. A process started by `exec` inherits it.
pub fn ignore_termination(ignore: bool) {
    let action = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: no handler is installed, so no code of ours runs in a signal's context.
        unsafe { libc::signal(signal, action) };
    }
}

pub fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: unsafe for its flag to stop sharing descriptors between threads. A stage has one thread, and does not
    // pass that flag.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}
