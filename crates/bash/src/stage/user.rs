//! Users and privileges.

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;

/// User ids that no distribution, container runtime or service manager gives out: 0x7000_0000 to 0x7FFF_FFFE.
const USERS: u32 = 0x7000_0000;
const USER_BITS: u32 = 0x0FFF_FFFF;
/// More than any kernel has; unknown ones are refused and skipped.
const CAPABILITIES: u32 = 64;

/// A user id for one command. By chance, so that engines on one machine need not agree: two commands at a time get the
/// same in one of 268 million cases.
pub fn pick() -> io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(USERS + u32::from_ne_bytes(bytes) % USER_BITS)
}

/// Whether this process can kill and clean up after a user it is not.
pub fn can_serve_others() -> Result<(), String> {
    let needed = CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER | CapabilitySet::KILL;
    let has = rustix::thread::capabilities(None).map_err(|error| error.to_string())?.effective;
    match has.contains(needed) {
        true => Ok(()),
        false => Err("needs root with CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER and CAP_KILL".into()),
    }
}

/// Becomes this user, with a group of the same number and no other groups.
pub fn become_user(user: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// So that they survive `exec` although the user is not root.
pub fn keep_capabilities() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.inheritable = sets.permitted;
    rustix::thread::set_capabilities(None, sets)?;
    for capability in each().filter(|capability| sets.permitted.contains(*capability)) {
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Before the user changes, which ends the right to do it: no program that is started may give them back.
pub fn forget_capabilities() {
    for capability in each() {
        // Without the right to, there is nothing to give back either: `no_new_privs` sees to it.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
}

pub fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

fn each() -> impl Iterator<Item = CapabilitySet> {
    (0..CAPABILITIES).map(|n| CapabilitySet::from_bits_retain(1 << n))
}
